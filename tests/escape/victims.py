"""What attacks aim at: files, sockets and a process that a test makes, and that end with it.

All of it is looked at from outside as well, so that an attack's own word is not all there is.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import secrets
import select
import socket
import subprocess
import sys
import sysconfig
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.models import ROOT

_AT_FDCWD = -100
_libc = ctypes.CDLL(None, use_errno=True)
_libc.shmat.restype = ctypes.c_void_p


class Victims:
    """The victims of one test."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self.word = secrets.token_hex(16)
        self._paths: dict[str, Path] = {}
        self._sockets: dict[str, socket.socket] = {}
        #: Where each is, for attacks.
        self.target: dict[str, Any] = {"word": self.word, "folder": str(folder), "patience_s": 0.2}
        self.target |= {"host": os.uname().nodename, "root": os.listdir("/")}
        self._make_files()
        self._make_sockets()
        self._make_process()
        self._make_segment()
        self._before = self._look()

    def harm(self) -> set[str]:
        """What is no longer as it was made."""
        now = self._look()
        return {name for name, fact in self._before.items() if now.get(name, fact) != fact}

    def cell(self, *arguments: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """A process that attacks (``cell.py``), from no jail of its own making; inherits a pipe."""
        argv = [sys.executable, "-m", "tests.escape.cell", *arguments, json.dumps(self.target)]
        process = subprocess.Popen(
            argv,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=(self._inherited,),
        )
        self._stack.callback(_end, process)
        return process

    def _make_files(self) -> None:
        for name in ("secret", "doomed", "weights"):
            self._paths[name] = self._folder / name
        packages = Path(sysconfig.get_path("purelib"))
        for name, folder in (("tmp", Path("/tmp")), ("shm", Path("/dev/shm")), ("package", packages)):
            number, made = tempfile.mkstemp(dir=folder, prefix="ndif-escape-")
            os.close(number)
            self._paths[name] = Path(made)
            self._stack.callback(self._paths[name].unlink)
        for path in self._paths.values():
            path.write_text(self.word)
        self._paths["fifo"] = self._folder / "fifo"
        os.mkfifo(self._paths["fifo"])
        # Open at both ends, so that nobody waits for the other.
        self._fifo = os.open(self._paths["fifo"], os.O_RDWR)
        self._pipe, self._inherited = os.pipe()
        for descriptor in (self._fifo, self._pipe, self._inherited):
            self._stack.callback(os.close, descriptor)
        self.target |= {name: str(path) for name, path in self._paths.items()}
        self.target |= {"shm": f"/{self._paths['shm'].name}", "handle": _handle(self._paths["secret"]).hex()}

    def _make_sockets(self) -> None:
        def listening(name: str, kind: int, family: int, address: Any) -> Any:
            made = self._sockets[name] = self._stack.enter_context(socket.socket(family, kind))
            made.bind(address)
            if kind == socket.SOCK_STREAM:
                made.listen()
            return made.getsockname()

        stream, datagrams, loopback = socket.SOCK_STREAM, socket.SOCK_DGRAM, ("127.0.0.1", 0)
        self.target["tcp"] = listening("tcp", stream, socket.AF_INET, loopback)[1]
        self.target["udp"] = listening("udp", datagrams, socket.AF_INET, loopback)[1]
        self.target["unix"] = listening("unix", stream, socket.AF_UNIX, str(self._folder / "u"))
        self.target["datagrams"] = listening("datagrams", datagrams, socket.AF_UNIX, str(self._folder / "d"))
        self.target["abstract"] = f"ndif-escape-{uuid.uuid4().hex}"
        listening("abstract", stream, socket.AF_UNIX, "\0" + self.target["abstract"])

    def _make_process(self) -> None:
        self._signalled = self._folder / "signalled"
        argv = [sys.executable, "-I", "-S", str(Path(__file__).with_name("victim.py"))]
        self._process = subprocess.Popen(
            [*argv, str(self._paths["secret"]), str(self._signalled)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"WORD": self.word},
        )
        self._stack.callback(_end, self._process)
        assert self._process.stdout is not None
        found = json.loads(self._process.stdout.readline())
        self._address = found["address"]
        self.target |= found | {"pid": self._process.pid, "signalled": str(self._signalled)}

    def _make_segment(self) -> None:
        number = _libc.shmget(0, 4096, 0o1600)
        place = _libc.shmat(number, None, 0)
        assert number >= 0 and place not in (None, ctypes.c_void_p(-1).value), os.strerror(ctypes.get_errno())
        self._stack.callback(_libc.shmdt, ctypes.c_void_p(place))
        # Gone with the last that holds it, and until then anybody's who knows its number.
        _libc.shmctl(number, 0, None)
        ctypes.memmove(place, self.word.encode(), len(self.word))
        self.target["segment"] = number

    def _look(self) -> dict[str, object]:
        sources: list[Any] = [self._fifo, self._pipe, *self._sockets.values()]
        waiting, _, _ = select.select(sources, [], [], 0)
        facts: dict[str, object] = {name: _facts(path) for name, path in self._paths.items() if name != "fifo"}
        facts |= {name: one in waiting for name, one in self._sockets.items()}
        facts |= {"fifo": self._fifo in waiting, "inherited": self._pipe in waiting}
        facts |= {"signal": self._signalled.exists(), "process": self._process.poll() is None}
        facts["folder"] = sorted(name for name in os.listdir(self._folder) if name != "signalled")
        return facts | self._look_into_the_process()

    def _look_into_the_process(self) -> dict[str, object]:
        pid = self._process.pid
        if self._process.returncode is not None:
            return {}
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            word = os.pread(memory.fileno(), len(self.word), self._address)
        return {
            "memory": word,
            "limits": resource.prlimit(pid, resource.RLIMIT_CORE),
            "affinity": os.sched_getaffinity(pid),
            "nice": os.getpriority(os.PRIO_PROCESS, pid),
            "doom": Path(f"/proc/{pid}/oom_score_adj").read_text(),
        }


@contextmanager
def victims(folder: Path) -> Iterator[Victims]:
    """Victims in a folder that is there and empty."""
    with ExitStack() as stack:
        yield Victims(folder, stack)


def _facts(path: Path) -> object:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    labels = os.listxattr(path)
    return path.read_text(), found.st_mode, found.st_uid, found.st_mtime_ns, found.st_nlink, labels


def _handle(path: Path) -> bytes:
    """What name_to_handle_at calls a file."""
    handle, mount = ctypes.create_string_buffer((128).to_bytes(4, sys.byteorder), 136), ctypes.c_int()
    if _libc.name_to_handle_at(_AT_FDCWD, bytes(path), handle, ctypes.byref(mount), 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return handle.raw


def _end(process: subprocess.Popen[Any]) -> None:
    process.kill()
    process.communicate()
