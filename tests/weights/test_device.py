"""What a deployment on a GPU lets through the walls, as data, and that it is let through there and nowhere else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ndif_tasks.sandbox import device
from tests.models import ROOT

#: How what follows ends where the kernel refuses namespaces.
NO_NAMESPACES = 77
#: In a cell with this device: the one test device, one that is as harmless and not on the list, and a call beside it.
TRIES = """
import ctypes, fcntl, json, os, sys
from pathlib import Path
from ndif_tasks.sandbox import jail, places
from ndif_tasks.sandbox.device import Device
from ndif_tasks.sandbox.walls import Refused
from ndif_tasks.sandbox.walls.namespaces import House

given = Device()
if sys.argv[1]:
    given = Device((Path("/dev/full"),), calls=("memfd_create",), ioctls=((0xFF00, 0x4600),))
jail.prepare(given)
readable = places.python()
house = House(readable, given)
try:
    house.move_in()
except Refused as error:
    print(error, file=sys.stderr)
    sys.exit(77)
if child := house.fork():
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
standing = jail.enclose(house, jail.Cell(readable, 2**20, [], given))
assert set(standing.values()) == {jail.ACTIVE}, standing


def outcome(act):
    try:
        act()
    except OSError as error:
        return type(error).__name__, error.errno
    return "done", 0


def ask(number):
    with open("/dev/full", "r+b", buffering=0) as file:
        fcntl.ioctl(file, number)


print(json.dumps({
    "node": outcome(lambda: open("/dev/full", "r+b", buffering=0)),
    "call": outcome(lambda: os.memfd_create("x")),
    "ioctl": outcome(lambda: ask(0x4601)),
    "other node": outcome(lambda: open("/dev/tty", "r+b", buffering=0)),
    "other ioctl": outcome(lambda: ask(0x5412)),
}))
"""


def tried(given: str) -> dict[str, list[object]]:
    argv = [sys.executable, "-c", TRIES, given]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=ROOT)
    if done.returncode == NO_NAMESPACES:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_a_device_is_reached_with_its_calls_and_no_other() -> None:
    with_it = tried("device")
    assert (with_it["node"][0], with_it["call"][0]) == ("done", "done")
    assert with_it["ioctl"][1] == 25  # the device's own answer: it knows no such request
    assert (with_it["other node"][0], with_it["other ioctl"][1]) == ("FileNotFoundError", 1)


def test_without_one_it_is_as_if_there_were_none() -> None:
    without = tried("")
    assert (without["node"][0], without["call"][1], without["ioctl"][0]) == (
        "FileNotFoundError",
        1,
        "FileNotFoundError",
    )


def test_a_deployment_on_the_cpu_lets_nothing_more_through() -> None:
    assert device.of(None) == device.Device()


def test_the_device_files_of_this_machine_are_found(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia11", "nvidiactl", "nvidia-uvm", "nvidia-modeset", "sda", "nvidia-caps/nvidia-cap1"):
        (tmp_path / "dev" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "dev" / name).touch()
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    found = device.of("0", tmp_path)
    names = [str(node.relative_to(tmp_path / "dev")) for node in found.nodes]
    assert sorted(names) == ["nvidia-caps/nvidia-cap1", "nvidia-uvm", "nvidia0", "nvidia11", "nvidiactl"]
    assert found.of_proc == (tmp_path / "proc/driver/nvidia",)


@pytest.mark.parametrize(
    ("value", "built", "gpu"), [("0", True, "0"), ("", True, None), (" ", True, None), ("0", False, None)]
)
def test_a_gpu_is_used_when_it_is_named_and_torch_can(
    value: str, built: bool, gpu: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "has_cuda_build", lambda: built)
    assert device.chosen({"CUDA_VISIBLE_DEVICES": value}) == gpu
    assert device.chosen({}) is None


def test_the_cpu_build_of_torch_is_told_from_one_for_cuda() -> None:
    code = "import torch; from ndif_tasks.sandbox.device import has_cuda_build as has; "
    code += "assert has() == (torch.version.cuda is not None)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env=os.environ)
