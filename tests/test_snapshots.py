"""What the farm holds: import, find, resolve and download, on made models and a real mirror."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from flask import Flask
from werkzeug.serving import make_server

from ndif_models import snapshots, weights
from ndif_models.errors import BadRequest, Conflict, Forbidden, NdifError, NotFound, SettingError, Unavailable
from ndif_models.settings import Settings
from ndif_web.routes.hub import blueprint

from . import models

CLOSED_PORT = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to keep made models in."""
    return tmp_path_factory.mktemp("made")


@pytest.fixture
def source(made: Path, tmp_path: Path) -> Path:
    """A tiny GPT-2's folder, for one test to spoil."""
    return Path(shutil.copytree(models.made_model("gpt2", "tiny", made), tmp_path / "source"))


@pytest.fixture
def hf_home(tmp_path: Path) -> Path:
    """An empty cache."""
    return tmp_path / "hf"


def test_an_imported_model_is_held_and_found(source: Path, hf_home: Path) -> None:
    imported = snapshots.import_folder(source, "org/name", hf_home)
    assert snapshots.held(hf_home) == [imported]
    assert snapshots.find(hf_home, "org/name") == imported
    assert snapshots.find(hf_home, "org/name", imported.commit) is not None
    assert imported.kind == "model"
    assert imported.size_bytes == sum(path.stat().st_size for path in source.iterdir())
    assert snapshots.weight_bytes(hf_home, imported) == (source / "model.safetensors").stat().st_size


@pytest.mark.parametrize(("mode", "linked"), [(0o644, True), (0o600, False)])
def test_large_weights_are_linked_when_everybody_may_read_them(
    source: Path, hf_home: Path, monkeypatch: pytest.MonkeyPatch, mode: int, linked: bool
) -> None:
    monkeypatch.setattr(snapshots, "_LINK_BYTES", 1)
    (source / "model.safetensors").chmod(mode)
    imported = snapshots.import_folder(source, "org/name", hf_home)
    told = (snapshots.folder(hf_home, imported) / "model.safetensors").stat()
    assert told.st_mode & 0o777 == 0o644
    assert (told.st_ino == (source / "model.safetensors").stat().st_ino) is linked


def test_a_name_that_differs_only_in_capitals_from_a_held_one_is_refused(source: Path, hf_home: Path) -> None:
    snapshots.import_folder(source, "org/name", hf_home)
    with pytest.raises(Conflict, match="org/name is held here already"):
        snapshots.import_folder(source, "Org/Name", hf_home)


@pytest.mark.parametrize("text", [b"{", b"[]", b"\xff"])
def test_a_config_that_is_no_json_object_is_refused(text: bytes, source: Path, hf_home: Path) -> None:
    (source / "config.json").write_bytes(text)
    with pytest.raises(BadRequest, match=r"config\.json is no JSON object"):
        snapshots.import_folder(source, "org/name", hf_home)


def test_a_file_whose_name_is_no_text_is_left_out(source: Path, hf_home: Path) -> None:
    (source / os.fsdecode(b"od\xffd.json")).write_text("{}")
    imported = snapshots.import_folder(source, "org/name", hf_home)
    assert [name for name in os.listdir(snapshots.folder(hf_home, imported)) if name.startswith("od")] == []


def test_a_place_that_cannot_be_written_is_one_sentence(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingError, match=r"HF_HOME=.*Not a directory"):
        snapshots.import_folder(source, "org/name", tmp_path / "file")


def test_an_imported_adapter_is_held_as_one(made: Path, hf_home: Path) -> None:
    lora = models.made_lora("gpt2", "tiny", made)
    assert snapshots.import_folder(lora, "org/lora", hf_home).kind == "adapter"


def test_stock_transformers_loads_an_imported_model_by_its_repo_id_without_a_network(made: Path, hf_home: Path) -> None:
    for arch in ("gpt2", "llama"):
        models.hold(arch, "tiny", made, hf_home)
    code = (
        "from transformers import AutoModelForCausalLM as M, AutoTokenizer as T\n"
        "from peft import PeftModel as P\n"
        "for name in ('ndif-tests/tiny-gpt2', 'ndif-tests/tiny-llama'):\n"
        "    model, inputs = M.from_pretrained(name), T.from_pretrained(name)('Hello world', return_tensors='pt')\n"
        "    before = model(**inputs).logits\n"
        "    assert (P.from_pretrained(model, name + '-lora')(**inputs).logits - before).abs().max() > 0.01\n"
        "    assert model.generation_config.eos_token_id is not None\n"
    )
    environment = {**os.environ, "HF_HOME": str(hf_home), "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=180)


def test_importing_the_same_again_changes_nothing_and_new_contents_move_main(source: Path, hf_home: Path) -> None:
    first = snapshots.import_folder(source, "org/name", hf_home)
    assert snapshots.import_folder(source, "org/name", hf_home) == first
    config = source / "config.json"
    config.write_text(config.read_text() + "\n")
    second = snapshots.import_folder(source, "org/name", hf_home)
    assert second.commit != first.commit
    assert snapshots.find(hf_home, "org/name") == second
    # The old contents are still there for whoever names their commit.
    assert [one.revision for one in snapshots.held(hf_home)] == sorted([first.commit, "main"])


def test_an_import_leaves_nothing_but_the_repository(source: Path, hf_home: Path) -> None:
    snapshots.import_folder(source, "org/name", hf_home)
    assert [path.name for path in (hf_home / "hub").iterdir()] == ["models--org--name"]


def test_an_import_leaves_out_hidden_files_and_weights_in_other_formats(source: Path, hf_home: Path) -> None:
    (source / ".git").mkdir()
    for name in (".git/config", "pytorch_model.bin", "optimizer.pt", "model.onnx"):
        (source / name).write_text("x")
    place = snapshots.folder(hf_home, snapshots.import_folder(source, "org/name", hf_home))
    assert not {".git", "pytorch_model.bin", "optimizer.pt", "model.onnx"} & {path.name for path in place.iterdir()}


def _without_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def _without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _with_half_the_weights(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 300_000)


def _with_no_safetensors_in_it(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\xff" * 64)


def _with_a_shard_missing(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))


def _with_a_shard_outside(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder.parent / "model.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../model.safetensors"}}))


def _with_a_link_outside(folder: Path) -> None:
    (folder / "notes.txt").symlink_to("/etc/passwd")


SPOILED = (
    _without_config,
    _without_weights,
    _with_half_the_weights,
    _with_no_safetensors_in_it,
    _with_a_shard_missing,
    _with_a_shard_outside,
    _with_a_link_outside,
)


@pytest.mark.parametrize("spoil", SPOILED, ids=lambda spoil: spoil.__name__.strip("_"))
def test_a_folder_is_refused_and_nothing_is_held(spoil: object, source: Path, hf_home: Path) -> None:
    assert callable(spoil)
    spoil(source)
    with pytest.raises(BadRequest) as refusal:
        snapshots.import_folder(source, "org/name", hf_home)
    assert str(refusal.value).count("\n") == 0
    assert snapshots.held(hf_home) == []


@pytest.mark.parametrize("name", ["name", "a/b/c", "../x", "org/..", "org/a--b", "org/", "/x", "org/a b", ""])
def test_an_import_under_an_impossible_name_is_refused(name: str, source: Path, hf_home: Path) -> None:
    with pytest.raises(BadRequest):
        snapshots.import_folder(source, name, hf_home)


def test_a_download_in_progress_is_not_held(source: Path, hf_home: Path) -> None:
    place = snapshots.folder(hf_home, snapshots.import_folder(source, "org/name", hf_home))
    (place / "model.safetensors").unlink()
    assert snapshots.held(hf_home) == []
    assert not snapshots.is_complete(hf_home, "org/name")
    with pytest.raises(NotFound):
        snapshots.resolve(hf_home, "org/name")


def test_a_cache_that_was_never_made_holds_nothing(hf_home: Path) -> None:
    assert snapshots.held(hf_home) == []
    assert snapshots.find(hf_home, "../../etc", "../passwd") is None


def test_names_resolve_when_unique(source: Path, hf_home: Path) -> None:
    for name in ("openai-community/gpt2", "a/twin", "b/twin", "c/Cased", "d/cased"):
        snapshots.import_folder(source, name, hf_home)
    for asked in ("gpt2", "GPT2", "openai-community/gpt2", "OpenAI-Community/GPT2"):
        assert snapshots.resolve(hf_home, asked) == "openai-community/gpt2"
    assert snapshots.resolve(hf_home, "Cased") == "c/Cased"
    with pytest.raises(Conflict, match="a/twin or b/twin"):
        snapshots.resolve(hf_home, "twin")
    with pytest.raises(NotFound, match="holds a/twin"):
        snapshots.resolve(hf_home, "nothing-such")


def test_of_a_repository_with_every_format_only_one_copy_of_the_weights_is_wanted() -> None:
    plain = ["config.json", "tokenizer.json", "model.safetensors.index.json", "original/params.json"]
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    others = (
        "consolidated.safetensors flax_model.msgpack model.fp16.safetensors onnx/decoder_model.onnx pytorch_model.bin"
    )
    others += " original/consolidated.00.pth rust_model.ot tf_model.h5 64.tflite .gitattributes"
    assert weights.wanted([*plain, *shards, *others.split()]) == sorted(plain + shards)
    assert weights.wanted(["pytorch_model.bin", "tf_model.h5", "training_args.bin"]) == ["pytorch_model.bin"]


@pytest.fixture
def hub(made: Path, tmp_path: Path) -> Iterator[str]:
    """The address of another farm's Hub, which serves weights too."""
    app = Flask("hub")
    app.register_blueprint(blueprint)
    app.config["NDIF_SETTINGS"] = Settings(hf_home=tmp_path / "other", hub_serve_weights=True)
    models.hold("gpt2", "tiny", made, tmp_path / "other", "openai-community/gpt2")
    server = make_server("127.0.0.1", 0, app, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.port}/hub"
    server.shutdown()


def test_a_download_is_held_under_the_hubs_name_and_later_needs_no_hub(hub: str, hf_home: Path) -> None:
    told: list[tuple[int, int]] = []
    got = snapshots.download("gpt2", "main", hf_home, "", hub, lambda done, total: told.append((done, total)))
    assert (got.repo_id, got.revision, got.kind) == ("openai-community/gpt2", "main", "model")
    assert told[-1] == (got.size_bytes, got.size_bytes)
    assert snapshots.held(hf_home) == [got]
    assert snapshots.download("openai-community/gpt2", "main", hf_home, "", CLOSED_PORT) == got


def test_a_download_of_what_the_hub_lacks_says_so(hub: str, hf_home: Path) -> None:
    with pytest.raises(NotFound, match="no model 'org/none'"):
        snapshots.download("org/none", "main", hf_home, "", hub)
    with pytest.raises(NotFound, match="no revision 'v9'"):
        snapshots.download("gpt2", "v9", hf_home, "", hub)
    with pytest.raises(BadRequest):
        snapshots.download("../x", "main", hf_home, "", hub)
    assert snapshots.held(hf_home) == []


def test_a_hub_that_cannot_be_reached_is_one_sentence(hf_home: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be reached") as refusal:
        snapshots.download("org/name", "main", hf_home, "", CLOSED_PORT)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [(403, "GatedRepo", Forbidden), (401, "", Forbidden), (403, "", Forbidden), (500, "", Unavailable)],
)
def test_a_hub_that_refuses_is_one_sentence(status: int, code: str, error: type[NdifError], hf_home: Path) -> None:
    class Refuse(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refuse) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with pytest.raises(error) as refusal:
                snapshots.download("org/name", "main", hf_home, "", f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
    assert "\n" not in str(refusal.value)
    assert ("HF_TOKEN" in str(refusal.value)) == (error is Forbidden)


def test_the_same_model_is_made_twice_alike(tmp_path: Path) -> None:
    for name in ("a", "b"):
        models.made_model("llama", "tiny", tmp_path / name)
    for path in sorted((tmp_path / "a" / "tiny-llama").iterdir()):
        assert path.read_bytes() == (tmp_path / "b" / "tiny-llama" / path.name).read_bytes()
