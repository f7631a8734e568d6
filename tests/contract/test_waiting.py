"""The ways a client waits: on its socket, by polling, in an event loop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from tests.farm import Farm, wait_until

from .conftest import logits_of

PROMPT = "The farm answers"


def test_blocking_fills_the_callers_variables(gpt2: Any, clean_logits: torch.Tensor) -> None:
    assert torch.equal(logits_of(gpt2, remote=True), clean_logits)


def test_polling_gives_the_values_and_then_gives_them_again(gpt2: Any, clean_logits: torch.Tensor) -> None:
    with gpt2.trace(PROMPT, remote=True, blocking=False) as tracer:
        logits = gpt2.lm_head.output.save()  # noqa: F841
    backend = tracer.backend
    values = wait_until(backend, what="the job's values")
    assert torch.equal(values["logits"], clean_logits)
    assert torch.equal(backend()["logits"], clean_logits)
    assert backend.meta["runtime"] > 0


def test_a_session_is_polled_by_id_from_another_backend(gpt2: Any, clean_logits: torch.Tensor) -> None:
    from nnsight.intervention.backends.remote import RemoteBackend

    with gpt2.session(remote=True, blocking=False) as session:
        prompt = PROMPT
        with gpt2.trace(prompt):
            logits = gpt2.lm_head.output.save()  # noqa: F841
    later = RemoteBackend(gpt2.to_model_key(), blocking=False, job_id=session.backend.job_id)
    assert torch.equal(wait_until(later, what="the job's values")["logits"], clean_logits)


def test_polling_a_failed_job_raises_its_reason(gpt2: Any) -> None:
    from nnsight.intervention.backends.remote import RemoteError

    with gpt2.trace(PROMPT, remote=True, blocking=False) as tracer:
        seen = gpt2.lm_head.output  # noqa: F841
        raise ValueError("polled for")
    with pytest.raises(RemoteError, match="polled for"):
        wait_until(tracer.backend, what="the job's failure")


def test_lines_of_a_polled_job_can_be_read_afterwards(farm: Farm, gpt2: Any) -> None:
    with gpt2.trace(PROMPT, remote=True, blocking=False) as tracer:
        print("printed", int(gpt2.lm_head.output.shape[-1] > 0))
        done = True.save()  # noqa: F841
    assert wait_until(tracer.backend, what="the job's values") == {"done": True}
    assert farm.get(f"/response/{tracer.backend.job_id}/log")["lines"] == ["printed 1"]


def test_awaiting_gives_the_values(gpt2: Any, clean_logits: torch.Tensor) -> None:
    from nnsight.intervention.backends.remote import AsyncRemoteBackend

    async def one() -> torch.Tensor:
        backend = AsyncRemoteBackend(gpt2.to_model_key())
        with gpt2.trace(PROMPT, backend=backend):
            logits = gpt2.lm_head.output.save()  # noqa: F841
        return (await backend)["logits"]

    async def several() -> list[torch.Tensor]:
        return await asyncio.gather(*(one() for _ in range(3)))

    assert all(torch.equal(logits, clean_logits) for logits in asyncio.run(several()))


def test_async_for_gives_every_update_and_then_the_values(gpt2: Any, clean_logits: torch.Tensor) -> None:
    from nnsight.intervention.backends.remote import AsyncRemoteBackend

    async def updates() -> list[Any]:
        backend = AsyncRemoteBackend(gpt2.to_model_key())
        with gpt2.trace(PROMPT, backend=backend):
            print("a line")
            logits = gpt2.lm_head.output.save()  # noqa: F841
        return [update async for update in backend]

    *told, values = asyncio.run(updates())
    assert torch.equal(values["logits"], clean_logits)
    assert [update.description for update in told if update.status.name == "LOG"] == ["a line"]
    assert told[-1].status.name == "COMPLETED"


def test_async_for_ends_at_a_failure_with_its_reason(gpt2: Any) -> None:
    from nnsight.intervention.backends.remote import AsyncRemoteBackend

    async def updates() -> list[Any]:
        backend = AsyncRemoteBackend(gpt2.to_model_key())
        with gpt2.trace(PROMPT, backend=backend):
            seen = gpt2.lm_head.output  # noqa: F841
            raise ValueError("awaited")
        return [update async for update in backend]

    last = asyncio.run(updates())[-1]
    assert last.status.name == "ERROR" and "ValueError: awaited" in last.description
