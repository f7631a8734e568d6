"""What operators do to a running farm: more replicas, fresh ones, the same farm from a file; and what they see."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import blocks, models
from tests.farm import Farm, serving
from tests.sender import Sender, record

OTHER = "ndif-tests/other-gpt2"


@pytest.fixture(scope="module")
def own(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """A farm of this module's own, which serves the tiny GPT-2."""
    running = Farm(tmp_path_factory.mktemp("own"))
    models.hold("gpt2", "tiny", made, running.hf_home)
    models.hold("gpt2", "tiny", made, running.hf_home, OTHER)
    with serving(running, models.GPT2) as served:
        yield served


def ids(farm: Farm) -> list[str]:
    """The replicas of the tiny GPT-2 that serve."""
    return [one["replica_id"] for one in farm.replicas(models.GPT2) if one["application_state"] == "RUNNING"]


def test_replicas_are_added_and_taken_away(own: Farm) -> None:
    told = own.ndif("scale", "tiny-gpt2", "2").stdout
    assert told.startswith(f"{models.GPT2} is ready (2 replicas")
    first = ids(own)
    assert len(first) == 2
    own.ndif("scale", models.GPT2, "1")
    own.ndif("restart", models.GPT2)  # returns when those told to stop are gone
    assert len(ids(own)) == 1 and ids(own)[0] not in first


def test_replicas_are_replaced_and_their_job_is_finished_first(own: Farm, remote_model: Callable[[str], Any]) -> None:
    model, (before,) = remote_model(models.GPT2), ids(own)
    slow = Sender(own.url, model.to_model_key(), record(model, blocks.slow))
    id = slow.submit()
    slow.wait_printed(id, "running")
    own.ndif("restart", models.GPT2, "--replica", before)
    (after,) = ids(own)
    assert after != before
    assert "logits" in slow.values(id) and own.redis().hget(f"ndif:job:{id}", "attempt") == b"1"
    assert own.ndif("logs", "job", id).stdout == "running\n"
    assert own.ndif("logs", "job", id, "-n", "0").stdout == ""


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("restart", "nope"), "nope is not deployed. Deployed: ndif-tests/tiny-gpt2."),
        (("restart", models.GPT2, "--replica", "r-0"), "r-0 is not run by this farm. Deployed: ndif-tests/tiny-gpt2."),
        (("scale", "nope", "2"), "nope is not deployed. Deployed: ndif-tests/tiny-gpt2."),
        (("logs", "job"), "Name one SERVICE, or `job` and the job's id."),
        (("logs", "api", "x"), "Name one SERVICE, or `job` and the job's id."),
        (("logs", "job", "x"), "There is no such job: it never was, or its values have expired."),
        (("deploy",), "Nothing to deploy: name a CHECKPOINT, or a file of them with -f."),
    ],
)
def test_what_cannot_be_done_is_one_sentence(own: Farm, words: tuple[str, ...], sentence: str) -> None:
    done = own.ndif(*words, check=False)
    assert (done.returncode, done.stderr) == (1, f"Error: {sentence}\n")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("models: 3", "must have a list `models`, each with a `checkpoint`; `ndif export` writes one."),
        ("models: [{dtype: x}]", "must have a list `models`, each with a `checkpoint`; `ndif export` writes one."),
        ("models: [", "cannot be read: it is no YAML."),
        (None, "cannot be read: No such file or directory."),
    ],
)
def test_a_file_that_is_no_list_of_models_is_refused(own: Farm, text: str | None, sentence: str) -> None:
    path = own.home / "models.yaml"
    path.unlink(missing_ok=True)
    if text is not None:
        path.write_text(text)
    done = own.ndif("deploy", "-f", str(path), check=False)
    assert (done.returncode, done.stderr) == (1, f"Error: {path} {sentence}\n")


def test_an_option_that_there_is_not_is_named(own: Farm) -> None:
    (own.home / "models.yaml").write_text(f"models: [{{checkpoint: {OTHER}, colour: red}}]")
    done = own.ndif("deploy", "-f", "models.yaml", check=False)
    assert done.returncode == 1 and "colour" in done.stderr


def test_what_is_served_is_exported_and_served_again_with_every_option(own: Farm) -> None:
    own.ndif("deploy", OTHER, "--dtype", "bfloat16")
    text = own.ndif("export").stdout
    common = {"revision": "main", "task": "text-generation"}
    assert yaml.safe_load(text) == {
        "models": [
            {"checkpoint": models.GPT2, **common, "replicas": 1},
            {"checkpoint": OTHER, **common, "dtype": "bfloat16", "replicas": 1},
        ]
    }
    (own.home / "models.yaml").write_text(text)
    own.ndif("evict", OTHER)
    own.ndif("deploy", "-f", "models.yaml")
    assert own.ndif("export").stdout == text
    assert {one["dtype"] for one in own.replicas(OTHER)} == {"bfloat16"}


def test_machines_are_shown_with_what_they_have(own: Farm) -> None:
    heading, row = own.ndif("nodes").stdout.splitlines()
    assert heading.split() == ["NODE", "CPUS", "MEMORY", "FREE", "GPUS", "REPLICAS"]
    assert row.split()[0] == "test" and row.split()[-1] == "2"
    assert '"test"' in own.ndif("nodes", "--json").stdout
