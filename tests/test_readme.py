"""The README is true: its settings are all of them, and its commands run in its order."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ndif_models import settings
from tests.farm import Farm, wait_until

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
START, END = "<!-- settings -->\n", "<!-- /settings -->"


def test_the_table_of_settings_is_the_code_s() -> None:
    shown = README.partition(START)[2].partition(END)[0].strip()
    assert shown == settings.markdown(), "run `python -m tests.test_readme` to write it anew"


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """A newcomer's folder, and no farm yet."""
    place = Farm(tmp_path_factory.mktemp("newcomer"))
    place.hf_home.mkdir()
    yield place
    place.stop()


def test_every_command_of_the_readme_works_in_its_order(newcomer: Farm) -> None:
    exports: dict[str, str] = {}
    for language, block in blocks():
        if language == "python" and "import" in block:
            run_python(newcomer, exports, block)
        elif language == "bash":
            for line in block.strip().splitlines():
                run_line(newcomer, exports, line)


def blocks() -> list[tuple[str, str]]:
    """(language, text) of the README's fenced blocks."""
    return re.findall(r"^```(bash|python)\n(.*?)^```", README, re.M | re.S)


def run_line(place: Farm, exports: dict[str, str], line: str) -> None:
    """Run one command as the README says it, with this Python's tools in the place of ``.venv``'s."""
    if line == "make test":
        # This is `make test`; the recipe is checked without running it in itself.
        run(place, exports, f"make -n -C {ROOT} test | grep -q pytest")
    elif line == "make demo":
        run(place, exports, "python -m ndif_web.cli.demo")
    elif line.startswith("source "):
        return
    elif line.startswith("export "):
        name, _, value = line.removeprefix("export ").partition("=")
        exports[name] = value.replace("http://127.0.0.1:5001", place.url)
    elif line.startswith("celery "):
        serve_by_hand(place, exports, line)
    else:
        run(place, exports, line)


def run(place: Farm, exports: dict[str, str], line: str) -> None:
    """Run a line in bash; it must succeed."""
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=place.home,
        env=environment(place, exports),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}\n{place.logs()}"


def run_python(place: Farm, exports: dict[str, str], block: str) -> None:
    """Run a block as a script."""
    (place.home / "script.py").write_text(block)
    run(place, {**exports, "HF_HOME": str(place.home / "client")}, "python script.py")


def serve_by_hand(place: Farm, exports: dict[str, str], line: str) -> None:
    """Start a worker, see the farm serve its model, and end it."""
    log = place.home / "by-hand.log"
    with log.open("wb") as output:
        worker = subprocess.Popen(
            ["bash", "-c", f"exec {line}"],
            cwd=place.home,
            env=environment(place, exports),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(
            lambda: any(one["application_state"] == "RUNNING" for one in place.replicas("lab/my-model")), 90, line
        )
    finally:
        worker.terminate()
        worker.wait(30)


def environment(place: Farm, exports: dict[str, str]) -> dict[str, str]:
    """The newcomer's environment."""
    return {**place.environment, **exports, "PATH": f"{Path(sys.executable).parent}:{place.environment['PATH']}"}


def _write() -> None:
    before, _, rest = README.partition(START)
    (ROOT / "README.md").write_text(before + START + settings.markdown() + "\n" + END + rest.partition(END)[2])


if __name__ == "__main__":
    _write()
