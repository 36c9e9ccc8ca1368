"""Callbacks are given one outcome by who has their token; one that was accepted reaches its run (rule 67)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Struct

from stepfast import (
    Backoff,
    Callback,
    CallbackDone,
    CallbackFailed,
    CallbackNotFound,
    CallbackTimeout,
    Codec,
    Context,
    ContextMisuse,
    DagContext,
    DatabaseUnavailable,
    InvalidInput,
    RunFailed,
    Stepfast,
    SyncContext,
    step,
)
from stepfast.model.ids import callback_id
from stepfast.model.records import CallbackOutcome
from stepfast.run import Run
from stepfast.testing import Lab, crash_everywhere
from tests.engine.conftest import ON_BOTH, ON_SQLITE, RELEASED, WAITS, MakeApp
from tests.support.crashing import crash_at, outcome_of
from tests.support.engine import PATIENCE, Gate, eventually, finished, interrupt

pytestmark = ON_BOTH


class Receipt(Struct):
    cents: int


class Desk:
    """Where runs of ``pay`` hand out their tokens."""

    def __init__(self, app: Stepfast, **options: Any) -> None:
        self.tokens: list[str] = []
        self.said: list[str] = []

        @app.workflow(name="pay", max_attempts=1)
        async def pay(ctx: Context) -> Any:
            callback = await ctx.callback("payment", **{"type": Receipt, **options})
            await ctx.step("hand out", self.hand_out, callback.token, f"https://shop/pay/{callback.token}?a=1")
            return (await callback.result()).cents

        self.pay = pay

    def hand_out(self, token: str, url: str) -> None:
        self.tokens.append(token)

    async def token(self) -> str:
        await eventually(lambda: self.tokens)
        return self.tokens[-1]


@WAITS
async def test_a_callback_is_completed_once(app: Stepfast, make_app: MakeApp, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    desk, other = Desk(app), make_app()
    async with app.worker():
        run = await app.start(desk.pay)
        token = await desk.token()
        with pytest.raises(InvalidInput, match=r"callback 'payment' .* was not taken: .*\$\.cents"):
            await other.complete(token, {"cents": "many"})
        await other.complete(token, {"cents": 5})
        await app.complete(token, {"cents": 5})
        assert await run.result(timeout=PATIENCE) == 5
        await asyncio.to_thread(other.sync.complete, token, {"cents": 5})  # the run has ended: the same answer
        for again in (other.complete(token, {"cents": 6}), other.fail(token, "no"), other.beat(token)):
            with pytest.raises(CallbackDone, match="has been completed already") as done:
                await again
            assert (done.value.state, done.value.run_id) == ("completed", run.id)
    for wrong in ("", "x", token.upper(), token[:-1] + ("0" if token[-1] != "0" else "1")):
        with pytest.raises(CallbackNotFound):
            await app.complete(wrong, 1)
    [row] = await (await app.store()).callbacks_of(run.id)
    assert (row.name, row.state, row.id) == ("payment", "completed", callback_id(token))
    assert await _handed_out(run) == {"token": row.id, "url": f"https://shop/pay/{row.id}?a=1"}
    everything = repr((await run.steps(), await run.activity(), await run.info(), await run.export()))
    assert token not in everything + caplog.text + repr(row)


async def _handed_out(run: Run[Any]) -> Any:
    return next(call.parameters for call in await run.activity() if call.name == "hand out")


async def test_a_callback_is_failed_once(app: Stepfast) -> None:
    desk = Desk(app)
    async with app.worker():
        run = await app.start(desk.pay)
        token = await desk.token()
        await app.fail(token, "declined")
        await app.fail(token, "declined")
        with pytest.raises(RunFailed, match="callback 'payment' failed: declined"):
            await run.result(timeout=PATIENCE)
        await app.fail(token, "declined")
        with pytest.raises(CallbackDone, match="has failed"):
            await app.fail(token, "too late")
        with pytest.raises(CallbackDone, match="has failed"):
            await app.complete(token, {"cents": 5})
        await run.retry()
        await eventually(lambda: _waits(run))
        await app.complete(token, {"cents": 7})  # open again: the retry waits for it with the same token
        assert await run.result(timeout=PATIENCE) == 7


async def _waits(run: Run[Any]) -> bool:
    return (await run.info()).status == "waiting" or any(
        step.kind == "callback_result" and step.status == "waiting" for step in await run.steps()
    )


@pytest.mark.parametrize("beats", [False, True])
@ON_SQLITE
async def test_time_ends_a_callback(app: Stepfast, beats: bool) -> None:
    """The timeout counts from the making of the callback, not from the wait for it; a heartbeat from the last."""
    desk = Desk(app, timeout=3600, heartbeat=60 if beats else None)
    async with Lab(app) as lab:
        run = await lab.start(desk.pay)
        await lab.advance(50)
        await lab.beat(desk.tokens[0])
        await lab.advance(50)
        assert await run.status() == "waiting"
        await lab.advance(11 if beats else 3499)
        assert await run.status() == ("failed" if beats else "waiting")
        await lab.advance(2)
        said = "no heartbeat of callback 'payment' came within 60 s" if beats else "was not completed within 3600 s"
        with pytest.raises(RunFailed, match=f"CallbackTimeout: .*{said}"):
            await run.result()
        for call in (lab.complete(desk.tokens[0], {"cents": 5}), lab.beat(desk.tokens[0])):
            with pytest.raises(CallbackDone, match="has timed out"):
                await call
        await lab.app.get(run.id).retry()
        await lab.settle()
        await lab.advance(59)
        await lab.complete(desk.tokens[0], {"cents": 8})  # it has its whole time again
        assert await run.result() == 8


@ON_SQLITE
async def test_time_is_up_while_nothing_waits(app: Stepfast) -> None:
    """Whether an outcome comes in time is decided by the database's clock, whenever the run asks for it."""
    tokens: list[str] = []

    @app.workflow(max_attempts=1)
    async def late(ctx: Context) -> Any:
        early, never = [await ctx.callback(name, timeout=10) for name in ("early", "never")]
        await ctx.step("hand out", lambda: tokens.extend([early.token, never.token]))
        await ctx.sleep(100)
        try:
            await never.result()
        except CallbackTimeout as error:
            return [await early.result(), str(error), await early.result()]

    async with Lab(app) as lab:
        run = await lab.start(late)
        await lab.complete(tokens[0], "in time")
        await lab.advance(50)
        with pytest.raises(CallbackDone, match="has timed out"):
            await lab.complete(tokens[1], "too late")
        await lab.advance(60)
        assert await run.result() == ["in time", "callback 'never' was not completed within 10 s", "in time"]


@pytest.mark.parametrize("how", ["returns", "cancelled", "continues"])
async def test_a_run_that_ends_ends_its_callbacks(app: Stepfast, how: str) -> None:
    tokens: list[str] = []

    @app.workflow
    async def ends(ctx: Context, second: bool | None = None) -> None:
        callback = await ctx.callback("payment")
        await ctx.step("hand out", lambda: tokens.append(callback.token))
        if how == "cancelled":
            await callback.result()
        if how == "continues" and not second:
            ctx.continue_as(True)

    async with app.worker():
        run = await app.start(ends)
        await eventually(lambda: tokens)
        if how == "cancelled":
            await run.cancel()
        await eventually(lambda: _ended(run))
        for call in (app.complete(tokens[0], 1), app.fail(tokens[0], "no"), app.beat(tokens[0])):
            with pytest.raises(CallbackDone, match="its run has ended") as done:
                await call
            assert done.value.state == "ended"
        assert len(set(tokens)) == len(tokens)
    if how == "returns":
        await run.delete()
        with pytest.raises(CallbackNotFound):
            await app.complete(tokens[0], 1)


async def _ended(run: Run[Any]) -> bool:
    return (await run.info()).completed_at is not None


async def test_a_callback_given_up_in_a_race_stays(app: Stepfast) -> None:
    tokens: list[str] = []

    @app.workflow
    async def racing(ctx: Context) -> Any:
        callback = await ctx.callback("payment")
        await ctx.step("hand out", lambda: tokens.append(callback.token))
        winner, _ = await ctx.first(paid=callback.result(), late=ctx.sleep(0.01))
        both = await ctx.gather(callback.result(), callback.result())
        return [winner, *both]

    async with app.worker():
        run = await app.start(racing)
        await eventually(lambda: _step_recorded(run, "first"))
        await app.complete(tokens[0], "x")
        assert await run.result(timeout=PATIENCE) == ["late", "x", "x"]


async def _step_recorded(run: Run[Any], kind: str) -> bool:
    return any(step.kind == kind and step.status == "completed" for step in await run.steps())


@RELEASED
async def test_branches_wait_for_callbacks_of_their_own(app: Stepfast) -> None:
    tokens: dict[int, str] = {}

    async def approve(ctx: Context, number: int) -> Any:
        callback = await ctx.callback("approval", type=int)
        await ctx.step("hand out", lambda: tokens.__setitem__(number, callback.token))
        try:
            return await callback.result()
        except CallbackFailed as refused:
            return [refused.callback, refused.message]

    @app.workflow
    async def many(ctx: Context) -> Any:
        calls = [await ctx.callback("group") for _ in range(2)]
        await ctx.step("hand out", lambda: tokens.update({-n: call.token for n, call in enumerate(calls, 1)}))
        return await ctx.map(approve, [0, 1, 2]), await ctx.gather(*(call.result() for call in calls))

    async with app.worker():
        run = await app.start(many)
        await eventually(lambda: len(tokens) == 5)
        await app.complete(tokens[2], 2)
        await app.fail(tokens[1], "no")
        await app.complete(tokens[-1], "a")
        await app.complete(tokens[0], 0)
        await app.complete(tokens[-2], "b")
        assert await run.result(timeout=PATIENCE) == [[0, ["approval", "no"], 2], ["a", "b"]]


@ON_SQLITE
async def test_plain_code_and_dags_wait_for_callbacks(app: Stepfast) -> None:
    tokens: list[str] = []

    @app.workflow
    def plain(ctx: SyncContext) -> int:
        callback = ctx.callback("payment", type=int)
        ctx.step("hand out", tokens.append, callback.token)
        return callback.result()

    dag = app.dag("paid")

    @dag.step
    async def desk(ctx: DagContext) -> Any:
        callback = await ctx.callback("payment", timeout=60)
        await ctx.step("hand out", lambda: tokens.append(callback.token))
        return await callback.result()

    async with app.worker():
        for workflow, expected in ((plain, 5), (dag, {"desk": 5})):
            tokens.clear()
            run = await app.start(workflow)
            await eventually(lambda: tokens)
            await app.complete(tokens[0], 5)
            assert await run.result(timeout=PATIENCE) == expected


async def test_a_replay_gives_the_same_token(app: Stepfast) -> None:
    tokens: list[str] = []
    gate = Gate()

    @app.workflow
    async def pay(ctx: Context) -> Any:
        callback = await ctx.callback("payment")
        tokens.append(callback.token)
        await ctx.step("stop", gate.passing)
        return await callback.result()

    run = await app.start(pay)
    await interrupt(app, gate)
    await app.complete(tokens[0], "x")
    assert await finished(app, run, gate) == "x"
    assert len(tokens) > 1 and len(set(tokens)) == 1 and len(tokens[0]) == 32
    assert str(callback_id(tokens[0])) in repr(await (await app.store()).callbacks_of(run.id))


def _makes(batch: Any) -> bool:
    return any(entry.callbacks for entry in batch.joint)


@pytest.mark.parametrize("written", [False, True], ids=["lost", "reply lost"])
@pytest.mark.parametrize("when", [_makes, outcome_of("payment", "callback_result")], ids=["made", "taken"])
async def test_a_worker_dies_with_a_callback(
    app: Stepfast, make_app: MakeApp, when: Callable[[Any], bool], written: bool
) -> None:
    desk, other = Desk(app), make_app()
    again = Desk(other)
    run = await app.start(desk.pay)

    async def outside() -> None:
        while not (tokens := desk.tokens + again.tokens):
            await asyncio.sleep(0.01)
        await other.complete(tokens[-1], {"cents": 5})

    done = asyncio.create_task(outside())
    await crash_at(app, when, written=written)
    async with other.worker():
        assert await run.result(timeout=PATIENCE) == 5
        await done
    assert len({*desk.tokens, *again.tokens}) == 1


@ON_SQLITE
async def test_a_failed_attempt_keeps_what_was_given(app: Stepfast) -> None:
    """A value that was taken after the failure is forgotten with it, and taken again by the next attempt."""
    tokens: list[str] = []
    charged = 0

    def charge() -> None:
        nonlocal charged
        charged += 1
        if charged == 1:
            raise ValueError("not yet")

    @app.workflow(max_attempts=2)
    async def clumsy(ctx: Context) -> Any:
        early = await ctx.callback("early")
        await ctx.step("hand out", lambda: tokens.append(early.token))
        try:
            await ctx.step("charge", charge)
        except Exception:
            await early.result()
            raise
        return await early.result()

    async with app.worker():
        run = await app.start(clumsy)
        await eventually(lambda: tokens)
        await app.complete(tokens[0], "kept")
        assert await run.result(timeout=PATIENCE) == "kept"


@ON_SQLITE
async def test_a_value_that_only_the_code_can_judge_opens_it_again(
    app: Stepfast, caplog: pytest.LogCaptureFixture
) -> None:
    """Given where its type was not known, as from SQL."""
    desk = Desk(app)
    async with app.worker():
        run = await app.start(desk.pay)
        token = await desk.token()
        store = await app.store()
        await store.end_callback(callback_id(token) or "", CallbackOutcome("completed", '{"cents":"a"}', None, 1))
        await eventually(lambda: "is open again" in caplog.text)
        await app.complete(token, {"cents": 9})
        assert await run.result(timeout=PATIENCE) == 9


@ON_SQLITE
async def test_a_lost_reply_is_no_other_outcome(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(app)
    async with app.worker():
        run = await app.start(desk.pay)
        token, store = await desk.token(), await app.store()
        real, lost = store.end_callback, 0

        async def losing(*args: Any) -> Any:
            nonlocal lost
            answer = await real(*args)
            if answer is not None and answer.done:
                lost += 1
                raise DatabaseUnavailable("the reply was lost")
            return answer

        monkeypatch.setattr(store, "end_callback", losing)
        await app.complete(token, {"cents": 5})
        assert (lost, await run.result(timeout=PATIENCE)) == (1, 5)


@ON_SQLITE
async def test_a_wait_that_the_code_gives_up_takes_nothing(app: Stepfast) -> None:
    tokens: list[str] = []
    gate = Gate()

    @app.workflow
    async def impatient(ctx: Context) -> Any:
        first, second = [await ctx.callback(name, type=int) for name in ("1/pay", "pay")]
        await ctx.step("hand out", lambda: tokens.extend([first.token, second.token]))
        found = []
        for callback in (first, second):
            try:
                async with asyncio.timeout(0.02):
                    await callback.result()
            except TimeoutError:
                found.append("late")
        await ctx.step("stop", gate.passing)
        return [*found, await first.result(), await second.result()]

    run = await app.start(impatient)
    await interrupt(app, gate)
    await app.complete(tokens[0], 1)
    done = asyncio.create_task(finished(app, run, gate))
    await app.complete(tokens[1], 2)
    assert await done == ["late", "late", 1, 2]


@ON_SQLITE
async def test_tokens_are_in_no_error(app: Stepfast, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    tokens: list[str] = []

    @app.workflow(max_attempts=1)
    async def careless(ctx: Context) -> None:
        callback = await ctx.callback("payment")
        tokens.append(callback.token)
        await ctx.options(retries=1, backoff=Backoff(0.001)).step("send", send, callback.token)

    def send(token: str) -> None:
        raise ValueError(f"POST https://shop/{token}: 500")

    async with app.worker():
        run = await app.start(careless)
        with pytest.raises(RunFailed, match=f"POST https://shop/{callback_id(await _first(tokens))}: 500"):
            await run.result(timeout=PATIENCE)
    everything = repr((await run.steps(), await run.activity(), await run.info(), await run.export()))
    assert tokens[0] not in everything + caplog.text


async def _first(tokens: list[str]) -> str:
    await eventually(lambda: tokens)
    return tokens[0]


class _Backwards:
    def encode(self, data: bytes, /) -> bytes:
        return data[::-1]

    def decode(self, data: bytes, /) -> bytes:
        return data[::-1]


@ON_SQLITE
async def test_callbacks_pass_through_the_codec(make_app: MakeApp) -> None:
    codec: Codec = _Backwards()
    app = make_app(codec=codec)
    desk = Desk(app)
    async with app.worker():
        for outcome in ("complete", "fail"):
            desk.tokens.clear()
            run = await app.start(desk.pay)
            token = await desk.token()
            for _ in range(2):
                await (app.complete(token, {"cents": 5}) if outcome == "complete" else app.fail(token, "declined"))
            if outcome == "complete":
                assert await run.result(timeout=PATIENCE) == 5
            else:
                with pytest.raises(RunFailed, match="declined"):
                    await run.result(timeout=PATIENCE)
            [row] = await (await app.store()).callbacks_of(run.id)
            assert row.format == 2 and "cents" not in (row.value or "") and "declined" not in (row.error or "")
            assert await _handed_out(run) == {"token": row.id, "url": f"https://shop/pay/{row.id}?a=1"}


@ON_SQLITE
async def test_misuse_is_refused(app: Stepfast) -> None:
    desk = Desk(app)

    @step
    async def inside(callback: Any) -> None:
        await callback.result()

    @app.workflow(max_attempts=1)
    async def in_step(ctx: Context) -> None:
        await ctx.step(inside, await ctx.callback("x"))

    @app.workflow(max_attempts=1)
    async def in_workflow(ctx: Context) -> None:
        await app.complete("0" * 32)

    @app.workflow(max_attempts=1)
    async def odd(ctx: Context, how: dict[str, Any]) -> None:
        await ctx.callback(**how)

    async with app.worker():
        for workflow in (in_step, in_workflow):
            with pytest.raises(RunFailed, match=ContextMisuse.__name__):
                await (await app.start(workflow)).result(timeout=PATIENCE)
        for how, said in (
            ({"name": "a,b"}, "must have no comma"), ({"name": "x", "heartbeat": 0}, "must be more than zero"),
        ):  # fmt: skip
            with pytest.raises(RunFailed, match=said):
                await (await app.start(odd, how)).result(timeout=PATIENCE)
        await app.start(desk.pay)
        with pytest.raises(Exception, match="a text that says why"):
            await app.fail(await desk.token(), "")


@ON_SQLITE
async def test_whatever_crashes_the_outcome_is_the_same(app: Stepfast) -> None:
    tokens: list[str] = []

    @app.workflow(max_attempts=1)
    async def two(ctx: Context) -> list[Any]:
        paid = await ctx.callback("paid", timeout=60)
        late = await ctx.callback("late", timeout=3600, heartbeat=10)
        tokens[:] = [paid.token, late.token]
        found = [await paid.result()]
        try:
            await late.result()
        except CallbackTimeout as error:
            found.append(str(error))
        return found

    async def story(lab: Lab, run: Any) -> None:
        await lab.complete(tokens[0], 5)
        await lab.advance(5)
        await lab.beat(tokens[1])
        await lab.advance(9)

    report = await crash_everywhere(app, two, drive=story)
    assert report.result == [5, "no heartbeat of callback 'late' came within 10 s"]


@pytest.mark.parametrize("app", [{"inline_wait": 0.05, "poll_interval": 0.05, "sweep_interval": 0.05}], indirect=True)
async def test_what_was_accepted_is_what_the_run_sees(app: Stepfast, make_app: MakeApp) -> None:
    """Holders who contradict each other, workers that die at any flush: a ledger outside has what was accepted."""
    chance, other = random.Random(1), make_app()
    tokens: dict[tuple[str, int], str] = {}
    accepted: dict[str, set[Any]] = defaultdict(set)

    async def outcome_of(callback: Callback[Any]) -> Any:
        try:
            return await callback.result()
        except CallbackFailed as failed:
            return failed.message
        except CallbackTimeout:
            return None

    async def raced(ctx: Context, callback: Callback[Any]) -> Any:
        return await outcome_of(callback)

    @app.workflow(max_attempts=1)
    async def several(ctx: Context, seed: int) -> list[Any]:
        dice, calls = random.Random(seed), []
        for number in range(3):
            timeout = dice.choice([None, 0.2, 0.6])
            callback = await ctx.callback(f"c{number}", timeout=timeout, heartbeat=dice.choice([None, None, 0.4]))
            assert tokens.setdefault((ctx.run_id, number), callback.token) == callback.token
            calls.append(callback)
        await ctx.sleep(dice.choice([0, 0.1, 0.5]))
        try:
            await ctx.first(paid=calls[0].result(), late=ctx.sleep(dice.choice([0, 0.05])))
        except (CallbackFailed, CallbackTimeout):
            pass
        return await ctx.map(lambda ctx, n: raced(ctx, calls[n]), [0, 1, 2])

    async def hold(app: Stepfast, dice: random.Random) -> None:
        while True:
            await asyncio.sleep(dice.random() / 200)
            for token in dice.sample(sorted(tokens.values()), min(3, len(tokens))):
                with contextlib.suppress(CallbackDone):
                    if (act := dice.random()) < 0.3:
                        await app.beat(token)
                    elif act < 0.7:
                        await app.complete(token, value := dice.randrange(3))
                        accepted[token].add(value)
                    else:
                        await app.fail(token, text := dice.choice("ab"))
                        accepted[token].add(text)

    runs = await app.start_many(several, list(range(25)))
    holders = [asyncio.create_task(hold(who, random.Random(n))) for n, who in enumerate((app, other, other))]
    try:
        for _ in range(12):
            when = functools.partial(lambda left, _: next(left, True), iter([False] * chance.randrange(1, 8)))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await crash_at(app, when, written=chance.random() < 0.5)
        async with app.worker():
            for run in runs:
                found = await run.result(timeout=PATIENCE)
                ledger = [accepted[tokens[run.id, number]] for number in range(3)]
                assert [set() if value is None else {value} for value in found] == ledger
    finally:
        for holder in holders:
            holder.cancel()
        await asyncio.gather(*holders, return_exceptions=True)
