"""From asking for a runner until it reads a request: the real zygote, holding a made 124M-parameter GPT-2.

The runner is sent more than its socket holds, at once: the last byte leaves here only when the runner has begun to
read, which is when it is ready (the few hundred KiB it has read by then cost less than a millisecond). The payload is
not one, so the runner answers with an error, and the time of that answer is told too. Nothing is forked ahead.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from ndif_models.keys import ModelKey
from ndif_models.settings import load
from ndif_tasks.replica.zygote_process import ZygoteProcess
from ndif_tasks.sandbox import protocol
from tests import models
from tests.conftest import THREADS

from .bench import BIG, Bench
from .rows import Row, percentile

ROUNDS = 30
WARM_UP = 3
TARGET_MS = 60
PAYLOAD = b"\x80\x04no pickle" + bytes(2**20)


def run(bench: Bench) -> Iterator[Row]:
    """Measure."""
    hf_home = bench.folder / "hf"
    models.hold("gpt2", "124m", bench.made, hf_home, BIG)
    settings = load(environ={"HF_HOME": str(hf_home), "NDIF_SESSION_ROOT": str(bench.folder)}, running_session=False)
    zygote = ZygoteProcess(settings, str(ModelKey(BIG)), None, THREADS)
    try:
        assert zygote.loaded(60), "the zygote did not load"
        rounds = [_round(zygote) for _ in range(WARM_UP + ROUNDS)][WARM_UP:]
        ready, answered = ([one[n] * 1000 for one in rounds] for n in (0, 1))
        yield Row("fork_to_ready_p50", percentile(ready, 50), "ms", at_most=TARGET_MS)
        yield Row("fork_to_ready_p95", percentile(ready, 95), "ms")
        yield Row("fork_to_answer_p50", percentile(answered, 50), "ms")
        yield Row("fork_system_call_p50", percentile(zygote.fork_ms, 50), "ms")
    finally:
        zygote.stop()


def _round(zygote: ZygoteProcess) -> tuple[float, float]:
    began = time.perf_counter()
    runner = zygote.fork(2**20)
    request = protocol.Request(compress=False, env={}, memory_bytes=2**32, bytes=len(PAYLOAD))
    protocol.send_header(runner.sock, request)
    runner.sock.sendall(PAYLOAD)
    ready_s = time.perf_counter() - began
    answer = protocol.receive_answer(runner.sock, 0)
    answered_s = time.perf_counter() - began
    assert answer is not None and answer.type == "error", answer
    zygote.kill(runner)
    runner.wait(5)
    runner.close()
    return ready_s, answered_s
