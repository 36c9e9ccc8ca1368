"""`max_ready`: a start beyond it is refused, and nothing is started."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepfast import Context, QueueFull, Stepfast
from stepfast.engine.host import Clock
from stepfast.model.queue_config import Bound
from stepfast.model.records import NewRun, RunShape
from stepfast.starts import Bounds
from tests.engine.conftest import MakeApp
from tests.support.engine import finished
from tests.support.workflows import task
from tests.worker.spying import HeldReply


@pytest.fixture
def mail(app: Stepfast) -> Any:
    app.queue("mail", max_ready=3)
    return task(app, "mail")


async def ready(app: Stepfast) -> int:
    return {info.name: info.ready for info in await app.queues()}.get("mail", 0)


async def test_a_start_beyond_it_is_refused(app: Stepfast, mail: Any) -> None:
    for number in range(3):
        await app.start(mail, number)
    with pytest.raises(QueueFull, match="queue 'mail' has 3 ready runs and takes at most 3"):
        await app.start(mail, 3)
    assert await ready(app) == 3
    later = await app.start(mail, 4, delay=60)
    assert await later.status() == "queued"
    await app.drain()
    assert await (await app.start(mail, 5)).status() == "queued"


async def test_many_are_started_all_or_none(app: Stepfast, mail: Any) -> None:
    await app.start(mail, 0)
    with pytest.raises(QueueFull, match="3 more would be too many"):
        await app.start_many(mail, [1, 2, 3])
    assert await ready(app) == 1
    assert len(await app.start_many(mail, [1, 2])) == 2


async def test_the_start_of_a_key_that_is_taken_is_never_too_much(app: Stepfast, mail: Any) -> None:
    first = await app.start(mail, 0, key="a")
    await app.start_many(mail, [1, 2])
    assert (await app.start(mail, 0, key="a")).id == first.id
    with pytest.raises(QueueFull):
        await app.start(mail, 0, key="b")


async def test_starts_at_once_from_several_processes_stay_within_it(
    app: Stepfast, mail: Any, make_app: MakeApp
) -> None:
    await app.set_limits("mail", max_ready=6)
    await app.start(mail, 0)  # from now on the other, which lacks the code, knows the workflow
    other = make_app()
    starts = [each.start("mail", n) for n in range(6) for each in (app, other)]
    done = await asyncio.gather(*starts, return_exceptions=True)
    assert sum(isinstance(each, QueueFull) for each in done) == 7
    assert await ready(app) == 6


async def test_children_are_never_refused(app: Stepfast, mail: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> int:
        number: int = await ctx.call(mail, 7)
        return number

    run = await app.start(parent)
    await app.start_many(mail, [1, 2, 3])
    assert await finished(app, run) == 7


async def test_a_dag_counts_the_steps_that_begin(app: Stepfast) -> None:
    app.queue("graph", max_ready=1)
    graph = app.dag("graph")

    @graph.step
    async def first(ctx: Any) -> None: ...

    @graph.step(after=["first"])
    async def second(ctx: Any) -> None: ...

    await app.start(graph)
    with pytest.raises(QueueFull):
        await app.start(graph)
    assert len(await app.runs(workflow="graph")) == 1


@pytest.mark.parametrize("overtaken", [False, True], ids=["it is the last", "a younger one has overtaken it"])
async def test_the_answer_to_a_question_older_than_what_was_said_is_not_taken_for_the_last_word(
    app: Stepfast, mail: Any, overtaken: bool
) -> None:
    await app.start(mail, 0)
    store = await app.store()
    held, bounds = HeldReply(store, "queue_bounds"), Bounds(store, Clock())
    older = asyncio.create_task(bounds.learn())
    assert await held.done() == {"mail": 3}
    await app.set_limits("mail", max_ready=2)
    bounds.forget()
    if overtaken:
        await bounds.learn()
    held.release()
    await older
    if not overtaken:
        assert not bounds.known
        await bounds.learn()
    assert bounds.known
    most = bounds.of([NewRun("run", RunShape("mail", "1", "mail"), "null")])
    await asyncio.gather(*bounds.drop())
    assert most == Bound("mail", 2)
