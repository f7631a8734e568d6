"""The farm's Hub, judged by the real clients: nnsight, transformers, peft and huggingface_hub in their own process."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from werkzeug.serving import make_server

from ndif_models import snapshots
from ndif_models.settings import Settings
from ndif_web.routes.hub import blueprint

from . import models

GPT2 = "openai-community/gpt2"
SECRET = "not for clients"

#: What a client runs first: errors come back as JSON, by the names of their classes.
PRELUDE = """
import json
from huggingface_hub import HfApi, hf_hub_download, snapshot_download
def error(call):
    try:
        call()
    except Exception as e:
        return [[c.__name__ for c in type(e).__mro__], str(e)]
"""


@pytest.fixture(scope="module")
def hf_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with two models, their adapters, and traps."""
    made, home = tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("hf")
    for arch, name in (("gpt2", GPT2), ("llama", models.LLAMA)):
        models.hold(arch, "tiny", made, home, name)
    place = _place(home, GPT2)
    (home / "secret.txt").write_text(SECRET)
    (place / "leak.txt").symlink_to(home / "secret.txt")
    (place / "leaks").symlink_to(home)
    (place / "nested").mkdir()
    (place / "nested" / "page.html").write_text("<script>alert(1)</script>")
    shutil.copytree(made / "tiny-gpt2", home / "hub" / "models--org--arriving" / "snapshots" / ("a" * 40))
    (home / "hub" / "models--org--arriving" / "snapshots" / ("a" * 40) / "model.safetensors").unlink()
    return home


def _place(hf_home: Path, repo_id: str) -> Path:
    found = snapshots.find(hf_home, repo_id)
    assert found
    return snapshots.folder(hf_home, found)


def _serve(settings: Settings) -> Iterator[str]:
    app = Flask("hub")
    app.register_blueprint(blueprint)
    app.config["NDIF_SETTINGS"] = settings
    server = make_server("127.0.0.1", 0, app, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.port}"
    server.shutdown()


@pytest.fixture(scope="module")
def farm(hf_home: Path) -> Iterator[str]:
    """A farm that keeps its weights to itself."""
    yield from _serve(Settings(hf_home=hf_home))


@pytest.fixture(scope="module")
def generous_farm(hf_home: Path) -> Iterator[str]:
    """A farm that serves weights too."""
    yield from _serve(Settings(hf_home=hf_home, hub_serve_weights=True))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Any]:
    """Runs code as somebody with an empty cache and nothing set but HF_ENDPOINT; returns the JSON it prints last."""

    def run(address: str, code: str) -> Any:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "NDIF_"))}
        mine = {"HF_ENDPOINT": f"http://{address}/hub", "HF_HOME": str(tmp_path_factory.mktemp("client"))}
        argv = [sys.executable, "-c", PRELUDE + code]
        done = subprocess.run(argv, env=kept | mine, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def _ask(address: str, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """One request with the path as it stands: no client in between that would tidy it up."""
    connection = http.client.HTTPConnection(address, timeout=20)
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    return response.status, dict(response.getheaders()), response.read()


def test_nnsight_builds_its_meta_models_and_canonical_keys(farm: str, client: Callable[[str, str], Any]) -> None:
    code = """
from nnsight import TransformersModel
found = {}
for name in ("gpt2", "ndif-tests/tiny-llama"):
    model = TransformersModel(name)
    text = "The quick brown fox"
    ids = model.tokenizer(text).input_ids
    found[name] = [model.to_model_key(), model.tokenizer.decode(ids, skip_special_tokens=True) == text,
                   {p.device.type for p in model._module.parameters()} == {"meta"}, model._module.config.model_type]
model = TransformersModel("openai-community/gpt2", peft="openai-community/gpt2-lora")
found["lora"] = type(model._module.transformer.h[0].attn.c_attn).__module__
from transformers import AutoConfig, AutoTokenizer, GenerationConfig
found["stock"] = [AutoConfig.from_pretrained("gpt2").n_layer, AutoTokenizer.from_pretrained("gpt2").eos_token,
                  GenerationConfig.from_pretrained("gpt2").eos_token_id]
found["missing"] = error(lambda: TransformersModel("org/none"))
print(json.dumps(found))
"""
    found = client(farm, code)
    prefix = "nnsight.modeling.transformers.TransformersModel:"
    for asked, repo_id, kind in (("gpt2", GPT2, "gpt2"), (models.LLAMA, models.LLAMA, "llama")):
        key, same_text, on_meta, model_type = found[asked]
        assert json.loads(key.removeprefix(prefix)) == {"repo_id": repo_id, "revision": None, "task": "text-generation"}
        assert same_text and on_meta and model_type == kind
    assert found["lora"].startswith("peft.")
    assert found["stock"] == [3, "<|endoftext|>", 0]
    assert "holds no model called 'org/none'" in found["missing"][1]


def test_is_model_running_matches_by_the_canonical_id(farm: str, client: Callable[[str, str], Any]) -> None:
    code = f"""
import nnsight.ndif as ndif
ndif._get = lambda path: {{"deployments": {{"x": {{"repo_id": "{GPT2}", "application_state": "RUNNING"}}}}}}
print(json.dumps([ndif.is_model_running("gpt2"), ndif.is_model_running("ndif-tests/tiny-llama")]))
"""
    assert client(farm, code) == [True, False]


def test_huggingface_hub_reads_what_a_model_is_and_raises_its_own_errors(
    farm: str, client: Callable[[str, str], Any], hf_home: Path
) -> None:
    code = """
api = HfApi()
info = api.model_info("gpt2", files_metadata=True)
print(json.dumps({
    "info": [info.id, info.sha, info.pipeline_tag, info.safetensors.total, info.library_name, info.last_modified.year],
    "sizes": {s.rfilename: s.size for s in info.siblings},
    "files": api.list_repo_files("gpt2"),
    "top": [type(e).__name__ for e in api.list_repo_tree("gpt2")],
    "exists": [api.repo_exists("gpt2"), api.repo_exists("org/none"), api.file_exists("gpt2", "config.json"),
               api.file_exists("gpt2", "none.json"), api.revision_exists("gpt2", "v9")],
    "no repo": error(lambda: api.model_info("org/none")),
    "arriving": error(lambda: api.model_info("org/arriving")),
    "no data set": error(lambda: api.dataset_info("org/none")),
    "no revision": error(lambda: hf_hub_download("gpt2", "config.json", revision="v9")),
    "no file": error(lambda: hf_hub_download("gpt2", "none.json")),
    "no folder": error(lambda: list(api.list_repo_tree("gpt2", "none"))),
    "weights": error(lambda: hf_hub_download("gpt2", "model.safetensors")),
    "nested": hf_hub_download("gpt2", "nested/page.html"),
}))
"""
    found = client(farm, code)
    held = snapshots.find(hf_home, GPT2)
    assert held
    assert found["info"][:3] == [GPT2, held.commit, "text-generation"]
    assert found["info"][3] == 146_352
    assert found["info"][4] == "transformers"
    assert found["sizes"]["model.safetensors"] == snapshots.weight_bytes(hf_home, held)
    assert found["files"] == list(found["sizes"])
    assert "nested/page.html" in found["files"] and not any("leak" in name for name in found["files"])
    assert found["top"].count("RepoFolder") == 1
    assert found["exists"] == [True, False, True, False, False]
    expected = {"no repo": "RepositoryNotFoundError", "arriving": "RepositoryNotFoundError"}
    expected |= {"no data set": "RepositoryNotFoundError", "no revision": "RevisionNotFoundError"}
    expected |= {"no file": "EntryNotFoundError", "no folder": "EntryNotFoundError", "weights": "HfHubHTTPError"}
    for what, name in expected.items():
        assert name in found[what][0], what
    assert "does not hand out weights" in found["weights"][1]


def test_weights_are_served_where_the_farm_allows_it(generous_farm: str, client: Callable[[str, str], Any]) -> None:
    code = """
from nnsight import TransformersModel
import torch
def norm(**kwargs):
    model = TransformersModel("gpt2", dispatch=True, **kwargs)
    with model.trace("Hello world"):
        logits = model.lm_head.output.save()
    return logits.norm().item()
print(json.dumps([norm(), norm(peft="openai-community/gpt2-lora")]))
"""
    plain, adapted = client(generous_farm, code)
    assert plain > 0 and plain != adapted


def test_people_see_why_weights_are_refused(farm: str, client: Callable[[str, str], Any]) -> None:
    code = """
from transformers import AutoModelForCausalLM
print(json.dumps(error(lambda: AutoModelForCausalLM.from_pretrained("gpt2"))))
"""
    assert "NDIF_HUB_SERVE_WEIGHTS" in client(farm, code)[1]


@pytest.mark.parametrize(
    "path",
    [
        "/hub/gpt2/resolve/main/../../../../secret.txt",
        "/hub/gpt2/resolve/main/..%2f..%2f..%2f..%2fsecret.txt",
        "/hub/gpt2/resolve/main/%2e%2e/%2e%2e/%2e%2e/%2e%2e/secret.txt",
        "/hub/gpt2/resolve/main/nested/../../../../../secret.txt",
        "/hub/gpt2/resolve/main//etc/passwd",
        "/hub/gpt2/resolve/main/%2fetc%2fpasswd",
        "/hub/gpt2/resolve/main/leak.txt",
        "/hub/gpt2/resolve/main/leaks/secret.txt",
        "/hub/gpt2/resolve/main/nested",
        "/hub/gpt2/resolve/main/",
        "/hub/gpt2/resolve/main",
        "/hub/gpt2/resolve/main/config.json%00.txt",
        "/hub/gpt2/resolve/..%2f..%2frefs/main",
        "/hub/gpt2/resolve/../blobs",
        "/hub/../secret.txt",
        "/hub/..%2f..%2fsecret.txt",
        "/hub/models--openai-community--gpt2/resolve/main/config.json",
        "/hub/org/arriving/resolve/main/config.json",
        f"/hub/org/arriving/resolve/{'a' * 40}/config.json",
        "/hub/api/models/..%2f..%2fsecret.txt",
        "/hub/api/models/gpt2/tree/main/..",
        "/hub/api/models/gpt2/tree/..%2f..",
        "/hub/api/models/gpt2/revision/..%2frefs%2fmain",
        "/hub/api/models/%00",
        "/hub/api/models/gpt2/revision/%ff%fe",
        "/hub/api/models/%E2%82%AC%0d%0aX-Evil:%201/x",
    ],
)
def test_nothing_outside_a_held_snapshot_is_served(path: str, farm: str) -> None:
    for method in ("GET", "HEAD"):
        status, headers, body = _ask(farm, path, method)
        assert 300 <= status < 500
        assert SECRET.encode() not in body and b"root:" not in body
        assert "X-Evil" not in headers and b"<html" not in body.lower()


def test_a_head_tells_what_a_client_caches_by_and_a_get_sends_it(farm: str, hf_home: Path) -> None:
    path, file = "/hub/gpt2/resolve/main/tokenizer.json", _place(hf_home, GPT2) / "tokenizer.json"
    status, headers, body = _ask(farm, path, "HEAD")
    assert (status, body) == (200, b"")
    held = snapshots.find(hf_home, GPT2)
    assert held and headers["X-Repo-Commit"] == held.commit
    assert headers["ETag"] == headers["X-Linked-ETag"] == f'"{file.resolve().name}"'
    assert headers["Content-Length"] == headers["X-Linked-Size"] == str(file.stat().st_size)
    assert _ask(farm, path)[2] == file.read_bytes()
    assert _ask(farm, path, **{"If-None-Match": headers["ETag"]})[0] == 304


def test_a_broken_download_goes_on_where_it_stopped(farm: str, hf_home: Path) -> None:
    path, file = "/hub/gpt2/resolve/main/tokenizer.json", _place(hf_home, GPT2) / "tokenizer.json"
    size = file.stat().st_size
    status, headers, body = _ask(farm, path, Range="bytes=1000-")
    assert (status, body) == (206, file.read_bytes()[1000:])
    assert headers["Content-Range"] == f"bytes 1000-{size - 1}/{size}"
    assert _ask(farm, path, Range=f"bytes={size + 1}-")[0] == 416


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_weights_stay_here_by_every_road(method: str, farm: str) -> None:
    status, headers, body = _ask(farm, "/hub/gpt2/resolve/main/model.safetensors", method, Range="bytes=0-99")
    assert status == 403 if method == "GET" else not body
    assert b"transformer.wte" not in body
    if method == "GET":
        assert headers["X-Error-Message"] == json.loads(body)["error"]


def test_a_page_in_a_model_never_runs_as_the_farms_own(farm: str) -> None:
    _, headers, _ = _ask(farm, "/hub/gpt2/resolve/main/nested/page.html")
    assert headers["Content-Type"] == "application/octet-stream"
    assert headers["Content-Disposition"].startswith("attachment")
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_nothing_can_be_written(farm: str) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert 400 <= _ask(farm, "/hub/gpt2/resolve/main/config.json", method)[0] < 500
        assert 400 <= _ask(farm, "/hub/api/models/gpt2", method)[0] < 500
