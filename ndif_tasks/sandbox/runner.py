"""The runner: a fork of the zygote that runs one job with stock nnsight, answers, and waits to be killed."""

from __future__ import annotations

import contextlib
import io
import os
import select
import socket
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import failure, hints, imports, jail, protocol
from .walls import Refused, limits
from .walls.namespaces import House

if TYPE_CHECKING:
    from .rehearsal import Rehearsal
    from .weights.lease import Lease

ZSTD_LEVEL = 1
PEAK = "/proc/self/clear_refs"
#: How long no request has come before a forward pass is rehearsed: where jobs come thick and fast, the next is sooner.
IDLE_S = 0.02


class Prepared(NamedTuple):
    """What a zygote has made ready: its model, what to rehearse with it, the CPU threads of this deployment, and where
    the weights are when they are not the model's own."""

    model: Any
    rehearsal: Rehearsal
    threads: int
    lease: Lease | None = None


def serve(prepared: Prepared, descriptors: Sequence[int], house: House | None, cell: jail.Cell) -> None:
    """Wait for one request, run it, answer, and wait for the replica to end this process.

    What goes wrong before the payload is opened is the farm's, and goes to the replica's log.

    Args:
        prepared: this process's copy of it is its own.
        descriptors: a socket to the replica, and what takes the lines that the block prints.
        house: of the zygote.
        cell: the part of the jail to go into first.
    """
    log = os.dup(2)
    try:
        sock = socket.socket(fileno=descriptors[0])
        job = _receive(prepared, sock, descriptors[1], house, cell)
    except Exception as error:
        os.write(log, "".join(traceback.format_exception(error)).encode())
        os._exit(protocol.UNPREPARED)
    os.close(log)
    if job is None:
        return
    _answer(prepared, sock, *job)
    # Unmapping all this takes milliseconds of a core: not while somebody waits for what was just sent. The replica
    # closes its end, and has the process killed, when that is passed on.
    with contextlib.suppress(ConnectionError):
        sock.recv(1)


def _receive(
    prepared: Prepared, sock: socket.socket, output: int, house: House | None, cell: jail.Cell
) -> tuple[protocol.Request, bytearray] | None:
    """Go into the cell, rehearse, and take a request; None when the replica is gone.

    Raises:
        Refused: a wall that must be there cannot be put up.
    """
    _settle(output, prepared.threads)
    # Opened where it still can be; not every kernel has it.
    peak = os.open(PEAK if os.path.exists(PEAK) else os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    reason = jail.missing(jail.enclose(house, cell), cell.required)
    if reason is not None:
        raise Refused(reason)
    if prepared.lease is not None:
        # Not before: threads that a driver starts must be born behind the walls, which are each thread's own.
        prepared.lease.enter(prepared.model, prepared.rehearsal)
    _rehearse(prepared.rehearsal, sock)
    with contextlib.suppress(OSError):
        os.write(peak, b"5")  # the peak of memory is from now on the job's
    os.close(peak)
    request = protocol.receive_request(sock)
    if request is None:
        return None
    payload = bytearray()
    protocol.receive_bytes(sock, request.bytes, payload.extend)
    _limit(request, alone=house is not None)
    return request, payload


def _rehearse(rehearsal: Rehearsal, sock: socket.socket) -> None:
    def asked(wait_s: float = 0) -> bool:
        return bool(select.select([sock], [], [], wait_s)[0])

    with contextlib.suppress(Exception):  # it only saves time
        if not asked():
            rehearsal.play()
            if not asked(IDLE_S):
                rehearsal.forward(asked)


def _answer(prepared: Prepared, sock: socket.socket, request: protocol.Request, payload: bytearray) -> None:
    try:
        values = result(prepared.model, request, payload)
    except BaseException as error:
        _flush()
        description = failure.describe(error, prepared.model._module, request)
        answer = protocol.Answer(type="error", description=description, gpu_bytes=_gpu_bytes(prepared))
        protocol.send_header(sock, answer)
        return
    _flush()
    protocol.send_header(sock, protocol.Answer(type="result", bytes=len(values), gpu_bytes=_gpu_bytes(prepared)))
    sock.sendall(values)


def result(model: Any, request: protocol.Request, payload: bytearray) -> memoryview:
    """Run a request's block and pack what it saved."""
    try:
        _set_environment(model, request)
        tracer = _tracer(model, payload, request.compress)
    except BaseException as error:
        raise failure.Unreadable(error) from error
    if request.modules is not None:
        sys.meta_path.insert(0, imports.Allowed(request.modules))
    saved = _run(tracer)
    return _pack(saved, request.compress)


def _gpu_bytes(prepared: Prepared) -> int:
    try:
        return 0 if prepared.lease is None else prepared.lease.peak_bytes()
    except Exception:  # after a fault the device answers nothing but errors
        return 0


def _set_environment(model: Any, request: protocol.Request) -> None:
    adapter = request.env.get("peft")
    if not adapter:
        model._remoteable_set_env(request.env)
        return
    model._remoteable_set_env(request.env | {"peft": request.adapter})
    model.peft = adapter  # as it is called where the request was made


def _tracer(model: Any, payload: bytearray, compress: bool) -> Any:
    from nnsight.schema.request import RequestModel

    return RequestModel.deserialize(bytes(payload), model._remoteable_persistent_objects(), compress)


def _run(tracer: Any) -> dict[str, Any]:
    from nnsight.tracing.tracer import _saves, dec, inc

    frame = tracer.info.frame
    outside = hints.snapshot(frame)
    inc()
    try:
        tracer.execute(tracer.info.code)
        saved = {name: value for name, value in frame.f_locals.items() if id(value) in _saves()}
        with contextlib.suppress(Exception):  # the block may have closed or replaced where lines are printed
            for line in hints.changed(outside, _saves()):
                print(line)
    except BaseException as error:
        if hasattr(tracer, "traceback"):
            error.__traceback__ = tracer.traceback(error)
        raise
    finally:
        dec()
    return saved


def _pack(saved: dict[str, Any], compress: bool) -> memoryview:
    import torch

    from . import pickling

    buffer = io.BytesIO()
    try:
        torch.save(saved, buffer, pickle_module=pickling, pickle_protocol=4)
    except BaseException as error:
        raise failure.Unsendable(_unsendable(saved), error) from error
    if not compress:
        return buffer.getbuffer()
    import zstandard

    return memoryview(zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(buffer.getbuffer()))


def _unsendable(saved: dict[str, Any]) -> str | None:
    import torch

    from . import pickling

    for name, value in saved.items():
        try:
            torch.save(value, io.BytesIO(), pickle_module=pickling, pickle_protocol=4)
        except BaseException:
            return name
    return None


def _settle(output: int, threads: int) -> None:
    import torch

    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    for stream in (1, 2):
        text = io.TextIOWrapper(io.FileIO(stream, "w", closefd=False), "utf-8", "backslashreplace", line_buffering=True)
        setattr(sys, "stdout" if stream == 1 else "stderr", text)
    _reseed()
    torch.set_num_threads(threads)
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def _reseed() -> None:
    # Forks of one process would all draw the same "random" numbers.
    import random

    import numpy
    import torch

    random.seed()
    numpy.random.seed(int.from_bytes(os.urandom(4), "little"))
    # The CPU's generator alone: torch.manual_seed goes by every kind of device and takes 5 ms in a fresh fork.
    torch.default_generator.seed()


def _limit(request: protocol.Request, *, alone: bool) -> None:
    limits.lower(
        alone=alone,
        memory_bytes=request.memory_bytes,
        cpu_s=request.cpu_s,
        threads=request.threads,
        open_files=request.open_files,
    )


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # the block may have closed or replaced it
            continue
