"""Statistics of the last hours: what is counted, and how much is looked at."""

from __future__ import annotations

from collections import Counter

from stepfast.store.answers import Failures, RunCount
from tests.store.scene import DAY, MINUTE, Scene, completed, failed, failed_try, step, waiting

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
