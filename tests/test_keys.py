"""Model keys as clients write them, and the queues they become."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndif_models.errors import BadRequest
from ndif_models.keys import DEFAULT_CLASS, KNOWN_CLASSES, ModelKey, new_id

part = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,20}[A-Za-z0-9_])?", fullmatch=True).filter(
    lambda s: not {"..", "--"} & {s[i : i + 2] for i in range(len(s))}
)
revision = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,40}", fullmatch=True).filter(lambda s: ".." not in s)
task = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,20}", fullmatch=True)
repo_id = st.one_of(part, st.tuples(part, part).map("/".join))
keys = st.builds(ModelKey, repo_id, revision, task, st.booleans())
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda s: st.lists(s) | st.dictionaries(st.text(), s),
)


@given(keys)
def test_a_key_is_read_as_it_is_written(key: ModelKey) -> None:
    assert ModelKey.parse(str(key)) == key


@given(keys)
def test_a_queue_names_one_key(key: ModelKey) -> None:
    assert ModelKey.from_queue(key.queue) == key


@given(keys, keys)
def test_two_keys_share_no_queue(one: ModelKey, other: ModelKey) -> None:
    assert (one.queue == other.queue) is (one == other)


@given(keys)
def test_a_queue_is_one_word_for_celery(key: ModelKey) -> None:
    assert not set(key.queue) & set(", \t\n")


@given(st.text())
def test_any_text_is_a_key_or_a_sentence(text: str) -> None:
    for read in (ModelKey.parse, ModelKey.from_queue, lambda t: ModelKey.parse(f"{DEFAULT_CLASS}:{t}")):
        try:
            assert isinstance(read(text), ModelKey)
        except BadRequest as error:
            assert str(error).endswith(".")


@given(st.dictionaries(st.sampled_from(["repo_id", "revision", "task", "trust_remote_code", "x"]), plain))
def test_any_json_is_a_key_or_a_sentence(data: dict[str, object]) -> None:
    try:
        assert ModelKey.parse(f"{DEFAULT_CLASS}:{json.dumps(data)}").repo_id == data["repo_id"]
    except BadRequest as error:
        assert str(error).endswith(".")


@pytest.mark.parametrize("import_path", KNOWN_CLASSES)
def test_every_known_class_is_one_deployment(import_path: str) -> None:
    assert ModelKey.parse(f'{import_path}:{{"repo_id": "a/b"}}').queue == "a/b"


@pytest.mark.parametrize("given_revision", ['"main"', "null"])
def test_no_revision_and_main_are_one_deployment(given_revision: str) -> None:
    key = ModelKey.parse(f'{DEFAULT_CLASS}:{{"repo_id": "a/b", "revision": {given_revision}, "task": null}}')
    assert key == ModelKey("a/b")


def test_a_queue_holds_what_is_not_the_default() -> None:
    key = ModelKey("a/b", "refs/pr/1", "image-text-to-text", trust_remote_code=True)
    assert key.queue == "a/b@refs%2Fpr%2F1?task=image-text-to-text&trust_remote_code=true"


@pytest.mark.parametrize(
    "name", ["../x", "a/../b", "a/b/c", "a b", "", "a/", "/a", "a\n", "-a", "a\x00b", "é/b", "a" * 200]
)
def test_a_repo_id_that_could_be_a_path_is_refused(name: str) -> None:
    with pytest.raises(BadRequest, match="repo_id is not a valid repo id"):
        ModelKey(name)


def test_ids_are_unguessable_and_prefixed() -> None:
    made = {new_id("s-") for _ in range(1000)}
    assert len(made) == 1000
    assert all(id.startswith("s-") and len(id) == 34 for id in made)
