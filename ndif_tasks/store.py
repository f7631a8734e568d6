"""The object store, S3 through boto3: payloads and results too big for the broker, moved by presigned URLs.

Only the web tier and the control worker hold its keys. Replicas get one URL per object and nothing else.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import IO, Any
from urllib.parse import urlsplit

from ndif_models.errors import SettingError
from ndif_models.settings import LOOPBACK, Settings

from . import transfer

WEEK_S = 7 * 86_400


class Store:
    """The farm's bucket.

    Raises:
        SettingError: it has no keys.
    """

    def __init__(self, settings: Settings) -> None:
        self.bucket = settings.object_store_bucket
        self.url_ttl_s = settings.url_ttl_s
        self._verify = settings.object_store_verify
        self._region = settings.object_store_region
        session = _session(settings)
        self._credentials = session.get_credentials()
        if self._credentials is None:
            raise SettingError(
                "The object store's keys are not known: set NDIF_OBJECT_STORE_ACCESS_KEY and _SECRET_KEY."
            )
        self._client = _client(session, settings)
        self._url = self._client.meta.endpoint_url
        self._public_url = settings.object_store_public_url or self._url

    def put(self, key: str, body: IO[bytes], size: int) -> None:
        """Store a file, streaming it.

        Raises:
            Unavailable: the store cannot take it now.
        """
        # By URL and not through the SDK, which would first hash the whole file and keep everybody else waiting.
        chunks = iter(lambda: body.read(transfer.CHUNK_BYTES), b"")
        transfer.upload(self.put_url(key), chunks, size, verify=self._verify)

    def read(self, key: str) -> AbstractContextManager[tuple[int, Iterator[bytes]]]:
        """One object: its size, and its bytes in chunks.

        Raises:
            Unavailable: the store cannot give it now.
        """
        return transfer.download(self.get_url(key, inside=True), verify=self._verify)

    def reachable_from(self, host: str) -> bool:
        """Whether a client that calls the web tier ``host`` can reach the store: not when it is on our loopback."""
        store, client = urlsplit(self._public_url).hostname or "", urlsplit(f"//{host}").hostname or ""
        return store not in LOOPBACK or client in LOOPBACK

    def get_url(self, key: str, *, inside: bool = False) -> str:
        """A URL that reads one object: a week for the farm's own, ``NDIF_URL_TTL_S`` for a client's."""
        base, ttl_s = (self._url, WEEK_S) if inside else (self._public_url, self.url_ttl_s)
        return self._signed("GET", base, key, ttl_s)

    def put_url(self, key: str) -> str:
        """A URL that writes one object, good for a week: longer than any job waits."""
        return self._signed("PUT", self._url, key, WEEK_S)

    def _signed(self, method: str, base: str, key: str, ttl_s: int) -> str:
        # What the SDK's generate_presigned_url makes, without its three times longer way there: each job has several.
        from botocore.auth import S3SigV4QueryAuth
        from botocore.awsrequest import AWSRequest

        if not key:
            raise ValueError("An object has a key; without one this would be the whole bucket.")
        request = AWSRequest(method, f"{base.rstrip('/')}/{self.bucket}/{key}")
        credentials = self._credentials.get_frozen_credentials()
        S3SigV4QueryAuth(credentials, "s3", self._region, expires=ttl_s).add_auth(request)
        return str(request.url)

    def delete_older(self, age_s: float) -> int:
        """Delete every object older than ``age_s``; returns how many."""
        limit = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age_s)
        deleted = 0
        for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket):
            old = [{"Key": item["Key"]} for item in page.get("Contents", []) if item["LastModified"] < limit]
            if old:
                self._client.delete_objects(Bucket=self.bucket, Delete={"Objects": old})
            deleted += len(old)
        return deleted


def payload_object(job_id: str) -> str:
    """The key of a job's payload."""
    return f"payloads/{job_id}"


def result_object(job_id: str, attempt: int) -> str:
    """The key of one attempt's result; a stalled attempt cannot write over another's."""
    return f"results/{job_id}/{attempt}"


def _session(settings: Settings) -> Any:
    import boto3  # a third of a second, which replicas never need

    return boto3.Session(
        aws_access_key_id=settings.object_store_access_key or None,
        aws_secret_access_key=settings.object_store_secret_key or None,
        region_name=settings.object_store_region,
    )


def _client(session: Any, settings: Settings) -> Any:
    from botocore.config import Config

    return session.client(
        "s3",
        endpoint_url=settings.object_store_url or None,
        verify=settings.object_store_verify,
        config=Config(
            signature_version="s3v4",
            s3={"addressing_style": "path"},
            # The embedded store and most self-hosted ones do not speak the SDK's newer trailing checksums.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            connect_timeout=5,
            retries={"max_attempts": 4},
        ),
    )
