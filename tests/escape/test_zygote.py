"""A model's own code runs in the zygote, which is confined too: what it tries there, it tells in the config."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ndif_models import snapshots
from ndif_models.errors import LoadFailed
from ndif_models.keys import ModelKey
from ndif_models.settings import load
from ndif_tasks.replica.zygote_process import ZygoteProcess
from tests import models

REPO = "ndif-tests/own-code"
CODE = """
import os
import signal
import socket

from transformers import GPT2Config, GPT2LMHeadModel

ATTEMPTS = {
    "read a file of the host": lambda: open("/etc/passwd").read(),
    "read another file of the models": lambda: open(os.environ["HF_HOME"] + "/other").read(),
    "write to the packages": lambda: open(os.path.dirname(os.__file__) + "/own_code.py", "w"),
    "write to the model": lambda: os.remove(os.environ["HF_HOME"] + "/hub/models--ndif-tests--own-code/refs/main"),
    "see another process": lambda: open("/proc/PID/cmdline").read(),
    "signal another process": lambda: os.kill(PID, 0),
    "connect": lambda: socket.create_connection(("127.0.0.1", PORT), 5),
    "take back a mount": lambda: run("mount", b"none", b"/usr/lib", None, 32 | 4096, None),
    "uncover the host": lambda: run("umount2", b"/usr/lib", 2),
    "be root": lambda: os.setuid(0),
    "make a device": lambda: os.mknod("/tmp/device", 0o600 | 0o020000, os.makedev(1, 1)),
}


def run(name, *given):
    import ctypes

    if getattr(ctypes.CDLL(None, use_errno=True), name)(*given) != 0:
        raise OSError(ctypes.get_errno(), name)


def outcome(attempt):
    try:
        attempt()
    except OSError as error:
        return type(error).__name__
    return "succeeded"


class OwnConfig(GPT2Config):
    model_type = "own"


class OwnModel(GPT2LMHeadModel):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        config.outcomes = {name: outcome(attempt) for name, attempt in ATTEMPTS.items()}
        config.environment = sorted(os.environ)
"""


@pytest.fixture
def facts(made: Path, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """What a zygote tells that has loaded a model with code of its own."""
    folder = shutil.copytree(models.made_model("gpt2", "tiny", made), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "architectures": ["OwnModel"]}
    config["auto_map"] = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    (folder / "config.json").write_text(json.dumps(config))
    hf_home = tmp_path / "hf"
    hf_home.mkdir()
    (hf_home / "other").write_text("somebody else's")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        code = CODE.replace("PID", str(os.getpid())).replace("PORT", str(listener.getsockname()[1]))
        (folder / "own.py").write_text(code)
        snapshots.import_folder(folder, REPO, hf_home)
        environ = {"HF_HOME": str(hf_home), "NDIF_SESSION_ROOT": str(tmp_path), "NDIF_API_KEY": "secret"}
        key = ModelKey(REPO, task="text-generation", trust_remote_code=True)
        zygote = ZygoteProcess(load(environ=environ, running_session=False), str(key), None, 1)
        try:
            assert zygote.loaded(120)
            yield zygote.facts
        finally:
            zygote.stop()


def test_a_models_own_code_loads_and_reaches_nothing(facts: dict[str, Any]) -> None:
    assert facts["config"]["architectures"] == ["OwnModel"]
    outcomes = facts["config"]["outcomes"]
    assert len(outcomes) == 11
    assert {name: how for name, how in outcomes.items() if how == "succeeded"} == {}
    assert not [name for name in facts["config"]["environment"] if name.startswith("NDIF_")]


@pytest.mark.skipif(os.geteuid() != 0, reason="only a farm started by root loads models as another user")
def test_a_model_that_only_root_may_read_is_one_sentence(made: Path, tmp_path: Path) -> None:
    held = models.hold("gpt2", "tiny", made, tmp_path, REPO)
    weights = (snapshots.folder(tmp_path, held) / "model.safetensors").resolve()
    weights.chmod(0o600)
    environ = {"HF_HOME": str(tmp_path), "NDIF_SESSION_ROOT": str(tmp_path)}
    zygote = ZygoteProcess(load(environ=environ, running_session=False), str(ModelKey(REPO)), None, 1)
    try:
        with pytest.raises(LoadFailed) as told:
            assert zygote.loaded(60)
    finally:
        zygote.stop()
    folder = snapshots.repo_folder(tmp_path, REPO)
    assert str(told.value).startswith(f"{folder}/")
    assert str(told.value).endswith(f" cannot be read by the user that loads models; `chmod -R o+rX {folder}` lets it")
