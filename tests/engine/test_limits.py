"""Limits of queues: declared in code, set while everything runs, kept over all workers (rules 31 and 36)."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from datetime import timedelta
from typing import Any

import pytest

from stepfast import ConfigurationError, Context, Rate, Stepfast, UnknownOption
from tests.engine.conftest import MakeApp
from tests.support.engine import PATIENCE, Gate, bystander, drained, eventually
from tests.support.workflows import task


class Meter:
    """How many are inside at once, and how many ever were."""

    def __init__(self) -> None:
        self.inside = self.most = 0
        self.began: list[float] = []

    async def __aenter__(self) -> None:
        self.began.append(time.monotonic())
        self.inside += 1
        self.most = max(self.most, self.inside)

    async def __aexit__(self, *_: object) -> None:
        self.inside -= 1


async def test_no_more_run_at_once_than_declared_over_all_workers(app: Stepfast, make_app: MakeApp) -> None:
    meter = Meter()

    def declare(app: Stepfast) -> Any:
        app.queue("mail", concurrency=3)

        @app.task
        async def mail(number: int) -> int:
            async with meter:
                await asyncio.sleep(0.002)
            return number

        return mail

    mail = declare(app)
    other = make_app()
    declare(other)
    async with app.worker(), other.worker():
        runs = await app.start_many(mail, list(range(30)))
        assert [await run.result(timeout=PATIENCE) for run in runs] == list(range(30))
    assert meter.most == 3


async def test_a_limited_queue_keeps_no_other_waiting(app: Stepfast) -> None:
    gate = Gate()
    app.queue("mail", concurrency=1)
    mail = task(app, "mail", gate=gate, returns=None)
    others = bystander(app)
    async with app.worker():
        await app.start_many(mail, list(range(20)))
        await gate.reached()
        await others()
        assert gate.arrivals == 1
        gate.open()


async def test_limits_set_while_everything_runs_hold_at_once_and_until_they_are_reset(app: Stepfast) -> None:
    gate = Gate()
    app.queue("mail", concurrency=1)
    mail = task(app, "mail", gate=gate, returns=None)
    async with app.worker():
        runs = await app.start_many(mail, list(range(6)))
        await eventually(lambda: gate.arrivals == 1)
        await app.set_limits("mail", concurrency=3)
        await eventually(lambda: gate.arrivals == 3)
        [info] = await app.queues()
        assert (info.concurrency, info.overridden, info.running, info.ready) == (3, ("concurrency",), 3, 3)
        await app.set_limits("mail", reset=True)
        [info] = await app.queues()
        assert (info.concurrency, info.overridden) == (1, ())
        await app.set_limits("mail", concurrency=None)
        gate.open()
        for run in runs:
            await run.result(timeout=PATIENCE)


async def test_a_parent_does_not_keep_its_own_child_out(app: Stepfast) -> None:
    """Rule 36: whoever waits gives the place back at once, also for a moment."""
    app.queue("all", concurrency=1)

    @app.task(queue="all")
    async def child(number: int) -> int:
        return number + 1

    @app.workflow(queue="all")
    async def parent(ctx: Context, number: int) -> int:
        await ctx.sleep(0.001)
        return await ctx.call(child, number) + await ctx.call(child, number)

    async with app.worker():
        run = await app.start(parent, 1)
        assert await run.result(timeout=PATIENCE) == 4


async def test_steps_of_a_dag_are_limited_one_by_one(app: Stepfast) -> None:
    meter = Meter()
    app.queue("graph", concurrency=2, rate=Rate(5, per=3600))
    graph = app.dag("graph")
    for name in "abcde":

        async def body(ctx: Any) -> None:
            async with meter:
                await asyncio.sleep(0.001)

        graph.step(name=name)(body)
    async with app.worker():
        run = await app.start(graph)
        assert set(await run.result(timeout=PATIENCE)) == set("abcde")
    assert meter.most <= 2


async def test_no_more_begin_in_any_window_than_the_rate_says(app: Stepfast) -> None:
    app.queue("mail", rate=Rate(5, per=0.1))
    mail = task(app, "mail", returns=None)
    async with app.worker():
        runs = await app.start_many(mail, list(range(13)))
        for run in runs:
            await run.result(timeout=PATIENCE)
    found = [(await run.info()).started_at for run in runs]
    began = sorted(time for time in found if time is not None)
    assert len(began) == len(runs)
    for first, sixth in zip(began, began[5:], strict=False):
        assert sixth - first >= timedelta(milliseconds=100), began
    assert began[-1] - began[0] < timedelta(seconds=10)


async def test_customers_share_by_key(app: Stepfast) -> None:
    app.queue("mail", key_concurrency=2)
    inside, gate = Meter(), Gate()

    @app.task
    async def mail(number: int) -> int:
        async with inside:
            await gate.passing()
        return number

    async with app.worker():
        await app.start_many(mail, list(range(50)), concurrency_key="busy")
        quick = await app.start(mail, 1, concurrency_key="quiet")
        await eventually(lambda: gate.arrivals == 3)
        assert (await quick.info()).concurrency_key == "quiet"
        assert await quick.status() == "running"
        gate.open()


async def test_drain_waits_for_a_rate_that_is_near_and_for_no_other(app: Stepfast) -> None:
    app.queue("mail", rate=Rate(2, per=0.1))
    app.queue("post", rate=Rate(1, per=3600))
    mail = task(app, "mail", returns=None)
    post = task(app, "post", returns=None)
    mails, posts = await app.start_many(mail, [1, 2, 3, 4]), await app.start_many(post, [1, 2])
    await app.drain()
    assert [await run.status() for run in mails] == ["completed"] * 4
    assert [await run.status() for run in posts] == ["completed", "queued"]


async def test_a_retry_from_the_start_and_a_successor_keep_the_key(app: Stepfast) -> None:
    @app.workflow
    async def counting(ctx: Context, number: int) -> int:
        if number < 1:
            ctx.continue_as(number + 1)
        return number

    run = await drained(app, counting, 0, concurrency_key="a")
    again = await run.retry(from_start=True)
    await app.drain()
    assert [info.concurrency_key for info in await app.runs(workflow=counting)] == ["a"] * 4
    assert await again.result(timeout=PATIENCE) == 1


# -- what is declared -------------------------------------------------------------------------------------------------


async def test_two_deployments_that_declare_different_limits_are_told(
    app: Stepfast, make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    app.queue("mail", concurrency=3)
    async with app.worker():
        pass
    assert "mail" not in caplog.text
    other = make_app()
    other.queue("mail", concurrency=4, rate=Rate(9, per=60))
    with caplog.at_level(logging.WARNING, "stepfast"):
        async with other.worker():
            pass
        async with other.worker():
            pass
    told = [record.getMessage() for record in caplog.records if "'mail'" in record.getMessage()]
    assert len(told) == 1
    assert "declared as concurrency=4, rate=Rate(9, per=60) here" in told[0] and "concurrency=3 by" in told[0]
    [info] = await app.queues()
    assert (info.concurrency, info.rate) == (4, Rate(9, per=60))


@pytest.mark.enough_on("sqlite")
@pytest.mark.parametrize(
    ("limits", "what"),
    [
        ({"concurrency": 0}, "concurrency must be a whole number of at least 1, not 0"),
        ({"concurrency": True}, "concurrency must be a whole number"),
        ({"max_ready": 10**10}, "max_ready must be at most 1000000000"),
        ({"concurrency": -1}, "concurrency must be a whole number"),
        ({"concurrency": 1.5}, "concurrency must be a whole number"),
        ({"key_concurrency": math.nan}, "key_concurrency must be a whole number"),
        ({"max_ready": 0}, "max_ready must be a whole number"),
        ({"rate": 100}, "rate must be a Rate"),
        ({"key_rate": "100/s"}, "key_rate must be a Rate"),
    ],
)
async def test_bad_limits_are_refused_by_name(app: Stepfast, limits: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        app.queue("mail", **limits)
    with pytest.raises(ConfigurationError, match=what):
        await app.set_limits("mail", **limits)


@pytest.mark.parametrize("given", [(0, 1), (-1, 1), (True, 1), (1, 0), (1, -1), (1, math.nan), (1, "s"), (1, True)])
def test_bad_rates_are_refused(given: tuple[Any, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"Rate: (count|per)"):
        Rate(given[0], per=given[1])


@pytest.mark.enough_on("sqlite")
async def test_what_cannot_be_meant_is_refused(app: Stepfast) -> None:
    with pytest.raises(UnknownOption, match="did you mean 'concurrency'"):
        app.queue("mail", concurency=1)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="limits, or reset=True"):
        await app.set_limits("mail")
    with pytest.raises(ConfigurationError, match="limits, or reset=True"):
        await app.set_limits("mail", reset=True, concurrency=1)
    with pytest.raises(ConfigurationError, match="concurrency_key must not be empty"):
        mail = task(app, "mail", returns=None)
        await app.start(mail, concurrency_key="")
    app.queue("mail", concurrency=1)
    app.queue("mail", concurrency=1)
    with pytest.raises(ConfigurationError, match="declared twice"):
        app.queue("mail", concurrency=2)
    assert Rate(10, per=timedelta(minutes=1)) == Rate(10, per=60)


# -- pausing and resuming queues, and `app.queues()`


async def test_a_paused_queue_is_not_claimed_until_it_is_resumed(app: Stepfast) -> None:
    mail = task(app, "mail", returns="sent")
    others = bystander(app)
    await app.pause_queue("mail")
    run = await app.start(mail)
    async with app.worker():
        await others()
        assert await run.status() == "queued"
        await app.resume_queue("mail")
        assert await run.result(timeout=PATIENCE) == "sent"
        late = await app.start(mail)
        assert await late.result(timeout=PATIENCE) == "sent"


async def test_what_is_being_executed_goes_on_when_its_queue_is_paused(app: Stepfast) -> None:
    gate = Gate()
    mail = task(app, "mail", gate=gate, returns="sent")
    async with app.worker():
        run = await app.start(mail)
        await gate.reached()
        await app.pause_queue("mail")
        gate.open()
        assert await run.result(timeout=PATIENCE) == "sent"


async def test_a_paused_queue_keeps_nobody_from_draining(app: Stepfast) -> None:
    mail = task(app, "mail", returns=None)
    await app.pause_queue("mail")
    run = await drained(app, mail)
    assert await run.status() == "queued"


async def test_queues_as_they_stand(app: Stepfast, make_app: MakeApp) -> None:
    gate = Gate()
    mail = task(app, "mail", gate=gate, returns=None)
    await app.start_many(mail, [1, 2, 3])
    await app.start(mail, 4, delay=60)
    await app.start(mail, 5, queue="unheard of")
    other = make_app()
    await other.pause_queue("held")
    async with app.worker(queues=["mail"], concurrency=1):
        await gate.reached()
        found = {info.name: info for info in await eventually(other.queues)}
        mails = found["mail"]
        assert (mails.ready, mails.running, mails.waiting, mails.delayed) == (2, 1, 0, 1)
        assert (mails.paused, mails.workers, mails.concurrency, mails.rate) == (False, 1, None, None)
        assert mails.oldest is not None and 0 <= mails.oldest < PATIENCE
        assert (found["unheard of"].ready, found["unheard of"].workers) == (1, 0)
        assert (found["held"].paused, found["held"].ready, found["held"].oldest) == (True, 0, None)
        gate.open()


def test_the_same_without_an_event_loop(url: str) -> None:
    app = Stepfast(url)
    try:
        app.sync.pause_queue("mail")
        assert [(info.name, info.paused) for info in app.sync.queues()] == [("mail", True)]
        app.sync.resume_queue("mail")
        assert [(info.name, info.paused) for info in app.sync.queues()] == [("mail", False)]
    finally:
        app.sync.close()


@pytest.mark.enough_on("sqlite")
@pytest.mark.parametrize("name", ["", "a,b", 7])
async def test_a_queue_that_cannot_be_is_refused(app: Stepfast, name: str) -> None:
    with pytest.raises(ConfigurationError, match="the queue"):
        await app.pause_queue(name)
