"""Fixtures: made models, one running farm for the whole run, and nnsight models that reach it.

The client under test is the real one, in this process: it finds the farm's Hub mirror through ``HF_ENDPOINT``, which
huggingface_hub reads when first imported, so nnsight and transformers are imported only inside fixtures and tests.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from ndif_models.settings import Settings
from ndif_tasks import jobs as jobs_module
from ndif_tasks.jobs import Jobs
from tests import models
from tests.farm import Farm, serving
from tests.valkey import valkey

THREADS = 2


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which models are made once per run."""
    return tmp_path_factory.mktemp("made")


@pytest.fixture(scope="session")
def farm(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """A running farm that serves the tiny GPT-2 and the tiny Llama and holds their adapters."""
    running = Farm(tmp_path_factory.mktemp("farm"))
    for arch in ("gpt2", "llama"):
        models.hold(arch, "tiny", made, running.hf_home)
    with serving(running, models.GPT2, models.LLAMA) as served:
        yield served


@pytest.fixture(scope="session")
def client(farm: Farm, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """nnsight, set up to talk to the farm and to nothing else."""
    os.environ["HF_HOME"] = str(tmp_path_factory.mktemp("client"))
    os.environ["HF_ENDPOINT"] = f"{farm.url}/hub"
    os.environ["NNSIGHT_CONFIG"] = os.devnull
    os.environ.pop("NDIF_API_KEY", None)
    os.environ["NDIF_HOST"] = farm.url
    import nnsight
    import torch

    torch.set_num_threads(THREADS)
    nnsight.CONFIG.API.HOST = farm.url
    nnsight.CONFIG.APP.REMOTE_LOGGING = False
    return nnsight


@pytest.fixture(scope="session")
def remote_model(client: Any) -> Callable[[str], Any]:
    """A client's weightless model by repository."""
    made: dict[str, Any] = {}

    def model(repo_id: str) -> Any:
        if repo_id not in made:
            made[repo_id] = client.TransformersModel(repo_id, task="text-generation")
        return made[repo_id]

    return model


@pytest.fixture(scope="session")
def local_model(client: Any, made: Path) -> Callable[[str], Any]:
    """The same model with its weights, in this process."""
    loaded: dict[str, Any] = {}

    def model(repo_id: str) -> Any:
        if repo_id not in loaded:
            size, arch = repo_id.removeprefix("ndif-tests/").split("-")
            folder = models.made_model(arch, size, made)
            loaded[repo_id] = client.TransformersModel(str(folder), task="text-generation", dispatch=True)
            loaded[repo_id]._module.eval().requires_grad_(False)
        return loaded[repo_id]

    return model


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    """One small broker for the module."""
    with valkey(tmp_path_factory.mktemp("valkey")) as client:
        yield client


@pytest.fixture
def tickets(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tickets sent, instead of Celery's messages."""
    sent: list[str] = []
    monkeypatch.setattr(jobs_module, "send_ticket", sent.append)
    return sent


@pytest.fixture
def jobs(broker: Redis, tickets: list[str]) -> Jobs:
    """The jobs of an empty broker."""
    broker.flushall()
    return Jobs(broker, Settings(lease_s=30, max_attempts=3))
