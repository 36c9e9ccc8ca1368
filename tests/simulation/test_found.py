"""What seeds have found, each as the small scenario that was left of it."""

from __future__ import annotations

from typing import Any

from tests.judge.worlds import judge
from tests.simulation.world import World

CALM: dict[str, Any] = {
    "workers": 2, "slow": 0.0, "restart": 0.1, "horizon": 8.0, "dag": None, "remote": False, "limits": None,
    "schedule": None, "runs": [], "signals": [], "wishes": [], "orders": [], "faults": [],
    "settings": {"lease": 3.0, "sweep_interval": 1.0, "poll_interval": 1.0, "inline_wait": 0.2, "concurrency": 1,
                 "max_losses": 20},
}  # fmt: skip

BUSY: dict[str, Any] = {"at": 0.1, "workflow": "task", "input": {"pause": 20.0}, "options": {}}
"""A run that takes a worker's only slot for as long as the scenario is about the others."""


def played(seed: int, **changes: Any) -> list[str]:
    """What is wrong with a scenario, in words."""
    return [str(violation) for violation in judge(World({**CALM, **changes}, f"found {seed}").play())]


def test_a_worker_that_was_frozen_beyond_its_lease_claims_nothing_before_it_has_beaten() -> None:
    """It was woken for a run meanwhile, and would take that for a worker that others have buried."""
    busy = {"at": 0.5, "workflow": "task", "input": {"pause": 20.0}, "options": {}}
    ready = {"at": 5.0, "workflow": "task", "input": {"pause": 1.5}, "options": {}}
    frozen = {"kind": "freeze", "worker": 0, "at": 0.2, "seconds": 6.5}
    for seed in range(5):
        assert played(seed, runs=[busy, ready], faults=[frozen]) == []


def test_a_claim_that_an_outage_delays_is_not_asked_under_an_id_that_others_have_buried() -> None:
    """It was asked again until the database answered, under the id that the worker had when it began. What it took then
    was executed by no worker, and counted a loss when the next sweep found it."""
    for question, queue, limits in (("claim", "plain", None), ("claim_limited", "narrow", {"concurrency": 2})):
        ready = {"at": 3.0, "workflow": "task", "input": {"pause": 0.5}, "options": {"queue": queue}}
        for number, seconds in ((1, 5.5), (2, 4.5)):
            cut = {"kind": "cut", "worker": 0, "question": question, "number": number, "seconds": seconds}
            for seed in range(5):
                assert played(seed, runs=[BUSY, ready], faults=[cut], limits=limits) == []


def test_nor_before_a_worker_that_was_frozen_knows_whether_it_still_has_its_id() -> None:
    ready = {"at": 3.0, "workflow": "task", "input": {"pause": 0.5}, "options": {}}
    cut = {"kind": "cut", "worker": 0, "question": "claim", "number": 1, "seconds": 2.0}
    frozen = {"kind": "freeze", "worker": 0, "at": 1.0, "seconds": 5.0}
    for seed in range(5):
        assert played(seed, runs=[BUSY, ready], faults=[cut, frozen]) == []


def test_a_wait_that_is_over_goes_on_where_no_run_may_stay_in_memory() -> None:
    """In a limited queue a run was released with a time that had passed, over and over."""
    program = [{"do": "signal", "name": "red", "timeout": 1.5}, {"do": "step"}]
    run = {"at": 0.0, "workflow": "plain", "input": {"program": program}, "options": {"queue": "narrow"}}
    world = World({**CALM, "limits": {"concurrency": 1}, "runs": [run]}, "found")
    outcome = world.play()
    assert judge(outcome) == []
    [row] = outcome.evidence.runs
    assert row.claim < 5, f"{row.claim} claims of a run that waits once"


def test_a_wait_frees_the_slot_also_if_the_timeout_is_shorter_than_a_moment() -> None:
    """The timer of the attempt rings again and again meanwhile, because waits do not count for it; and each time the
    wait looked as if it had just begun."""
    program = [{"do": "signal", "name": "red"}]
    run = {"at": 0.0, "workflow": "plain", "input": {"program": program}, "options": {"timeout": 0.5}}
    free = {**CALM["settings"], "inline_wait": 2.0, "concurrency": 10}
    assert played(1, runs=[run], settings=free) == []


def test_a_sleep_that_is_over_stays_over_when_the_clock_of_the_database_is_put_back() -> None:
    """What is recorded after it says so. It was held until the code had asked for that, and the run had diverged."""
    slept: list[dict[str, Any]] = [{"do": "sleep", "seconds": 1.0}, {"do": "step"}, {"do": "signal", "name": "red"}]
    beside: dict[str, Any] = {"do": "branches", "lines": [slept, [{"do": "signal", "name": "blue"}]]}
    back = {"kind": "step", "at": 3.0, "ms": -20_000}
    for program in (slept, [beside]):
        run = {"at": 0.0, "workflow": "plain", "input": {"program": [*program, {"do": "step"}]}, "options": {}}
        assert played(1, runs=[run], faults=[back], workers=1) == []


def test_a_stop_cuts_an_undo_off_beside_one_that_waits_for_its_next_try() -> None:
    """The judge took the run for released in good order, and counted the call that was cut off as one too many."""
    graph = [
        {"name": "s2", "after": [], "work": "flaky", "undo": "slow"},
        {"name": "s3", "after": ["s0", "s1"], "join": "any", "work": "flaky", "undo": "quick"},
        {"name": "s4", "after": [], "work": "checkpoint", "undo": "slow"},
    ]
    inputs = {"breaks": ["s4"], "pause": 0.5, "strays": [], "stuck": ["s0"], "unwanted": []}
    run = {"at": 0.174, "workflow": "dag", "input": inputs, "options": {}}
    settings = {**CALM["settings"], "inline_wait": 2.0, "concurrency": 3, "running_after": 1.0, "shutdown_grace": 0.0,
                "flush_records": 2, "history_cache": 0}  # fmt: skip
    for seed, moment in ((1, 1.2), (1, 1.6), (8, 1.3), (8, 1.5)):
        leave = {"kind": "leave", "worker": 0, "at": moment}
        assert played(seed, workers=1, dag=graph, runs=[run], faults=[leave], settings=settings) == []
