"""The census: how things stand, counted up to a bound."""

from __future__ import annotations

from stepfast.model.records import Mail
from tests.store.scene import MINUTE, Scene, signal, waiting


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
