"""The holder of a model's weights on a GPU, seen from outside: start it, take the arena, have it put right.

Torch-free. Used by one thread at a time. A model's own code may run in it: an answer that is none is a refusal.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from ndif_models.errors import LoadFailed, Unavailable
from ndif_models.settings import Settings
from ndif_tasks.sandbox import jail, protocol

from .zygote_process import end, environment

#: What is run as a holder.
HOLDER = ("-m", "ndif_tasks.sandbox.weights.holder")
#: How long it may take to look at every byte, and to write those that changed.
RESTORE_S = 300.0


class HolderProcess:
    """A running holder."""

    def __init__(self, settings: Settings, model_key: str, dtype: str | None, gpu: str, repo_folder: Path) -> None:
        """``gpu``: as in ``CUDA_VISIBLE_DEVICES``; ``repo_folder``: where the model's files are."""
        self.gpu = gpu
        self.descriptors: tuple[int, ...] = ()
        self.facts: dict[str, Any] = {}
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process = subprocess.Popen(
            [sys.executable, "-P", *HOLDER, str(theirs.fileno())],
            env=environment(settings),
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
        theirs.close()
        order = {"model_key": model_key, "dtype": dtype, "gpu": gpu, "walls": jail.required(settings)}
        protocol.send_packet(self._control, order | {"readable": [str(repo_folder)]})

    def loaded(self, wait_s: float) -> bool:
        """Whether the weights are on the GPU, after waiting at most ``wait_s``.

        Raises:
            LoadFailed: they could not be brought there; the sentence says why.
        """
        if self.facts:
            return True
        if not select.select([self._control], [], [], wait_s)[0]:
            return False
        packet = protocol.receive_packet(self._control)
        if packet is None:
            raise LoadFailed("the process loading its weights ended by itself (see the replica's log)")
        event, descriptors = packet
        if event.get("event") != "ready":
            raise LoadFailed(str(event.get("reason", "the process loading its weights answers nonsense")))
        self.facts, self.descriptors = event, tuple(descriptors)
        return True

    def restore(self) -> int:
        """Have the weights put right; how many bytes of them had changed. Only once whoever could write has ended.

        Raises:
            Unavailable: the holder is gone, or does not answer.
        """
        try:
            protocol.send_packet(self._control, {"op": "restore"})
            answered = select.select([self._control], [], [], RESTORE_S)[0]
            packet = protocol.receive_packet(self._control) if answered else None
            if packet is not None:
                return int(packet[0]["bytes"])
        except (OSError, ValueError, KeyError, TypeError):
            raise Unavailable("The process holding the weights answers nonsense.") from None
        raise Unavailable("The process holding the weights is gone.")

    def stop(self) -> None:
        """End it; the memory is free once the last runner that maps it has ended too."""
        end(self.process, self._control)
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = ()


def usage(holder: HolderProcess | None, job_bytes: int) -> dict[str, dict[str, float]]:
    """What ``meta`` tells of a job that took so much of a GPU beside the weights, by its own word; 0: unknown."""
    if holder is None or not job_bytes:
        return {"max_mem_by_gpu": {}, "max_mem_pct_by_gpu": {}}
    total = holder.facts["total_bytes"]
    peak = min(holder.facts["size_bytes"] + job_bytes, total)
    return {"max_mem_by_gpu": {holder.gpu: peak}, "max_mem_pct_by_gpu": {holder.gpu: round(100 * peak / total, 2)}}
