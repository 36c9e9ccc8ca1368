"""Questions to runs are answered once, refused, or ended with the run; none is lost (rule 63)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepfast import (
    Codec,
    Context,
    ContextMisuse,
    DagContext,
    InvalidInput,
    InvalidState,
    Question,
    QuestionRefused,
    QuestionTimeout,
    RunEnded,
    RunFailed,
    Stepfast,
    SyncContext,
    step,
)
from stepfast.run import Run
from stepfast.testing import crash_everywhere
from tests.engine.conftest import ON_BOTH, ON_SQLITE, RELEASED, WAITS, MakeApp
from tests.support.crashing import crash_at
from tests.support.engine import PATIENCE, Calls, Gate, eventually, finished, interrupt
from tests.worker.spying import wrap

pytestmark = ON_BOTH


def shop(app: Stepfast) -> Any:
    @app.workflow(name="cart")
    async def cart(ctx: Context) -> int:
        total = 0
        while True:
            question = await ctx.wait_question("add", type=int)
            if question.value == 0:
                await question.refuse("sold out")
                continue
            total += question.value
            await question.answer(total)
            if total >= 10:
                return total

    return cart


@WAITS
async def test_a_run_answers_and_refuses(app: Stepfast) -> None:
    cart = shop(app)
    async with app.worker():
        run = await app.start(cart)
        assert await run.ask("add", 3, timeout=PATIENCE) == 3
        with pytest.raises(QuestionRefused, match="sold out"):
            await run.ask("add", 0, timeout=PATIENCE)
        assert await run.ask("add", 4, timeout=PATIENCE) == 7
        await eventually(lambda: _waits(run))
        with pytest.raises(InvalidInput, match="does not fit what run"):
            await run.ask("add", "x", timeout=PATIENCE)
        assert await run.ask("add", 3, timeout=PATIENCE) == 10
        assert await run.result(timeout=PATIENCE) == 10
        with pytest.raises(RunEnded, match="had ended"):
            await run.ask("add", 1, timeout=PATIENCE)


async def _waits(run: Run[Any]) -> bool:
    return any(step.kind == "question" and step.status == "waiting" for step in await run.steps())


async def test_the_same_id_is_the_same_question(app: Stepfast, make_app: MakeApp) -> None:
    """Asked by several processes, again after it was answered, and after the run ended: one answer."""
    cart = shop(app)
    other = make_app()
    run = await app.start(cart)
    with pytest.raises(TimeoutError, match="asked again with the same id="):
        await run.ask("add", 10, id="q-1", timeout=0.05)
    waiting = [asyncio.create_task(who.get(run.id).ask("add", 10, id="q-1")) for who in (app, other, app)]
    async with app.worker():
        assert await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE) == [10, 10, 10]
        assert await run.result(timeout=PATIENCE) == 10
    assert await other.get(run.id).ask("add", 10, id="q-1", timeout=PATIENCE) == 10
    with pytest.raises(InvalidInput, match="take another id"):
        await run.ask("remove", id="q-1")


async def test_a_run_that_ends_ends_its_questions(app: Stepfast) -> None:
    """Those it has not taken, and those it has taken and not answered; retried, it answers neither."""
    taken, told = Gate(), Calls()

    @app.workflow(max_attempts=1)
    async def forgetful(ctx: Context) -> str:
        question = await ctx.wait_question("first")
        await taken.passing()
        if told.hit("ends") == 1:
            raise ValueError("no more")
        await question.answer("late")
        other = await ctx.wait_question("second", timeout=0.05)
        return str(other.value)

    async with app.worker():
        run = await app.start(forgetful)
        asked = [asyncio.create_task(run.ask(name)) for name in ("first", "second")]
        await taken.reached()
        await eventually(lambda: _asked(app, run, 2))
        taken.open()
        for task in asked:
            with pytest.raises(RunEnded, match="ended before it answered"):
                await asyncio.wait_for(task, PATIENCE)
        await run.retry()
        with pytest.raises(RunFailed, match="no question 'second' came"):
            await run.result(timeout=PATIENCE)


async def _asked(app: Stepfast, run: Run[Any], number: int) -> bool:
    return len(await (await app.store()).questions_of(run.id)) == number


@pytest.mark.parametrize("how", ["cancel", "deadline"])
async def test_an_asker_is_told_when_the_run_ends_otherwise(app: Stepfast, how: str) -> None:
    @app.workflow
    async def deaf(ctx: Context) -> None:
        await ctx.wait_signal("never")

    async with app.worker():
        run = await app.start(deaf, deadline=0.3 if how == "deadline" else None)
        asked = asyncio.create_task(run.ask("x"))
        await eventually(lambda: _asked(app, run, 1))
        if how == "cancel":
            await run.cancel()
        with pytest.raises(RunEnded):
            await asyncio.wait_for(asked, PATIENCE)


async def test_a_question_given_up_in_a_race_stays(app: Stepfast) -> None:
    @app.workflow
    async def racing(ctx: Context) -> str:
        winner, question = await ctx.first(done=ctx.step("quick", lambda: None), asked=ctx.wait_question("q"))
        if winner == "done":
            question = await ctx.wait_question("q")
        await question.answer(winner)
        return winner

    run = await app.start(racing)
    asked = asyncio.create_task(run.ask("q", 5))
    await eventually(lambda: _asked(app, run, 1))
    async with app.worker():
        assert await asyncio.wait_for(asked, PATIENCE) == await run.result(timeout=PATIENCE)


async def test_questions_go_on_with_a_chain(app: Stepfast) -> None:
    """What a run has not taken its successor answers; what it has taken and not answered ends."""
    gate = Gate()

    @app.workflow
    async def chain(ctx: Context, number: int) -> int:
        question = await ctx.wait_question("q")
        if number == 0:
            await gate.passing()
            ctx.continue_as(1)
        await question.answer(number)
        return number

    async with app.worker():
        run = await app.start(chain, 0)
        first = asyncio.create_task(run.ask("q", "a"))
        await gate.reached()
        second = asyncio.create_task(run.ask("q", "b", id="b"))
        await eventually(lambda: _asked(app, run, 2))
        gate.open()
        assert await asyncio.wait_for(second, PATIENCE) == 1
        with pytest.raises(RunEnded):
            await asyncio.wait_for(first, PATIENCE)
        assert await run.ask("q", "b", id="b", timeout=PATIENCE) == 1
        with pytest.raises(RunEnded):
            await run.ask("q", timeout=PATIENCE)


@RELEASED
@ON_SQLITE
async def test_an_answer_is_given_once_whatever_is_replayed(app: Stepfast, calls: Calls) -> None:
    gate = Gate()

    @app.workflow
    async def answers(ctx: Context) -> list[Any]:
        question = await ctx.wait_question("q")
        await question.answer(calls.hit("answered"))
        await ctx.step("stop", gate.passing)
        return [question.id, question.value]

    run = await app.start(answers)
    asked = asyncio.create_task(run.ask("q", {"a": 1}))
    await interrupt(app, gate)
    assert await asyncio.wait_for(asked, PATIENCE) == 1
    await finished(app, run, gate)
    assert calls["answered"] == 2
    [row] = await (await app.store()).questions_of(run.id)
    assert await run.result() == [row.id, {"a": 1}]
    assert (row.name, row.state, row.answer) == ("q", "answered", "1")


@pytest.mark.parametrize("written", [False, True], ids=["lost", "reply lost"])
async def test_a_worker_dies_while_it_answers(app: Stepfast, make_app: MakeApp, written: bool) -> None:
    cart = shop(app)
    other = make_app()
    shop(other)
    run = await app.start(cart)
    asked = asyncio.create_task(run.ask("add", 10))
    await crash_at(app, lambda batch: any(entry.answers for entry in batch.joint), written=written)
    await other.drain()
    assert await asyncio.wait_for(asked, PATIENCE) == 10
    assert await run.result(timeout=PATIENCE) == 10


@ON_SQLITE
async def test_a_failed_attempt_puts_its_question_back(app: Stepfast, calls: Calls) -> None:
    """A question that was taken after the failure is forgotten with it, and answered by the next attempt."""

    @app.workflow(max_attempts=2)
    async def clumsy(ctx: Context) -> str:
        try:
            await ctx.step("charge", lambda: calls.hit("charge") == 2 or 1 / 0)
        except Exception:
            await ctx.wait_question("q")
            raise
        question = await ctx.wait_question("q")
        await question.answer("thanks")
        return str(question.value)

    async with app.worker():
        run = await app.start(clumsy)
        assert await run.ask("q", "x", timeout=PATIENCE) == "thanks"
        assert await run.result(timeout=PATIENCE) == "x"


@ON_SQLITE
async def test_a_question_has_one_answer_in_the_code(app: Stepfast) -> None:
    @app.workflow(max_attempts=1)
    async def twice(ctx: Context) -> None:
        question = await ctx.wait_question("q")
        await question.answer(1)
        await question.refuse("no")

    @step
    async def inside(question: Question[Any]) -> None:
        await question.answer(1)

    @app.workflow(max_attempts=1)
    async def in_step(ctx: Context) -> None:
        question = await ctx.wait_question("q")
        await ctx.options(name="x").step("x", lambda: None)
        await ctx.step(inside, question)

    async with app.worker():
        run = await app.start(twice)
        assert await run.ask("q", timeout=PATIENCE) == 1
        with pytest.raises(RunFailed, match="has been answered or refused; it has one answer"):
            await run.result(timeout=PATIENCE)
        run = await app.start(in_step)
        with pytest.raises(RunEnded):
            await run.ask("q", timeout=PATIENCE)


@ON_SQLITE
async def test_values_that_do_not_fit_are_refused_where_they_are_met(app: Stepfast) -> None:
    cart = shop(app)
    run = await app.start(cart)
    asked = asyncio.create_task(run.ask("add", "many"))
    await eventually(lambda: _asked(app, run, 1))
    async with app.worker():
        with pytest.raises(QuestionRefused, match="does not fit the type"):
            await asyncio.wait_for(asked, PATIENCE)
        assert await run.ask("add", 10, timeout=PATIENCE) == 10


@ON_SQLITE
@WAITS
@pytest.mark.parametrize("first", [int, str])
async def test_a_branch_leaves_a_question_to_one_whose_type_it_fits(app: Stepfast, first: type) -> None:
    async def serve(ctx: Context, type_: type) -> None:
        question: Question[Any] = await ctx.wait_question("q", type=type_)
        await question.answer(type_.__name__)

    @app.workflow
    async def two(ctx: Context) -> None:
        await ctx.map(serve, [first, str if first is int else int])

    async with app.worker():
        run = await app.start(two)
        await eventually(lambda: _waits(run))
        assert await run.ask("q", "text", timeout=PATIENCE) == "str"
        assert await run.ask("q", 1, timeout=PATIENCE) == "int"


@ON_SQLITE
async def test_a_refusal_is_made_although_the_wait_is_given_up(app: Stepfast) -> None:
    cart = shop(app)

    @app.workflow
    async def hasty(ctx: Context) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as limit:
                limits.append(limit)
                await ctx.wait_question("add", type=int)
        await ctx.call(cart)

    limits: list[asyncio.Timeout] = []
    run = await app.start(hasty)
    asked = asyncio.create_task(run.ask("add", "many"))
    await eventually(lambda: _asked(app, run, 1))
    gate = Gate()

    async def refuse(call: Any, *args: Any) -> Any:
        await gate.passing()
        return await call(*args)

    wrap(await app.store(), "refuse_question", refuse)
    async with app.worker():
        await gate.reached()
        limits[0].reschedule(0)
        await eventually(limits[0].expired)
        gate.open()
        with pytest.raises(QuestionRefused, match="does not fit the type"):
            await asyncio.wait_for(asked, PATIENCE)
        await run.cancel()


@ON_SQLITE
async def test_plain_code_branches_and_dags_answer(app: Stepfast) -> None:
    @app.workflow
    def plain(ctx: SyncContext) -> None:
        question = ctx.wait_question("q", type=str)
        question.answer(question.value.upper())
        ctx.wait_question("q").refuse("enough")

    async def serve(ctx: Context, number: int) -> None:
        question = await ctx.wait_question("q")
        await question.answer([number, question.value])

    @app.workflow
    async def many(ctx: Context) -> None:
        await ctx.map(serve, [1, 2, 3])

    dag = app.dag("asked")

    @dag.step
    async def desk(ctx: DagContext) -> Any:
        question = await ctx.wait_question("desk", timeout=5)
        await question.answer("dag")
        return question.value

    async with app.worker():
        run = await app.start(plain)
        assert await asyncio.to_thread(app.sync.get(run.id).ask, "q", "a", timeout=PATIENCE) == "A"
        with pytest.raises(QuestionRefused, match="enough"):
            await run.ask("q", timeout=PATIENCE)
        run = await app.start(many)
        found = await asyncio.gather(*(run.ask("q", value, timeout=PATIENCE) for value in "abc"))
        assert sorted(value for _, value in found) == ["a", "b", "c"]
        assert sorted(number for number, _ in found) == [1, 2, 3]
        of_dag = await app.start(dag)
        with pytest.raises(InvalidState, match="names its step"):
            await of_dag.ask("counter", timeout=PATIENCE)
        assert await of_dag.ask("desk", 7, timeout=PATIENCE) == "dag"
        assert (await of_dag.result(timeout=PATIENCE))["desk"] == 7


@ON_SQLITE
async def test_a_wait_for_a_question_ends_in_time(app: Stepfast) -> None:
    @app.workflow
    async def short(ctx: Context) -> str:
        try:
            await ctx.wait_question("q", timeout=0.01)
        except QuestionTimeout as late:
            return str(late)
        return ""

    async with app.worker():
        run = await app.start(short)
        assert await run.result(timeout=PATIENCE) == "no question 'q' came within 0.01 s"


class _Backwards:
    def encode(self, data: bytes, /) -> bytes:
        return data[::-1]

    def decode(self, data: bytes, /) -> bytes:
        return data[::-1]


@ON_SQLITE
async def test_questions_pass_through_the_codec(make_app: MakeApp) -> None:
    codec: Codec = _Backwards()
    app = make_app(codec=codec)
    cart = shop(app)
    async with app.worker():
        run = await app.start(cart)
        with pytest.raises(QuestionRefused, match="sold out"):
            await run.ask("add", 0, timeout=PATIENCE)
        assert await run.ask("add", 10, timeout=PATIENCE) == 10
    rows = await (await app.store()).questions_of(run.id)
    assert all(row.format == 2 and row.answer not in ("10", '"sold out"') for row in rows)


@ON_SQLITE
async def test_askers_of_a_process_share_one_query(app: Stepfast) -> None:
    """300 askers of runs that no worker executes: a handful of queries a second, not one for each."""
    cart = shop(app)
    runs = await app.start_many(cart, [None] * 300)
    store = await app.store()
    asked, real = [], store.questions

    async def counted(ids: Any) -> Any:
        asked.append(len(ids))
        return await real(ids)

    store.questions = counted  # type: ignore[method-assign]
    tasks = [asyncio.create_task(run.ask("add", 10)) for run in runs]
    await eventually(lambda: _all(asked))
    async with app.worker():
        assert await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE) == [10] * 300
    assert len(asked) < 300


async def _all(asked: list[int]) -> bool:
    return max(asked, default=0) == 300


@ON_SQLITE
async def test_whatever_crashes_the_answer_is_the_same(app: Stepfast) -> None:
    @app.workflow
    async def talk(ctx: Context) -> list[Any]:
        found = []
        for _ in range(2):
            question = await ctx.wait_question("q", timeout=60)
            found.append(question.value)
            await question.answer(len(found))
        return found

    async def story(lab: Any, run: Any) -> None:
        assert [await lab.ask(run, "q", n, id=str(n)) for n in (1, 2)] == [1, 2]
        with pytest.raises(RunEnded):
            await lab.ask(run, "q", 3)

    await crash_everywhere(app, talk, drive=story)


@ON_SQLITE
async def test_names_are_checked(app: Stepfast) -> None:
    cart = shop(app)
    run = await app.start(cart)
    for name in ("", "a,b", "x" * 195):
        with pytest.raises(Exception, match="the name of a question"):
            await run.ask(name)
    with pytest.raises(Exception, match="must not begin with '~'"):
        await run.signal("~question/add", 1)

    @app.workflow
    async def caller(ctx: Context) -> None:
        await run.ask("add", 1)

    async with app.worker():
        with pytest.raises(RunFailed, match=ContextMisuse.__name__):
            await (await app.start(caller)).result(timeout=PATIENCE)
