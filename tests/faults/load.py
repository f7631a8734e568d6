"""Load on a farm while it is harmed, and what became of every job that the farm accepted."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import redis
import torch

from ndif_tasks import updates
from tests.farm import Farm, wait_until
from tests.sender import Sender, unpacked

#: What a job that ran in a killed runner may end with: a block can kill its own process, and is then not run again.
EPITAPH = "The block's process was killed"
END_LIMIT_S = 180.0


@dataclass(frozen=True)
class Kind:
    """A request, and the logits that it must bring."""

    sender: Sender
    expected: torch.Tensor


class Load:
    """Sends requests of some kinds, drawn by chance, every ``pause_s`` or so, until it is stopped."""

    def __init__(self, farm: Farm, kinds: Sequence[Kind], seed: int, pause_s: float) -> None:
        self.farm = farm
        self.kinds = kinds
        self.accepted: dict[str, Kind] = {}
        self.refused: Counter[str] = Counter()
        self._chance = random.Random(seed)
        self._pause_s = pause_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._send, name="load", daemon=True)
        self._thread.start()

    def _send(self) -> None:
        while not self._stopping.wait(self._chance.uniform(0, 2 * self._pause_s)):
            kind = self._chance.choice(self.kinds)
            try:
                answer = kind.sender.post()
            except httpx.HTTPError as error:
                self.refused[type(error).__name__] += 1
                continue
            if answer.status_code == 200:
                self.accepted[str(answer.json()["id"])] = kind
            else:
                assert answer.status_code in (502, 503), answer.text
                self.refused[str(answer.status_code)] += 1

    def stop(self) -> None:
        """Send no more."""
        self._stopping.set()
        self._thread.join()

    def outcome(self, *, may_die: bool = False) -> Outcome:
        """Demand that each accepted job has ended once, with the right values; what it took.

        Args:
            may_die: whether jobs may end because their process was killed.
        """
        broker = self.farm.redis()
        waiting = set(self.accepted)

        def over() -> bool:
            waiting.difference_update([id for id in waiting if _ended(broker, id)])
            return not waiting

        wait_until(over, END_LIMIT_S, f"every one of {len(self.accepted)} accepted jobs to end")
        died = again = 0
        for id, kind in self.accepted.items():
            told = [entry.update for entry in updates.read(broker, id, updates.FROM_START, None, count=10_000)]
            ends = [one for one in told if one.status in ("COMPLETED", "ERROR")]
            assert len(ends) == 1, (id, [one.status for one in told])
            again += int(broker.hget(f"ndif:job:{id}", "attempt") or 0) > 1  # type: ignore[arg-type]
            if may_die and ends[0].status == "ERROR" and ends[0].description.startswith(EPITAPH):
                died += 1
                continue
            assert ends[0].status == "COMPLETED", (id, ends[0])
            logits = unpacked(patiently(lambda: kind.sender.body(id)))["logits"]  # noqa: B023
            assert torch.equal(logits, kind.expected), id
        return Outcome(len(self.accepted), len(self.accepted) - died, died, again, dict(self.refused))


@dataclass(frozen=True)
class Outcome:
    """What became of the jobs; none was lost, or there would be none of this."""

    accepted: int
    completed: int
    died: int
    run_twice: int
    refused: dict[str, int]

    def __str__(self) -> str:
        refused = ", ".join(f"{count} {why}" for why, count in sorted(self.refused.items())) or "none"
        return (
            f"{self.accepted} accepted, {self.completed} completed, {self.died} ended with their killed process, "
            f"0 lost, {self.run_twice} tried again; not accepted: {refused}"
        )


def _ended(broker: redis.Redis, id: str) -> bool:
    return broker.hget(f"ndif:job:{id}", "status") in (b"COMPLETED", b"ERROR")


def patiently(call: Callable[[], Any], limit_s: float = 60) -> Any:
    """What a call gives, made again while the farm is not reached."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            return call()
        except (httpx.HTTPError, redis.RedisError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
