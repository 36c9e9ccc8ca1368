"""Retries: counted exactly, put off by the backoff that is stored, and never before their time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from stepfast import Backoff, Context, NonRetryableError, RetryLater, RunFailed, RunInfo, Settings, Stepfast
from tests.engine.conftest import MakeApp
from tests.support.engine import Calls, make_due

pytestmark = pytest.mark.enough_on("sqlite")

AT_ONCE = Backoff(base=0, jitter=False)


def wait_of(info: RunInfo, failed_at: Any) -> float:
    """Seconds between a failure and when the run is due again, both by the database's clock."""
    assert info.due_at is not None
    seconds: float = (info.due_at - failed_at).total_seconds()
    return seconds


async def last_failure(app: Stepfast, run_id: str) -> Any:
    log = await app.get(run_id).activity()
    last = max(log, key=lambda call: call.started_at + call.duration)
    assert last.status == "failed"
    return last.started_at + last.duration


# -- counting ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("retries", "called"), [(0, 1), (1, 2), (3, 4)])
async def test_retries_of_a_step_count_as_the_word_says(app: Stepfast, calls: Calls, retries: int, called: int) -> None:
    """Retries=3 is at most four calls."""

    async def fail() -> None:
        calls.hit("fail")
        raise ValueError("always")

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        await ctx.options(retries=retries, backoff=AT_ONCE).step(fail)

    run = await app.start(order)
    await app.drain()
    assert await run.status() == "failed"
    assert calls["fail"] == called
    assert [s.attempts for s in await run.steps()] == [called]


@pytest.mark.parametrize("attempts", [1, 3])
@pytest.mark.parametrize("where", ["declared", "at the start"])
async def test_max_attempts_counts_as_the_words_say(app: Stepfast, calls: Calls, attempts: int, where: str) -> None:
    """Max_attempts=3 is at most three calls; what is given at the start wins."""

    @app.task(max_attempts=attempts if where == "declared" else 7, backoff=AT_ONCE)
    async def mail() -> None:
        calls.hit("mail")
        raise ValueError("always")

    run = await app.start(mail, max_attempts=None if where == "declared" else attempts)
    await app.drain()
    assert await run.status() == "failed"
    assert calls["mail"] == attempts
    assert (await run.info()).attempt == attempts


async def test_the_default_is_three_attempts_and_no_retries_of_steps(app: Stepfast, calls: Calls) -> None:
    """Semantics, defaults: an error ends the attempt, and the next goes on at that step."""

    @app.workflow(backoff=AT_ONCE)
    async def order(ctx: Context) -> None:
        await ctx.step("ok", lambda: calls.hit("ok"))
        await ctx.step("fail", lambda: calls.hit("fail") and 1 / 0)

    run = await app.start(order)
    await app.drain()
    assert await run.status() == "failed"
    assert calls == {"ok": 1, "fail": 3}


async def test_defaults_can_be_changed_for_the_whole_application(make_app: MakeApp, calls: Calls) -> None:
    app = make_app(settings=Settings(max_attempts=2, retries=1, backoff_base=0.0))

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.step("fail", lambda: calls.hit("fail") and 1 / 0)

    run = await app.start(order)
    await app.drain()
    assert await run.status() == "failed"
    assert calls["fail"] == 4


async def test_fails_twice_then_succeeds(app: Stepfast, calls: Calls) -> None:

    @app.task(backoff=AT_ONCE)
    def mail() -> str:
        if calls.hit("mail") < 3:
            raise ConnectionError("busy")
        return "sent"

    run = await app.start(mail)
    await app.drain()
    assert await run.result() == "sent"
    info = await run.info()
    assert (info.attempt, info.losses, info.error) == (3, 0, None)
    assert [(a.attempt, a.status, a.error and a.error.type) for a in await run.activity()] == [
        (1, "failed", "ConnectionError"),
        (2, "failed", "ConnectionError"),
    ]


async def test_a_new_attempt_brings_a_new_budget_of_retries(app: Stepfast, calls: Calls) -> None:
    """Separate counters."""

    @app.workflow(max_attempts=2, backoff=AT_ONCE)
    async def order(ctx: Context) -> None:
        await ctx.options(retries=2, backoff=AT_ONCE).step("fail", lambda: calls.hit("fail") and 1 / 0)

    run = await app.start(order)
    await app.drain()
    assert await run.status() == "failed"
    assert calls["fail"] == 6


async def test_every_failed_try_is_journalled_before_the_next(app: Stepfast, calls: Calls) -> None:
    """Rule 16: and the log tells of each, in start order."""
    seen: list[int] = []

    async def flaky(run_id: str) -> str:
        seen.append(len(await app.get(run_id).activity()))
        if calls.hit("flaky") < 4:
            raise ValueError(f"try {calls['flaky']}")
        return "ok"

    @app.workflow
    async def order(ctx: Context) -> str:
        return await ctx.options(retries=3, backoff=AT_ONCE).step(flaky, ctx.run_id)

    run = await app.start(order)
    await app.drain()
    assert await run.result() == "ok"
    assert seen == [0, 1, 2, 3]
    log = await run.activity()
    assert [(a.attempt, a.status, a.error.message if a.error else a.result) for a in log] == [
        (1, "failed", "try 1"),
        (2, "failed", "try 2"),
        (3, "failed", "try 3"),
        (4, "completed", "ok"),
    ]
    assert all(a.parameters == {"run_id": run.id} for a in log)


async def test_tries_survive_the_worker(app: Stepfast, calls: Calls) -> None:
    """Rule 16: a step that waited for its retry elsewhere has not forgotten how many it had."""

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        await ctx.options(retries=2).step("fail", fail)

    async def fail() -> None:
        calls.hit("fail")
        raise RetryLater(0.0 if calls["fail"] > 1 else 60)

    run = await app.start(order)
    await app.drain()
    assert (await run.info()).waiting_for == "retry"
    await make_due(app, run.id)
    await app.drain()
    assert await run.status() == "failed"
    assert calls["fail"] == 3


# -- how long ----------------------------------------------------------------------------------------------------


async def test_each_backoff_of_a_run_is_longer_than_the_last(app: Stepfast) -> None:
    """1, 2, 4, 8 seconds, as stored; the run is queued with a later time."""

    @app.task(max_attempts=5, backoff=Backoff(base=5, jitter=False))
    async def mail() -> None:
        raise ValueError("always")

    run = await app.start(mail)
    waits = []
    for attempt in range(1, 5):
        await app.drain()
        info = await run.info()
        assert (info.status, info.ready, info.attempt) == ("queued", False, attempt + 1)
        assert info.error is not None and info.error.message == "always"  # its error is kept
        waits.append(wait_of(info, await last_failure(app, run.id)))
        await make_due(app, run.id)
    assert waits == [5, 10, 20, 40]


async def test_the_default_backoff_is_one_second_give_or_take_a_fifth(make_app: MakeApp) -> None:
    """Semantics, defaults: many runs do not come back together."""
    app = make_app(settings=Settings(inline_wait=0, drain=0))

    @app.task
    async def mail(number: int) -> None:
        raise ValueError("always")

    runs = await app.start_many(mail, range(12))  # few: none is due again before all were looked at
    await app.drain()  # which does not wait for the retries, because the settings say so
    infos = [await run.info() for run in runs]
    waits = [wait_of(info, await last_failure(app, info.id)) for info in infos if info.attempt == 2]
    assert len(waits) > 8
    assert all(0.799 <= wait <= 1.2 for wait in waits)
    assert len(set(waits)) > 5


@pytest.mark.parametrize(
    ("backoff", "waits"),
    [
        (Backoff(base=10, factor=3, max=1000, jitter=False), [10, 30, 90]),
        (Backoff(base=10, factor=1, jitter=False), [10, 10, 10]),
        (Backoff(base=10, factor=10, max=50, jitter=False), [10, 50, 50]),
    ],
    ids=["exponential", "fixed", "capped"],
)
async def test_the_backoff_of_a_step_is_stored_with_the_waiting_run(
    app: Stepfast, backoff: Backoff, waits: list[float]
) -> None:
    """A wait longer than a moment is a pause of the run, due exactly then."""

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        await ctx.options(retries=3, backoff=backoff).step("fail", lambda: 1 / 0)

    run = await app.start(order)
    found = []
    for _ in waits:
        await app.drain()
        info = await run.info()
        assert (info.status, info.waiting_for, info.worker, info.attempt) == ("waiting", "retry", None, 1)
        found.append(wait_of(info, await last_failure(app, run.id)))
        await make_due(app, run.id)
    # The span is measured from the commit of the try to that of the wait, so it may be a little longer.
    assert all(wait - 0.01 <= seen < wait + 5 for wait, seen in zip(waits, found, strict=True))
    await app.drain()
    assert await run.status() == "failed"


async def test_a_retry_is_not_delivered_before_its_time(app: Stepfast, calls: Calls) -> None:
    """However often workers ask; and the wait uses no other budget."""

    @app.task
    async def mail() -> None:
        calls.hit("mail")
        raise RetryLater(3600)

    run = await app.start(mail)
    for _ in range(4):
        await app.drain()
    assert calls["mail"] == 1
    info = await run.info()
    assert (info.status, info.attempt, info.losses) == ("queued", 2, 0)


@pytest.mark.parametrize("delay", [90, 90.0, timedelta(minutes=1.5)], ids=["int", "float", "timedelta"])
async def test_an_error_may_say_when_to_try_again(app: Stepfast, delay: Any) -> None:
    """RetryLater, instead of the backoff."""

    @app.task
    async def mail() -> None:
        raise RetryLater(delay, "come back later")

    run = await app.start(mail)
    await app.drain()
    info = await run.info()
    assert wait_of(info, await last_failure(app, run.id)) == 90
    assert info.error is not None and info.error.message == "come back later"


async def test_retry_later_of_a_step_with_retries_puts_off_the_step(app: Stepfast) -> None:

    async def later() -> None:
        raise RetryLater(120)

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.options(retries=1).step(later)

    run = await app.start(order)
    await app.drain()
    info = await run.info()
    assert (info.status, info.attempt) == ("waiting", 1)
    assert 119.99 <= wait_of(info, await last_failure(app, run.id)) < 125


async def test_retry_later_of_a_step_without_retries_puts_off_the_run(app: Stepfast) -> None:
    """The step's error ends the attempt; the next is when the error said."""

    async def later() -> None:
        raise RetryLater(120)

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.step(later)

    run = await app.start(order)
    await app.drain()
    info = await run.info()
    assert (info.status, info.attempt) == ("queued", 2)
    assert wait_of(info, await last_failure(app, run.id)) == 120


async def test_retry_later_uses_up_a_try_like_any_other_error(app: Stepfast, calls: Calls) -> None:
    @app.task(max_attempts=2)
    async def mail() -> None:
        calls.hit("mail")
        raise RetryLater(0)

    run = await app.start(mail)
    await app.drain()
    assert await run.status() == "failed"
    assert calls["mail"] == 2


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), 1e300, timedelta(seconds=-1)], ids=str)
def test_a_delay_that_makes_no_sense_is_refused(delay: Any) -> None:
    with pytest.raises(ValueError):
        RetryLater(delay)


# -- errors that no try can help ------------------------------------------------------------------------------


class Forbidden(NonRetryableError):
    pass


@pytest.mark.parametrize("error", [NonRetryableError("no"), Forbidden("no")], ids=["itself", "a subclass"])
async def test_a_permanent_error_ends_a_run_at_once(app: Stepfast, calls: Calls, error: Exception) -> None:

    @app.task(max_attempts=5, backoff=AT_ONCE)
    async def mail() -> None:
        calls.hit("mail")
        raise error

    run = await app.start(mail)
    await app.drain()
    with pytest.raises(RunFailed, match="no") as caught:
        await run.result()
    assert calls["mail"] == 1
    assert caught.value.reason == "code"


async def test_a_permanent_error_of_a_step_ends_step_and_run_at_once(app: Stepfast, calls: Calls) -> None:
    """Neither retries of the step nor attempts of the run."""

    async def pay() -> None:
        calls.hit("pay")
        raise Forbidden("stolen card")

    @app.workflow(max_attempts=5, backoff=AT_ONCE)
    async def order(ctx: Context) -> None:
        await ctx.options(retries=5, backoff=AT_ONCE).step(pay)

    run = await app.start(order)
    await app.drain()
    assert await run.status() == "failed"
    assert calls["pay"] == 1


async def test_the_worker_goes_on_after_any_handler_error(app: Stepfast) -> None:
    """One handler error does not end the poll loop."""

    @app.task(max_attempts=1)
    async def mail(number: int) -> int:
        if number % 2:
            raise ValueError("odd")
        return number

    runs = await app.start_many(mail, range(20))
    await app.drain(concurrency=2)
    assert [await run.status() for run in runs] == ["completed", "failed"] * 10
