"""How the walls stand in a container, as ``SECURITY.md`` says, for root with what Docker leaves it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from ndif_tasks.sandbox import jail
from tests.models import ROOT

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can take from itself what a container takes")
OTHERS = {jail.PRIVILEGES, jail.LANDLOCK, jail.SECCOMP}


def standing(kind: str) -> jail.Standing:
    argv = [sys.executable, "-m", "tests.escape.container", kind]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=ROOT, check=True)
    return dict(json.loads(done.stdout))


def test_a_stock_container_lacks_the_namespaces_and_with_them_the_user() -> None:
    found = standing("stock")
    assert {wall for wall in found if jail.is_refused(found, wall)} == {jail.USER, jail.NAMESPACES}
    assert {wall for wall in OTHERS if found[wall] == jail.ACTIVE} == OTHERS
    assert "Operation not permitted" in found[jail.NAMESPACES]


def test_an_unconfined_container_has_every_wall() -> None:
    assert standing("unconfined") == dict.fromkeys(jail.WALLS, jail.ACTIVE)


def test_a_masked_proc_is_named_as_what_keeps_the_namespaces_out() -> None:
    found = standing("masked")
    assert found[jail.NAMESPACES] == "refused: namespaces: Operation not permitted (/proc)"
