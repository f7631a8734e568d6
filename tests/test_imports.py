"""Imports point downwards only, do nothing, and never need torch outside the rooms that hold it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("ndif_models", "ndif_tasks", "ndif_web")
#: Modules that run where torch is, or that do something when imported by design.
WITH_TORCH = ("ndif_tasks.replica", "ndif_tasks.sandbox")
ENTRIES = ("ndif_web.gunicorn_conf",)

UNIMPORTABLE = """
import importlib, os, sys, threading
for name in ("torch", "nnsight", "transformers"):
    sys.modules[name] = None
before = dict(os.environ)
for name in sys.argv[1:]:
    importlib.import_module(name)
assert threading.active_count() == 1, threading.enumerate()
assert dict(os.environ) == before
"""


def modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.stem == "__main__":  # runs when imported; that is what it is for
                continue
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imported(name: str, path: Path) -> Iterator[str]:
    """The absolute names that a file imports, wherever in it."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            yield ".".join([*base, *([node.module] if node.module else [])])


def in_room(name: str, rooms: tuple[str, ...]) -> bool:
    return any(name == room or name.startswith(room + ".") for room in rooms)


@pytest.mark.parametrize(("name", "path"), [pytest.param(*module, id=module[0]) for module in modules()])
def test_imports_point_downwards(name: str, path: Path) -> None:
    above = PACKAGES[PACKAGES.index(name.partition(".")[0]) + 1 :]
    assert [found for found in imported(name, path) if in_room(found, above)] == []


def test_everything_outside_replica_and_sandbox_imports_without_torch() -> None:
    names = [name for name, _ in modules() if not in_room(name, WITH_TORCH) and name not in ENTRIES]
    subprocess.run([sys.executable, "-c", UNIMPORTABLE, *names], check=True, cwd=ROOT)


def test_the_web_tiers_entry_imports_without_torch() -> None:
    without = UNIMPORTABLE.partition("assert")[0]
    subprocess.run([sys.executable, "-c", without, *ENTRIES, "ndif_web.app"], check=True, cwd=ROOT)


def test_the_worker_side_of_a_replica_imports_without_torch() -> None:
    names = ["ndif_tasks.app", "ndif_tasks.replica.worker", "ndif_tasks.replica.run_job", "ndif_tasks.control.agent"]
    without = UNIMPORTABLE.partition("assert")[0]
    subprocess.run([sys.executable, "-c", without, *names], check=True, cwd=ROOT)
