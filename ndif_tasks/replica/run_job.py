"""Running one job: claim it, hand it to the waiting runner, pass on what comes back, end it with one status.

Torch-free, and it parses nothing of a runner but a capped header.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil

from ndif_models.errors import NdifError, Unavailable, WireError
from ndif_models.settings import Settings
from ndif_tasks import routing, transfer
from ndif_tasks.app import app
from ndif_tasks.jobs import Claimed, Jobs
from ndif_tasks.sandbox import protocol
from ndif_tasks.store import result_object

from .output import Output
from .watch import Verdict, Watch, Watched
from .zygote_process import Runner, ZygoteProcess

log = logging.getLogger(__name__)

VERDICTS = {
    Verdict.CANCELLED: "The job was cancelled.",
    Verdict.OUTPUT: "The block printed more than a job may ({lines} lines or {bytes} bytes).",
    Verdict.TIMEOUT: "The block ran longer than a job may ({timeout_s:g} s).",
}


class Server:
    """What a replica runs jobs with: its zygote, the runner forked ahead, and the job store."""

    def __init__(self, settings: Settings, jobs: Jobs, zygote: ZygoteProcess, replica: str, threads: int) -> None:
        self.settings = settings
        self.jobs = jobs
        self.zygote = zygote
        self.replica = replica
        self.threads = threads
        self.watch = Watch(jobs)
        self._busy = threading.Lock()
        self._draining = False
        self._ahead: Runner | None = zygote.fork()

    def run_next(self, queue: str) -> None:
        """Run the next job of a queue, if one waits."""
        with self._busy:
            if not self._draining:
                self._run_next(queue)

    def drained(self, wait_s: float) -> bool:
        """Take no other job; whether the one that runs is over, after waiting at most ``wait_s`` for it."""
        self._draining = True
        over = self._busy.acquire(timeout=wait_s)
        if over:
            self._busy.release()
        return over

    def _run_next(self, queue: str) -> None:
        if self.zygote.gone.is_set():
            return
        job = self.jobs.claim(queue, self.replica)
        if job is None:
            return
        log.info("job %s: attempt %d", job.id, job.attempt)
        try:
            runner = self._take(job.env.get("peft"))
        except Unavailable:
            self.jobs.hand_back(job.id, job.attempt)
            return
        watched = Watched(job, time.monotonic() + self._limit_s, lambda: self.zygote.kill(runner))
        self.watch.begin(watched)
        try:
            Attempt(self, job, runner, watched).run()
        finally:
            self.watch.finish()
            self.zygote.kill(runner)
            runner.close()
            self.fork_ahead()

    def fork_ahead(self) -> None:
        """Have the next job's runner made, unless it is."""
        if self._ahead is None:
            with contextlib.suppress(Unavailable):  # the next job will find out
                self._ahead = self.zygote.fork()

    @property
    def _limit_s(self) -> float:
        return self.settings.default_execution_timeout_seconds

    def _take(self, adapter: str | None) -> Runner:
        if adapter:  # the runner forked ahead may not read it
            return self.zygote.fork(adapter)
        runner, self._ahead = self._ahead, None
        if runner is not None and runner.status is None:
            return runner
        if runner is not None:
            runner.close()
        return self.zygote.fork()


class Attempt:
    """One attempt at one job, in one runner."""

    def __init__(self, server: Server, job: Claimed, runner: Runner, watched: Watched) -> None:
        self.server = server
        self.jobs = server.jobs
        self.job = job
        self.runner = runner
        self.watched = watched
        settings = server.settings
        self.output = Output(runner.output, settings.max_output_bytes, settings.max_output_lines)

    def run(self) -> None:
        """From the payload to the terminal status."""
        self.started = time.monotonic()
        try:
            answer = self._converse()
            if answer is None:
                self._end_dead()
            elif answer.type == "error":
                self._fail(answer.description)
            else:
                self._deliver(answer)
        except (WireError, Unavailable) as error:
            if self.watched.verdict is not None:
                self._end_dead()
            else:
                self._fail(str(error))

    def _converse(self) -> protocol.Answer | None:
        try:
            self._send()
        except OSError:
            return None
        if not self.jobs.running(self.job):
            self.watched.end(Verdict.LOST)
            return None
        answer = self._listen()
        if self.job.others_wait:
            self.server.fork_ahead()
        return answer

    def _send(self) -> None:
        if self.job.payload is not None:
            self._send_request(len(self.job.payload))
            self.runner.sock.sendall(self.job.payload)
            return
        with transfer.download(self.job.payload_url, verify=self._verify) as (size, chunks):
            self._send_request(size)
            for chunk in chunks:
                self.runner.sock.sendall(chunk)

    def _send_request(self, size: int) -> None:
        memory = self.server.settings.job_memory_bytes or _spare_bytes()
        request = protocol.Request(compress=self.job.compress, env=self.job.env, memory_bytes=memory, bytes=size)
        protocol.send_header(self.runner.sock, request)

    def _listen(self) -> protocol.Answer | None:
        """Pass printed lines on until the runner answers or ends."""
        with selectors.DefaultSelector() as selector:
            for source in (self.runner.sock, self.runner.output, self.runner.exited):
                selector.register(source, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if self.runner.output in ready and not self._pass_on_output():
                    selector.unregister(self.runner.output)
                if self.runner.sock in ready:
                    return protocol.receive_answer(self.runner.sock, self.server.settings.max_result_bytes)
                if self.runner.exited in ready:
                    return None

    def _pass_on_output(self) -> bool:
        lines = self.output.lines()
        if self.output.over:
            self.watched.end(Verdict.OUTPUT)
            return False
        self.jobs.log(self.job, lines or [])
        return lines is not None

    def _deliver(self, answer: protocol.Answer) -> None:
        meta = self._meta()
        if answer.bytes <= self._inline_bytes:
            body = bytearray()
            protocol.receive_bytes(self.runner.sock, answer.bytes, body.extend)
            self._drain()
            self.jobs.complete(self.job, bytes(body), meta)
            return
        self._upload(answer.bytes)
        self._drain()
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
            settings = self.server.settings
            self._fail(
                VERDICTS[verdict].format(
                    lines=settings.max_output_lines, bytes=settings.max_output_bytes, timeout_s=self.server._limit_s
                )
            )
        elif self.server.zygote.gone.is_set():
            self.jobs.hand_back(self.job.id, self.job.attempt)
        else:
            self._fail(_epitaph(status))

    def _fail(self, description: str) -> None:
        self._drain()
        self.jobs.fail(self.job, description, self._meta())

    def _drain(self) -> None:
        if self.watched.verdict != Verdict.OUTPUT:
            self.jobs.log(self.job, self.output.drain())

    def _meta(self) -> dict[str, Any]:
        return {
            "runtime": round(time.monotonic() - self.started, 6),
            "max_memory_usage": self.runner.peak_bytes(),
            "max_mem_by_gpu": {},
            "max_mem_pct_by_gpu": {},
            "threads": self.server.threads,
            "dtype": self.server.zygote.facts["dtype"],
        }


def _spare_bytes() -> int:
    """What a job may take when no setting says so: what is free, less a tenth of the machine for everybody else."""
    memory = psutil.virtual_memory()
    return int(max(memory.available - memory.total // 10, memory.total // 20))


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
        return "The block's process was killed from outside, most likely because the machine ran out of memory."
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    return f"The block crashed its process ({name})."


_server: Server | None = None


def serve_with(server: Server | None) -> None:
    """Say what this process runs jobs with."""
    global _server
    _server = server


@app.task(name=routing.RUN_NEXT, ignore_result=True)  # type: ignore[untyped-decorator]
def run_next(queue: str) -> None:
    """A ticket was taken: run the next job of its queue."""
    if _server is None:
        raise NdifError("This worker serves no model.")
    _server.run_next(queue)
