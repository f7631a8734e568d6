"""The policy: what a file of it may say, whose limits are whose, and one sentence for what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from ndif_models.errors import SettingError
from ndif_tasks.sandbox import policy


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return tmp_path / "policy.yaml"


def load(path: Path, text: str) -> policy.Policy:
    path.write_text(text)
    return policy.load(str(path))


def test_the_policy_that_ships_limits_everybody_alike() -> None:
    found = policy.load("")
    assert found.limits(["developer"]) == found.limits([]) == ("default", found.default)
    assert found.default.threads and found.default.open_files and found.default.scratch_bytes
    assert found.default.modules is None


def test_what_a_file_leaves_out_is_as_in_the_one_that_ships(written: Path) -> None:
    found = load(written, "default: {cpu_s: 7}")
    assert found.default == policy.load("").default.model_copy(update={"cpu_s": 7})
    assert load(written, "").default == policy.load("").default


def test_the_first_tag_of_the_file_that_a_key_has_counts(written: Path) -> None:
    found = load(written, "{default: {cpu_s: 7}, tags: {guest: {threads: 2}, staff: {cpu_s: 9}}}")
    name, limits = found.limits(["staff", "guest"])
    assert (name, limits.threads, limits.cpu_s) == ("guest", 2, 7)
    assert found.limits(["staff"])[1].cpu_s == 9
    assert found.limits(["stranger"]) == ("default", found.default)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("default: {cpus: 1}", "is wrong at default.cpus: there is no such limit; there are memory_bytes, cpu_s"),
        ("default: {cpu_s: -1}", "is wrong at default.cpu_s: "),
        ("default: {wall_s: .inf}", "is wrong at default.wall_s: "),
        ("default: {open_files: 3}", "is wrong at default.open_files: "),
        ("tags: {guest: {threads: many}}", "is wrong at tags.guest.threads: "),
        ("tags: {guest: 3}", "must have names and values under `tags.guest`"),
        ("default: [1]", "must have names and values under `default`"),
        ("guest: {}", "must have the sections `default` and `tags`, and no other"),
        ("[1, 2]", "must have the sections `default` and `tags`, and no other"),
        ("just words", "must have the sections `default` and `tags`, and no other"),
        ("a: [", "cannot be read: it is no YAML"),
        ("a: \0", "cannot be read: it is no YAML"),
    ],
)
def test_a_file_that_is_no_policy_is_one_sentence(written: Path, text: str, sentence: str) -> None:
    with pytest.raises(SettingError) as told:
        load(written, text)
    assert str(written) in str(told.value) and sentence in str(told.value)


def test_a_file_that_is_not_there_is_one_sentence(written: Path) -> None:
    with pytest.raises(SettingError, match="cannot be read: No such file or directory"):
        policy.load(str(written))
    written.write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(SettingError, match="cannot be read: it is no YAML"):
        policy.load(str(written))
