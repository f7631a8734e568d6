"""Presigned URLs, beside those of the SDK."""

from __future__ import annotations

from typing import Any

import boto3
import pytest
from botocore.config import Config

from ndif_models.errors import SettingError
from ndif_models.settings import Settings
from ndif_tasks.store import WEEK_S, Store

KEYS = {"object_store_access_key": "a", "object_store_secret_key": "b"}
KEY = "results/0123/1"


def path_and_query(url: str) -> tuple[str, dict[str, str]]:
    base, _, query = url.partition("?")
    return base, dict(pair.split("=", 1) for pair in query.split("&"))


def of_the_sdk(url: str, region: str, method: str, ttl_s: int) -> str:
    config = Config(signature_version="s3v4", s3={"addressing_style": "path"})
    names = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": region}
    client: Any = boto3.client("s3", endpoint_url=url or None, config=config, **names)
    return str(client.generate_presigned_url(method, {"Bucket": "ndif-results", "Key": KEY}, ttl_s))


@pytest.mark.parametrize(
    ("url", "region"),
    [("http://127.0.0.1:8333", "us-east-1"), ("https://s3.example/base", "eu-west-1"), ("", "eu-west-1")],
)
def test_urls_are_those_of_the_sdk(url: str, region: str) -> None:
    store = Store(Settings(object_store_url=url, object_store_region=region, **KEYS))  # type: ignore[arg-type]
    for _ in range(3):  # the two are made within one second, in one of three tries
        ours = store.put_url(KEY), store.get_url(KEY, inside=True), store.get_url(KEY)
        theirs = (
            of_the_sdk(url, region, "put_object", WEEK_S),
            of_the_sdk(url, region, "get_object", WEEK_S),
            of_the_sdk(url, region, "get_object", store.url_ttl_s),
        )
        if [path_and_query(one) for one in ours] == [path_and_query(one) for one in theirs]:
            return
    assert ours == theirs


def test_clients_get_the_url_they_can_reach() -> None:
    settings = Settings(object_store_url="http://inside:1", object_store_public_url="https://outside/s3/", **KEYS)  # type: ignore[arg-type]
    store = Store(settings)
    assert store.get_url(KEY).startswith(f"https://outside/s3/ndif-results/{KEY}?")
    assert store.get_url(KEY, inside=True).startswith(f"http://inside:1/ndif-results/{KEY}?")


def test_no_url_is_made_of_the_whole_bucket() -> None:
    with pytest.raises(ValueError, match="the whole bucket"):
        Store(Settings(object_store_url="http://s3", **KEYS)).get_url("")  # type: ignore[arg-type]


def test_a_store_without_keys_names_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(SettingError, match="NDIF_OBJECT_STORE_ACCESS_KEY"):
        Store(Settings(object_store_url="http://s3"))
