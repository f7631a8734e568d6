"""What measures share: one farm, one null farm, one client process, each made when first asked for.

The client is stock nnsight in this process; where it sends is ``nnsight.CONFIG.API.HOST``, the setting people use.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

from ndif_models.snapshots import import_folder
from tests import models, real_model
from tests.conftest import THREADS
from tests.farm import Farm

from .null_farm import NullFarm
from .sender import Recorded, Sender

BIG = "ndif-tests/124m-gpt2"


class Bench:
    """One run. Everything it starts ends with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made = folder / "made"
        self._ends = ExitStack()
        self._deployed: set[str] = set()
        self._here: dict[str, Any] = {}

    def close(self) -> None:
        """Stop what was started."""
        self._ends.close()

    @cached_property
    def farm(self) -> Farm:
        """The one farm of this run, with nothing deployed."""
        farm = Farm(self.folder / "farm")
        for size in ("tiny", "124m"):
            models.hold("gpt2", size, self.made, farm.hf_home)
        if real_model.installed():
            import_folder(real_model.folder(), real_model.REPO_ID, farm.hf_home)
        self._ends.callback(farm.stop)
        return farm.start()

    @cached_property
    def null(self) -> NullFarm:
        """The farm that does nothing."""
        return self._ends.enter_context(NullFarm())

    @cached_property
    def client(self) -> Any:
        """nnsight, told of this farm before it is imported."""
        os.environ |= {"HF_HOME": str(self.folder / "client"), "HF_ENDPOINT": f"{self.farm.url}/hub"}
        # Idle threads sleep, as in the farm's runners; spinning ones would take the cores from the farm beside them.
        os.environ |= {"NNSIGHT_CONFIG": os.devnull, "NDIF_HOST": self.farm.url, "OMP_WAIT_POLICY": "passive"}
        os.environ.pop("NDIF_API_KEY", None)
        import nnsight
        import torch

        torch.set_num_threads(THREADS)
        nnsight.CONFIG.APP.REMOTE_LOGGING = False
        self.send_to(self.farm.url)
        return nnsight

    def send_to(self, url: str) -> None:
        """Where ``remote=True`` goes from now on."""
        import nnsight

        nnsight.CONFIG.API.HOST = url

    def remote(self, repo_id: str) -> Any:
        """A client's weightless model, served by the farm."""
        if repo_id not in self._deployed:
            self.farm.ndif("deploy", repo_id)
            self._deployed.add(repo_id)
        return self.client.TransformersModel(repo_id, task="text-generation")

    def local(self, repo_id: str) -> Any:
        """The same model with its weights, in this process."""
        if repo_id not in self._here:
            folder = real_model.folder() if repo_id == real_model.REPO_ID else self._made(repo_id)
            model = self.client.TransformersModel(str(folder), task="text-generation", dispatch=True)
            model._module.eval().requires_grad_(False)
            self._here[repo_id] = model
        return self._here[repo_id]

    def _made(self, repo_id: str) -> Path:
        size = repo_id.partition("/")[2].partition("-")[0]
        return models.made_model("gpt2", size, self.made)

    def record(self, call: Callable[[], object]) -> Recorded:
        """The request that a remote call makes, as the client sent it, and the farm's answer to it.

        The null farm answers with the same frame from now on.
        """
        self.null.answer_with(b"")
        self.send_to(self.null.url)
        try:
            call()
        except self.client.intervention.backends.remote.RemoteError:
            pass
        finally:
            self.send_to(self.farm.url)
        recorded = Recorded(*self.null.recorded())
        with Sender(self.farm.url) as sender:
            recorded.frame = sender.send(recorded)
        self.null.answer_with(recorded.frame)
        return recorded

    def on_null(self, call: Callable[[], object]) -> float:
        """Seconds that a remote call takes of a farm that does nothing."""
        self.send_to(self.null.url)
        try:
            return seconds(call)
        finally:
            self.send_to(self.farm.url)


def seconds(call: Callable[[], object]) -> float:
    """How long a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
