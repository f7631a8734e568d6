"""What to start and stop: decided without looking at anything but the arguments."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ndif_tasks.control.plan import Start, Stop, Wanted, plan
from ndif_tasks.fleet import Record, State


def replica(queue: str = "m", node: str = "n1", **more: Any) -> Record:
    return {"queue": queue, "node": node, "managed": True, "state": State.HOT, **more}


def wanted(queue: str = "m", replicas: int = 1) -> Wanted:
    return Wanted(queue, f"key of {queue}", replicas)


def test_a_missing_replica_is_started() -> None:
    assert plan([wanted()], {}, ["n1"], {}) == [Start(wanted(), "n1")]


def test_what_runs_is_left_alone() -> None:
    assert plan([wanted()], {"a": replica()}, ["n1"], {}) == []


def test_replicas_that_only_come_up_count() -> None:
    for state in (State.PENDING, State.DOWNLOADING, State.LOADING):
        assert plan([wanted()], {"a": replica(state=state)}, ["n1"], {}) == []


def test_the_newest_is_stopped_first() -> None:
    running = {"old": replica(), "new": replica()}
    assert plan([wanted()], running, ["n1"], {}) == [Stop("new", "n1")]


def test_what_nobody_wants_is_stopped_unless_started_by_hand() -> None:
    running = {"a": replica(), "b": replica(managed=False)}
    assert plan([], running, ["n1"], {}) == [Stop("a", "n1")]


def test_one_started_by_hand_counts_and_is_never_stopped() -> None:
    by_hand = {"a": replica(managed=False), "b": replica(managed=False)}
    assert plan([wanted()], by_hand, ["n1"], {}) == []
    assert plan([wanted()], {**by_hand, "c": replica()}, ["n1"], {}) == [Stop("c", "n1")]
    more = {**by_hand, "c": replica(), "d": replica()}
    assert plan([wanted()], more, ["n1"], {}) == [Stop("d", "n1"), Stop("c", "n1")]


def test_nothing_is_started_of_a_model_that_cannot_be_loaded() -> None:
    assert plan([wanted()], {}, ["n1"], {"m"}) == []


def test_nothing_is_started_without_a_node() -> None:
    assert plan([wanted()], {}, [], {}) == []


def test_a_stopping_or_failed_replica_is_replaced_and_not_stopped_again() -> None:
    running = {"a": replica(stopping=True), "b": replica(state=State.FAILED)}
    assert plan([wanted()], running, ["n1"], {}) == [Start(wanted(), "n1")]
    assert plan([], running, ["n1"], {}) == []


def test_new_replicas_go_where_fewest_are() -> None:
    running = {"a": replica("other", "n1")}
    steps = plan([wanted(replicas=3), wanted("other")], running, ["n1", "n2"], {})
    assert [step.node for step in steps if isinstance(step, Start)] == ["n2", "n1", "n2"]


records = st.builds(
    lambda queue, node, managed, state, stopping: replica(queue, node, managed=managed, state=state, stopping=stopping),
    st.sampled_from("mno"),
    st.sampled_from(["n1", "n2", "gone"]),
    st.booleans(),
    st.sampled_from(State),
    st.booleans(),
)


@given(
    st.dictionaries(st.sampled_from("mno"), st.integers(0, 4)),
    st.dictionaries(st.text("abcdef", min_size=1, max_size=3), records, max_size=8),
)
def test_one_round_reaches_what_is_wanted(counts: dict[str, int], running: dict[str, Record]) -> None:
    orders = [wanted(queue, count) for queue, count in counts.items()]
    after = dict(running)
    for number, step in enumerate(plan(orders, running, ["n1", "n2"], {})):
        if isinstance(step, Stop):
            assert running[step.replica]["managed"]
            after[step.replica] = {**after[step.replica], "stopping": True}
        else:
            after[f"new {number}"] = replica(step.wanted.queue, step.node)
    for order in orders:
        serving = [r for r in after.values() if r["queue"] == order.queue and r["state"] != State.FAILED]
        serving = [r for r in serving if not r.get("stopping") and (r["managed"] or r["state"] == State.HOT)]
        by_hand = [r for r in serving if not r["managed"]]
        assert len(serving) == max(order.replicas, len(by_hand))
    assert plan(orders, after, ["n1", "n2"], {}) == []
