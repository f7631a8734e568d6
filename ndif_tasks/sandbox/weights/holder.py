"""The holder: the one process that owns a model's weights on a GPU, and puts right what a job has changed of them.

Started by a replica as ``python -m ndif_tasks.sandbox.weights.holder FD``, as a zygote is and with as little. It loads
the model as everybody does, on the CPU, and copies it to the arena; the model stays, mapped from its files, as what is
right. No job ever runs in it or in a fork of it, so none sees what it compares with.
"""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path
from typing import Any

import torch

from .. import device, jail, kernel, model, places, protocol
from ..walls import Refused, privileges
from . import arena, digest, layout


class Held:
    """An arena full of a module's weights."""

    def __init__(self, module: torch.nn.Module, transport: arena.Transport) -> None:
        """Make it.

        Raises:
            ValueError: a tensor of the module cannot lie in an arena.
            RuntimeError: the device has no room.
        """
        self.layout = layout.of(module)
        self._right = layout.sources(module)
        self.bytes, self.descriptors = transport.create(self.layout.size_bytes)
        for number in range(self.layout.size_bytes // digest.CHUNK_BYTES):
            self._chunk(number).copy_(self._rightful(number))
        self._multipliers = digest.draw(self.bytes.device)
        self._sums = digest.of(self.bytes, self._multipliers)

    def restore(self) -> int:
        """Put right what has changed; how many bytes had.

        Raises:
            RuntimeError: the memory does not keep what is written to it.
        """
        count = 0
        wrong = digest.changed(self._sums, digest.of(self.bytes, self._multipliers))
        for number in wrong:
            chunk, right = self._chunk(number), self._rightful(number).to(self.bytes.device)
            count += int((chunk != right).sum())
            chunk.copy_(right)
        if wrong and digest.changed(self._sums, digest.of(self.bytes, self._multipliers)):
            raise RuntimeError("The weights do not stay as they are written.")
        return count

    def _chunk(self, number: int) -> torch.Tensor:
        return self.bytes[number * digest.CHUNK_BYTES : (number + 1) * digest.CHUNK_BYTES]

    def _rightful(self, number: int) -> torch.Tensor:
        start = number * digest.CHUNK_BYTES
        return layout.stretch(self.layout, self._right, start, start + digest.CHUNK_BYTES)


def serve(control: socket.socket, order: dict[str, Any]) -> None:
    """Load, hand the arena over, then put right on request until the replica is gone."""
    try:
        held, total_bytes = _load(order)
    except Exception as error:
        reason = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}".strip()
        protocol.send_packet(control, {"event": "failed", "reason": reason[:4000]})
        return
    ready = {"event": "ready", "fingerprint": held.layout.fingerprint}
    sizes = {"size_bytes": held.layout.size_bytes, "total_bytes": total_bytes}
    protocol.send_packet(control, ready | sizes, held.descriptors)
    while protocol.receive_packet(control) is not None:
        protocol.send_packet(control, {"event": "restored", "bytes": held.restore()})


def _load(order: dict[str, Any]) -> tuple[Held, int]:
    readable = [*places.python(), *map(Path, order["readable"])]
    _, house = jail.move_in(readable, device.of(order["gpu"]), order["walls"])
    jail.demand_readable(order["readable"])
    if house is not None:
        privileges.raise_wall()  # it makes no cells
    loaded = model.load(order["model_key"], order["dtype"])
    transport = arena.transport()
    transport.begin(order["gpu"])
    return Held(loaded._module, transport), transport.total_bytes()


def main() -> None:
    """Entry point; the one argument is the control socket's descriptor."""
    kernel.name_process("ndif-holder")
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    packet = protocol.receive_packet(control)
    if packet is not None:
        serve(control, packet[0])


if __name__ == "__main__":
    main()
