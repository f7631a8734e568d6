"""One attempt at one job: hand it to a runner, pass on what comes back, end it with one status.

Torch-free, and it parses nothing of a runner but a capped header.
"""

from __future__ import annotations

import logging
import selectors
import signal
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ndif_models.errors import NotFound, Unavailable, WireError
from ndif_tasks import transfer
from ndif_tasks.jobs import Claimed
from ndif_tasks.sandbox import jail, protocol
from ndif_tasks.sandbox.policy import Limits
from ndif_tasks.store import result_object

from . import holder_process, memory
from .output import Output
from .watch import Verdict, Watched
from .zygote_process import Runner

if TYPE_CHECKING:
    from .run_job import Server

log = logging.getLogger(__name__)

#: How long a job waits for the object store to be there again, and how often that is looked at.
STORE_LIMIT_S, STORE_POLL_S = 120.0, 0.5
VERDICTS = {
    Verdict.CANCELLED: "The job was cancelled.",
    Verdict.OUTPUT: "The block printed more than a job may ({output_lines} lines or {output_bytes} bytes).",
    Verdict.TIMEOUT: "The block ran longer than a job may ({wall_s:g} s).",
}


class Attempt:
    """One attempt at one job, in one runner."""

    def __init__(
        self, server: Server, job: Claimed, runner: Runner, watched: Watched, policy: str, limits: Limits
    ) -> None:
        self.server = server
        self.jobs = server.jobs
        self.job = job
        self.runner = runner
        self.watched = watched
        self.policy = policy
        self.limits = limits
        self._cpu_before_s = 0.0
        self.output = Output(runner.output, limits.output_bytes, limits.output_lines)

    def run(self) -> None:
        """From the payload to the terminal status."""
        self.started, self.gpu_bytes = time.monotonic(), 0
        try:
            self._run()
        except transfer.StoreAway as error:
            self._try_again(str(error))
        except (WireError, NotFound, Unavailable) as error:
            if self.watched.verdict is not None:
                self._end_dead()
            else:
                self._fail(str(error), "refused")

    def _run(self) -> None:
        with self.server.zygote.tray.adapter(self.job.env.get("peft"), str(self.runner.number)) as adapter:
            answer = self._converse(adapter)
            self.gpu_bytes = answer.gpu_bytes if answer else 0
            if answer is None:
                self._end_dead()
            elif answer.type == "error":
                self._fail(answer.description, "error")
            else:
                self._deliver(answer)

    def _converse(self, adapter: str | None) -> protocol.Answer | None:
        try:
            self._send(adapter)
        except OSError:
            return None
        if not self.jobs.running(self.job):
            self.watched.end(Verdict.LOST)
            return None
        answer = self._listen()
        if self.job.others_wait:
            self.server.fork_ahead()
        return answer

    def _send(self, adapter: str | None) -> None:
        if self.job.payload is not None:
            self._send_request(len(self.job.payload), adapter)
            self.runner.sock.sendall(self.job.payload)
            return
        with transfer.download(self.job.payload_url, verify=self._verify) as (size, chunks):
            self._send_request(size, adapter)
            for chunk in chunks:
                self.runner.sock.sendall(chunk)

    def _send_request(self, size: int, adapter: str | None) -> None:
        limits, self._cpu_before_s = self.limits, self.runner.usage().cpu_s
        request = protocol.Request(
            compress=self.job.compress,
            env=self.job.env,
            adapter=adapter,
            memory_bytes=limits.memory_bytes or self._spare_bytes(),
            cpu_s=limits.cpu_s,
            threads=limits.threads + self.server.threads,
            open_files=limits.open_files,
            scratch_bytes=limits.scratch_bytes,
            modules=None if limits.modules is None else list(limits.modules),
            bytes=size,
        )
        protocol.send_header(self.runner.sock, request)

    def _spare_bytes(self) -> int:
        weight_bytes = self.server.zygote.facts["size_bytes"]
        # On a GPU weights are written where they are.
        copied = self.server.settings.room_to_train and self.server.holder is None
        beside = (weight_bytes if copied else 0) + self.limits.scratch_bytes
        return memory.job_bytes(beside, memory.now())

    def _listen(self) -> protocol.Answer | None:
        """Pass printed lines on until the runner answers or ends."""
        with selectors.DefaultSelector() as selector:
            for source in (self.runner.sock, self.runner.output, self.runner.exited):
                selector.register(source, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if self.runner.output in ready and not self._pass_on_output():
                    selector.unregister(self.runner.output)
                if self._printed_too_much():
                    return None
                if self.runner.sock in ready:
                    return protocol.receive_answer(self.runner.sock, self.limits.result_bytes)
                if self.runner.exited in ready:
                    return None

    def _pass_on_output(self) -> bool:
        lines = self.output.lines()
        self.jobs.log(self.job, lines or [])
        return lines is not None

    def _printed_too_much(self) -> bool:
        if self.output.over:
            self.watched.end(Verdict.OUTPUT)
        return self.output.over

    def _deliver(self, answer: protocol.Answer) -> None:
        self._drain()
        if self._printed_too_much():
            self._end_dead()
            return
        meta = self._meta("values")
        if answer.bytes <= self._inline_bytes:
            body = bytearray()
            protocol.receive_bytes(self.runner.sock, answer.bytes, body.extend)
            self.jobs.complete(self.job, bytes(body), meta)
            return
        self._upload(answer.bytes)
        self.jobs.complete(self.job, result_object(self.job.id, self.job.attempt), meta)

    @property
    def _inline_bytes(self) -> int:
        # Only a waiting client's values are worth the broker's memory up to the larger limit.
        settings = self.server.settings
        return settings.inline_result_bytes if self.job.has_session else settings.inline_payload_bytes

    def _upload(self, size: int) -> None:
        url = self.job.put_urls[self.job.attempt - 1]
        transfer.upload(url, _chunks(self.runner, size), size, verify=self._verify)

    @property
    def _verify(self) -> bool:
        return self.server.settings.object_store_verify

    def _end_dead(self) -> None:
        verdict = self.watched.verdict
        if verdict == Verdict.LOST:
            log.warning("job %s: attempt %d is no longer this replica's", self.job.id, self.job.attempt)
            return
        status = self.runner.wait(2.0)
        if verdict is not None:
            self._fail(VERDICTS[verdict].format(**self.limits.model_dump()), verdict)
        elif self.server.zygote.gone.is_set():
            self.jobs.hand_back(self.job.id, self.job.attempt)
        elif status == protocol.UNPREPARED:
            log.error("job %s: its process could not be made ready; the reason is above", self.job.id)
            self.jobs.hand_back(self.job.id, self.job.attempt)
        elif self.limits.cpu_s and status == -signal.SIGKILL and self._cpu_s() >= self.limits.cpu_s:
            self._fail(f"The block used more processor time than a job may ({self.limits.cpu_s} s).", "cpu time")
        else:
            self._fail(_epitaph(status), "died")

    def _try_again(self, why: str) -> None:
        """Have the job run anew once the store is back; what was computed cannot be sent twice."""
        url, deadline = self.job.put_urls[self.job.attempt - 1], time.monotonic() + STORE_LIMIT_S
        log.warning("job %s: the object store is away; the job waits for it", self.job.id)
        while self.watched.verdict is None and time.monotonic() < deadline:
            if transfer.answers(url, verify=self._verify):
                self.jobs.hand_back(self.job.id, self.job.attempt)
                return
            time.sleep(STORE_POLL_S)
        if self.watched.verdict is not None:
            self._end_dead()
        else:
            self._fail(why, "refused")

    def _fail(self, description: str, ended: str) -> None:
        self._drain()
        self.jobs.fail(self.job, description, self._meta(ended))

    def _drain(self) -> None:
        self.jobs.log(self.job, self.output.drain())

    def _cpu_s(self) -> float:
        """What the job took of the processors, and not what its runner took before it came."""
        return max(0.0, self.runner.usage().cpu_s - self._cpu_before_s)

    def _meta(self, ended: str) -> dict[str, Any]:
        used, facts, holder = self.runner.usage(), self.server.zygote.facts, self.server.holder
        gpus = holder_process.usage(holder, self.gpu_bytes)
        return {
            "runtime": round(time.monotonic() - self.started, 6),
            "cpu_s": round(self._cpu_s(), 2),
            "max_memory_usage": used.peak_bytes,
            **gpus,
            "threads": self.server.threads,
            "dtype": facts["dtype"],
            "policy": self.policy,
            "walls": [wall for wall, standing in facts["walls"].items() if standing == jail.ACTIVE],
            "ended": ended,
        }


def _chunks(runner: Runner, size: int) -> Iterator[bytes]:
    while size:
        chunk = bytearray()
        protocol.receive_bytes(runner.sock, min(size, protocol.CHUNK_BYTES), chunk.extend)
        size -= len(chunk)
        yield bytes(chunk)


def _epitaph(status: int | None) -> str:
    if status is None:
        return "The block broke off the connection its values return by."
    if status >= 0:
        return f"The block ended its process (exit status {status}) before its values were sent."
    if status == -signal.SIGKILL:
        return "The block's process was killed: the machine ran out of memory, or the block set itself a limit."
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    return f"The block crashed its process ({name})."
