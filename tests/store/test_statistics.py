"""Counts: the census, statistics, and answers that are remembered for a moment."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from stepfast.model.records import Mail
from stepfast.store.answers import Failures, RunCount
from stepfast.store.readonly import Remembered
from tests.store.scene import DAY, MINUTE, Scene, completed, failed, failed_try, signal, step, waiting

HOUR = 60 * MINUTE


def error(kind: str) -> str:
    return f'{{"type": "{kind}", "message": "secret"}}'


async def test_runs_by_workflow_queue_and_status(scene: Scene) -> None:
    empty = await scene.store.statistics(HOUR, 100, 100, 100)
    assert (empty.ended, empty.unfinished, empty.looked_at, empty.reach_ms) == ([], [], 0, None)
    for _ in range(2):
        await scene.flush(completed(await scene.running()))
    old = await scene.running()
    await scene.flush(completed(old))
    await scene.rows.shift(old.id, "completed_at", -2 * HOUR)
    asleep = await scene.running(workflow="mail")
    await scene.flush(waiting(asleep, delay_ms=DAY))
    await scene.rows.shift(asleep.id, "created_at", -3 * DAY)
    await scene.running(workflow="mail", queue="other")
    await scene.start("report", delay_ms=DAY)
    await scene.start("report")
    sample = await scene.store.statistics(HOUR, 100, 100, 100)
    assert sample.ended == [RunCount("order", "order", "completed", 2, None)]
    assert sorted(row[:4] for row in sample.unfinished) == [
        ("mail", "mail", "waiting", 1), ("mail", "other", "running", 1), ("report", "report", "queued", 2),
    ]  # fmt: skip
    [oldest] = [row.oldest_ms for row in sample.unfinished if row.status == "waiting"]
    assert oldest is not None and 3 * DAY <= oldest < 4 * DAY
    assert sample.looked_at == 7 and sample.reach_ms is not None and sample.reach_ms >= 3 * DAY
    few = await scene.store.statistics(HOUR, 3, 1, 100)
    assert few.looked_at == 3
    assert 3 <= sum(row.number for row in few.unfinished) <= 4  # one of each kind: held, waiting, ready, put off


async def test_failures_by_the_class_of_the_error_and_steps_by_how_long_they_took(scene: Scene) -> None:
    for number in range(2):
        run = await scene.running()
        tries = [failed_try(run, 0, 1, name="early", error=error("OSError"))]
        tries += [
            failed_try(run, 1, n, name="charge", error=error("ValueError" if n == 2 else "KeyError")) for n in (1, 2)
        ]
        await scene.flush(step(run, 0, name="early", duration_ms=100 + number), *tries)
        await scene.flush(failed(run, reason="code", error=error("StepFailed")))
    plain = await scene.running(workflow="mail")
    await scene.flush(failed_try(plain, 0, 1, error=error("OSError")), failed(plain, reason="code", error=error("Odd")))
    sealed = await scene.running(workflow="report")
    await scene.flush(failed(sealed, reason="timeout", error="s-e-a-l-e-d"))
    long_ago = await scene.running()
    await scene.flush(failed(long_ago, reason="code", error=error("Old")))
    await scene.rows.shift(long_ago.id, "completed_at", -2 * HOUR)
    sample = await scene.store.statistics(HOUR, 100, 100, 100)
    found = sorted(
        (row._replace(last_ms=0, first_ms=0, newest="") for row in sample.failures), key=lambda row: row.workflow
    )
    assert found == [
        Failures("mail", "code", None, "Odd", 1, 0),
        Failures("order", "code", "charge", "ValueError", 2, 0),
        Failures("report", "timeout", None, None, 1, 0),
    ]
    assert all(0 <= row.last_ms <= row.first_ms < HOUR for row in sample.failures)
    assert {row.workflow: row.newest for row in sample.failures} == {
        "mail": plain.id,
        "report": sealed.id,
        "order": run.id,
    }
    assert sorted(sample.steps) == [("order", "early", 100), ("order", "early", 101)]


async def test_steps_are_sampled_from_the_first_records_of_the_newest_runs(scene: Scene) -> None:
    """A run with many records leaves room for others. What is looked at is bounded, whatever it turns out to be."""
    for number, workflow in enumerate(("report", "mail", "order")):
        run = await scene.running(workflow=workflow)
        await scene.flush(*(step(run, n, name=f"s{n}", duration_ms=n) for n in range(number * 150)))
        await scene.flush(completed(run))
    await scene.rows.fetch("UPDATE [steps] SET kind = 'sleep' WHERE position % 2 = 1")

    async def sampled(runs: int, steps: int) -> Counter[str]:
        return Counter(row.workflow for row in (await scene.store.statistics(HOUR, runs, 100, steps)).steps)

    assert await sampled(10, 1000) == {"order": 100, "mail": 75}
    assert await sampled(10, 250) == {"order": 100, "mail": 25}
    assert await sampled(1, 1000) == {"order": 100}
    [longest] = {row.ms for row in (await scene.store.statistics(HOUR, 1, 100, 1000)).steps if row.ms >= 198}
    assert longest == 198


async def test_the_first_in_line_of_each_queue_and_how_many_there_are(scene: Scene) -> None:
    """In whichever lane of the queue it stands, and suspects too."""
    assert (await scene.store.census(100)).queues == {}
    low = await scene.start(priority=0)
    await scene.start(priority=5)
    await scene.start("mail", queue="order")
    await scene.rows.shift(low, "place", -30_000_000)
    await scene.start("mail")
    for workflow, age in (("report", 90), ("mail", 60)):
        suspect = await scene.start(workflow)
        await scene.rows.set(suspect, "losses", 3)
        await scene.rows.shift(suspect, "place", -age * 1_000_000)
    queues = (await scene.store.census(100)).queues
    assert {queue: ready for queue, (ready, _) in queues.items()} == {"order": 3, "mail": 2, "report": 1}
    assert [round(queues[name][1] / 30) for name in ("order", "mail", "report")] == [1, 2, 3]
    assert {queue: ready for queue, (ready, _) in (await scene.store.census(2)).queues.items()} == {
        "order": 2, "mail": 2, "report": 1,
    }  # fmt: skip


async def test_what_is_under_way_and_what_is_late(scene: Scene) -> None:
    empty = await scene.store.census(100)
    assert empty.runs == {"running": 0, "waiting": 0, "paused": 0, "compensating": 0}
    assert (empty.timer_lag, empty.undelivered, empty.late) == (0.0, 0, [])
    running = await scene.running()
    for minutes in (1, 2, 3):
        await scene.flush(waiting(await scene.running(workflow="mail"), delay_ms=minutes * MINUTE))
    await scene.store.pause(await scene.start())
    delayed = await scene.start(delay_ms=MINUTE)
    census = await scene.store.census(100)
    assert census.runs == {"running": 1, "waiting": 3, "paused": 1, "compensating": 0}
    assert census.timer_lag == 0
    await scene.rows.shift(delayed, "visible_at", -2 * MINUTE)
    letter: Mail = signal(running.id)
    await scene.post(letter)
    census = await scene.store.census(2)
    assert census.runs["waiting"] == 2
    assert 59 < census.timer_lag < 100
    assert census.undelivered == 1


class Source:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self) -> int:
        self.asked += 1
        number = self.asked
        await self.gate.wait()
        return number


async def test_an_answer_holds_for_a_moment_and_one_asks_for_all() -> None:
    source, memory = Source(), Remembered(60)
    source.gate.clear()
    tabs = [asyncio.create_task(memory.get("k", source)) for _ in range(10)]
    await asyncio.sleep(0)
    tabs[0].cancel()  # whoever asked first may go: the others are told all the same
    source.gate.set()
    assert await asyncio.gather(*tabs[1:]) == [1] * 9
    assert await memory.get("k", source) == 1
    assert await memory.get("other", source) == 2
    assert memory.asked == 2


async def test_what_took_long_holds_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question takes a twentieth of the time of one connection at most."""
    now = 0.0
    monkeypatch.setattr("stepfast.store.readonly.time.monotonic", lambda: now)
    memory, asked = Remembered(1), 0

    async def slow() -> int:
        nonlocal now, asked
        now, asked = now + 2, asked + 1
        return asked

    assert await memory.get("k", slow) == 1
    now += 39
    assert await memory.get("k", slow) == 1
    now += 2
    assert await memory.get("k", slow) == 2


async def test_after_a_change_nothing_holds_that_was_asked_before() -> None:
    source, memory = Source(), Remembered(60)
    assert await memory.get("k", source) == 1
    source.gate.clear()
    early = asyncio.create_task(memory.get("late", source))
    await asyncio.sleep(0)
    memory.forget()
    source.gate.set()
    assert await early == 2
    assert await memory.get("k", source) == 3
    assert await memory.get("late", source) == 4


async def test_an_error_is_told_to_all_who_wait_and_not_kept() -> None:
    memory = Remembered(60)

    async def broken() -> Any:
        raise ValueError("no")

    found = await asyncio.gather(memory.get("k", broken), memory.get("k", broken), return_exceptions=True)
    assert [type(each) for each in found] == [ValueError, ValueError]
    assert await memory.get("k", Source()) == 1


async def test_answers_do_not_pile_up() -> None:
    memory = Remembered(60)
    for number in range(600):
        await memory.get(number, Source())
    assert len(memory._kept) == 500
