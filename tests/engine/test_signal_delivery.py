"""How signals and ends of children get to their run: each is taken once, wakes its wait, and is never slept over."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from stepfast import Context, DatabaseUnavailable, Run, RunCancelled, Settings, SignalTimeout, Stepfast
from stepfast.engine.host import current_execution
from stepfast.engine.host import wake as time_is_up
from stepfast.engine.waits import MailboxReader, RunMailbox
from stepfast.model.records import Look, Mail, Mailbox
from stepfast.worker.queries import MailboxPoller
from tests.engine.conftest import MakeApp
from tests.support.engine import PATIENCE, Calls, Gate, bystander, drained, eventually, failure, finished
from tests.support.waiting import HARDLY_EVER, count, deafen, doomed, reached
from tests.support.worker_context import make_kit
from tests.support.workflows import calling, listener, task
from tests.worker.spying import Counted, HeldReply, wrap


def signal(name: str, id_: str, value: str = "null") -> Mail:
    return Mail("run", id_, "signal", name, value)


def child(id_: str) -> Mail:
    return Mail("run", id_, "child", "completed", "null")


def box(*mail: Mail, wakes: int = 1, ends: int = 0) -> Mailbox:
    return Mailbox(wakes, ends, list(mail))


# -- the inbox ----------------------------------------------------------------------------------------------------


async def test_mail_is_kept_in_order_per_name_and_taken_once_however_often_it_is_brought() -> None:
    """Rule 7: a query that was under way while the mail was taken brings it again."""
    inbox = RunMailbox(0, 0)
    for _ in range(3):
        inbox.put(box(signal("a", "1"), signal("b", "2"), signal("a", "3")))
    taken = [inbox.take("signal", name) for name in ("a", "b", "a", "a")]
    assert [mail and mail.id for mail in taken] == ["1", "2", "3", None]
    inbox.put(box(signal("a", "1")))
    assert inbox.take("signal", "a") is None


@pytest.mark.parametrize("mail", [signal("a", "1"), child("1")])
async def test_mail_given_back_goes_to_the_next_waiter(mail: Mail) -> None:
    """Rule 6: a branch was cancelled, or lost a race, when it got the mail, and another waits for the same."""
    inbox = RunMailbox(0, 0)
    key = mail.id if mail.kind == "child" else mail.name
    first, second = (inbox.wait(mail.kind, key) for _ in range(2))
    inbox.put(box(mail))
    assert not second.done()
    inbox.give_back(first.result() or mail)
    assert second.result() == mail


async def test_much_mail_of_one_name_does_not_keep_another_from_being_known() -> None:
    inbox = RunMailbox(0, 0)
    for name in ("much", "none"):
        inbox.want("signal", name)
    inbox.put(box(signal("much", "1", "x" * 1000), wakes=2), inbox.look("run"), 1000)
    assert (inbox.knows("signal", "none"), inbox.knows("signal", "much")) == (True, False)


async def test_names_that_are_no_longer_wanted_are_forgotten_but_for_some() -> None:
    """A run may wait for thousands of names, one after the other: queries do not ask for all of them for ever."""
    inbox = RunMailbox(1, 0)
    inbox.want("signal", "wanted")
    for number in range(5000):
        inbox.want("signal", str(number))
        inbox.want_no_more("signal", str(number))
    latest = [str(number) for number in range(4980, 5000)]
    assert list(inbox.look("run").names or ()) == ["wanted", *latest]
    inbox.want_no_more("signal", "wanted")
    inbox.want("signal", "last")
    assert list(inbox.look("run").names or ()) == [*latest[1:], "last"]


async def test_a_run_keeps_nothing_of_waits_that_are_over(make_app: MakeApp) -> None:
    app, kept = make_app(), []

    @app.workflow
    async def patient(ctx: Context) -> None:
        for number in range(5):
            with pytest.raises(SignalTimeout):
                await ctx.wait_signal(f"name {number}", timeout=0.01)
        execution = current_execution.get()
        assert execution is not None
        kept.append(dict(execution.inbox._waiters))

    run = await app.start(patient)
    async with app.worker():
        await run.result(timeout=PATIENCE)
    assert kept == [{}]


# -- looking ------------------------------------------------------------------------------------------------------


class PaperMail:
    """Stands in for the store: answers queries for the mailbox of one run, one after the other."""

    def __init__(self, *answers: Mailbox) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def mail(self, looks: list[Look]) -> dict[str, Mailbox]:
        self.asked += 1
        return {look.run_id: self.answers.pop(0) for look in looks}


@asynccontextmanager
async def reader_of(paper: PaperMail, inbox: Any) -> AsyncIterator[tuple[MailboxPoller, MailboxReader]]:
    """The mailbox of a run that waits, and is in memory as far as that needs."""
    poller = MailboxPoller(make_kit(paper))
    host = SimpleNamespace(settings=Settings(), look=poller.look, watch=poller.watch)
    execution: Any = SimpleNamespace(run_id="run", inbox=inbox, closed=None, began=0.0, recorder=host)
    async with asyncio.timeout(PATIENCE):
        yield poller, MailboxReader(execution, lambda: True)
    await poller.close()


async def test_a_query_ends_with_its_worker() -> None:
    before, asked = asyncio.all_tasks(), asyncio.Event()

    class Silent(PaperMail):
        async def mail(self, looks: list[Look]) -> dict[str, Mailbox]:
            asked.set()
            await asyncio.get_running_loop().create_future()
            raise AssertionError("there is no answer")

    async with reader_of(Silent(), RunMailbox(0, 0)) as (poller, reader):
        looking = asyncio.ensure_future(reader.look())
        await asked.wait()
        await poller.close()
        await asyncio.gather(looking, return_exceptions=True)
    assert looking.cancelled()
    assert asyncio.all_tasks() <= before


async def test_a_query_of_an_earlier_claim_ends_when_the_run_is_here_again() -> None:
    """The run left while its mailbox was asked about, as in an outage, and is claimed by the same worker again."""
    release = asyncio.Event()

    class Slow(PaperMail):
        async def mail(self, looks: list[Look]) -> dict[str, Mailbox]:
            found = await super().mail(looks)
            await release.wait()
            return found

    paper = Slow(box(), box())
    async with reader_of(paper, RunMailbox(1, 0)) as (_, first), reader_of(paper, RunMailbox(1, 0)) as (poller, reader):
        first._recorder.look = poller.look  # type: ignore[method-assign]
        other: Any = SimpleNamespace(run_id="other", what=lambda: Look("other", {}, ()), take_in=lambda _: None)
        poller.look(other)
        await eventually(lambda: paper.asked)
        looking = [asyncio.create_task(each.look()) for each in (first, reader)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        release.set()
        done, _ = await asyncio.wait(looking, timeout=PATIENCE)
        assert done == set(looking)
        assert (looking[0].cancelled(), looking[1].exception()) == (True, None)


async def test_mail_that_cannot_be_taken_in_is_an_error_of_the_query() -> None:
    """Not a wait, nor a query, without end."""
    broken = SimpleNamespace(wakes=0, ends=0, put=None, look=Look)
    async with reader_of(PaperMail(Mailbox(1, 2)), broken) as (_, reader):
        with pytest.raises(TypeError):
            await reader.look()


@pytest.mark.parametrize("moment", [0, 3600])
async def test_a_mailbox_known_to_be_empty_is_not_queried(make_app: MakeApp, moment: float) -> None:
    app = make_app(settings=Settings(inline_wait=moment, poll_interval=60, sweep_interval=60))
    await deafen(app)
    looks = Counted(await app.store(), "mail")
    order = listener(app, timeout=3600)
    async with app.worker(shutdown_grace=0) as worker:
        worker.duties.mailbox_poller.look_again = lambda: None  # type: ignore[method-assign]  # each tick would query
        run = await app.start(order)
        await eventually(lambda: _opened(run))
        assert len(looks) == 0


async def _opened(run: Any) -> bool:
    return any(step.status == "waiting" for step in await run.steps())


async def test_one_question_serves_all_runs_that_wait_in_memory(make_app: MakeApp) -> None:
    """Fifty runs wait, fifty signals come at once. Each may be told of by itself, and one round asks for all who wait:
    the rounds go with the signals, not with the signals times the runs."""
    app = make_app(settings=Settings(inline_wait=3600, poll_interval=60, sweep_interval=60))

    @app.workflow
    async def order(ctx: Context, number: int) -> int:
        return number + int(await ctx.wait_signal("go"))

    async with app.worker() as worker:
        runs = await app.start_many(order, list(range(50)))
        await eventually(lambda: len(worker.duties.executor.running) == 50)
        await eventually(lambda: not any(execution.busy for execution in worker.duties.executor.running.values()))
        poller = worker.duties.mailbox_poller  # a run that asks for itself when the signals come is in no round
        await eventually(lambda: sum(reader.listens for reader in poller._watched) == 50)
        await eventually(lambda: poller._round is None or poller._round.done())
        looks = Counted(await app.store(), "mail")
        await asyncio.gather(*(run.signal("go", 100) for run in runs))
        assert [await run.result(timeout=PATIENCE) for run in runs] == list(range(100, 150))
    assert max(len(asked) for (asked, *_) in looks.calls) == 50
    assert 1 <= len(looks) <= 50


async def test_queries_of_mailboxes_survive_an_outage(make_app: MakeApp) -> None:
    app = make_app(settings=Settings(outage_backoff_max=0.05))
    failures: list[int] = []

    async def away(call: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        if len(failures) < 3:
            failures.append(1)
            raise DatabaseUnavailable("away")
        return await call(*args)

    run = await app.start(listener(app))
    await run.signal("go", 1)
    wrap(await app.store(), "mail", away)
    assert await finished(app, run) == 1
    assert len(failures) == 3


async def test_an_error_of_the_engine_fails_the_run_and_the_worker_continues(app: Stepfast) -> None:
    async def broken(_call: Callable[..., Awaitable[Any]], *_args: Any) -> Any:
        raise RuntimeError("the mailbox is broken")

    run, other = await app.start(listener(app, max_attempts=1)), bystander(app)
    await run.signal("go", 1)
    wrap(await app.store(), "mail", broken)
    async with app.worker(concurrency=1):
        await failure(run, "the mailbox is broken")
        await other()


async def test_an_answer_that_comes_when_the_run_was_cancelled_is_harmless(app: Stepfast) -> None:
    held, other = HeldReply(await app.store(), "mail"), bystander(app)
    run = await app.start(listener(app))
    await run.signal("go", 1)
    async with app.worker():
        await held.done()
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result(timeout=PATIENCE)
        held.release()
        await other()


# -- many workers -------------------------------------------------------------------------------------------------


async def test_a_sender_in_another_process_wakes_a_released_run_at_once(make_app: MakeApp) -> None:
    app, sender = make_app(settings=Settings(inline_wait=0, poll_interval=60, sweep_interval=60)), make_app()
    order = listener(app, "go", "go", "go")
    async with app.worker():
        await _hearing(app)
        run = await app.start(order)
        for number in range(3):
            await reached(run, "waiting")
            await sender.signal(run.id, "go", number)
            await eventually(lambda number=number: _taken(app, run, number + 1))  # type: ignore[misc]
        assert await run.result(timeout=PATIENCE) == [0, 1, 2]


async def test_a_sender_in_another_process_is_heard_by_a_run_in_memory(make_app: MakeApp) -> None:
    app, sender = make_app(settings=Settings(inline_wait=3600, poll_interval=60, sweep_interval=60)), make_app()
    order = listener(app)
    async with app.worker() as worker:
        await _hearing(app)
        run = await app.start(order)
        running = worker.duties.executor.running
        await eventually(lambda: run.id in running and not running[run.id].busy)
        await sender.signal(run.id, "go", 5)
        assert await run.result(timeout=PATIENCE) == 5


async def _hearing(app: Stepfast) -> None:
    store = await app.store()
    await eventually(lambda: store.can_wake or store.dialect != "postgres")


async def _taken(app: Stepfast, run: Any, number: int) -> bool:
    return await count(app, "mailbox", run) == 0 and await count(app, "steps", run) >= number


async def test_a_run_may_be_woken_on_any_worker_and_knows_its_history_on_each(make_app: MakeApp, calls: Calls) -> None:
    """Rule 33: two workers take turns as it happens; what one remembers of the run must not be older than its row."""
    apps = [make_app(settings=Settings(inline_wait=0)) for _ in range(2)]
    number = 40
    for app in apps:

        @app.workflow(name="collect")
        async def collect(ctx: Context) -> list[int]:
            got: list[int] = []
            for turn in range(number):
                got.append(await ctx.wait_signal("item", type=int))
                await ctx.step("note", calls.hit, str(turn))
            return got

    run = await apps[0].start("collect")
    async with apps[0].worker(), apps[1].worker():
        for turn in range(number):
            await apps[turn % 2].signal(run.id, "item", turn)
            if turn % 3 == 0:
                await eventually(lambda: _taken(app, run, 2 * turn + 2))  # noqa: B023
        assert await run.result(timeout=30) == list(range(number))
    assert calls == {str(turn): 1 for turn in range(number)}


async def test_the_end_of_a_child_on_another_worker_wakes_the_parent(make_app: MakeApp) -> None:
    """Rule 26: over two workers, each of which knows one of the two."""
    parents, children = (
        make_app(settings=Settings(inline_wait=0, poll_interval=60)),
        make_app(settings=Settings(inline_wait=0, poll_interval=60)),
    )
    gate = Gate()

    @children.task(name="child")
    async def child_task(number: int) -> int:
        await gate.passing()
        return number * 2

    @parents.workflow(name="parent")
    async def parent(ctx: Context) -> int:
        return int(await ctx.call("child", 21))

    await children.start("child", 0, delay=3600)  # so that its definition is known
    async with parents.worker(), children.worker():
        await _hearing(parents)
        await _hearing(children)
        run = await parents.start("parent")
        await gate.reached()
        await reached(run, "waiting")
        gate.open()
        assert await run.result(timeout=PATIENCE) == 42


async def test_mail_finds_its_run_by_polling_alone(make_app: MakeApp) -> None:
    apps = [make_app(settings=Settings(inline_wait=0, poll_interval=0.1)) for _ in range(2)]
    for app in apps:
        await deafen(app)

        @app.task(name="child")
        async def child_task(number: int) -> int:
            return number * 2

        @app.workflow(name="parent")
        async def parent(ctx: Context) -> list[int]:
            doubled = [await ctx.call("child", n) for n in range(3)]
            return [*doubled, await ctx.wait_signal("go")]

    async with apps[0].worker():
        run = await apps[1].start("parent")
        await apps[1].signal(run.id, "go", 7)
        assert await run.result(timeout=PATIENCE) == [0, 2, 4, 7]


@pytest.mark.enough_on("postgres")
async def test_a_crowd_of_runs_is_woken_by_a_crowd_of_signals(make_app: MakeApp) -> None:
    """Two hundred runs, ten slots, two workers, three signals each: all are taken, none twice."""
    apps = [make_app(settings=Settings(inline_wait=0)) for _ in range(2)]
    for app in apps:
        listener(app, "go", "go", "go")
    runs = await apps[0].start_many("order", [None] * 200)
    async with apps[0].worker(concurrency=5), apps[1].worker(concurrency=5):
        for turn in range(3):
            await asyncio.gather(*(apps[n % 2].signal(run.id, "go", turn) for n, run in enumerate(runs)))
        results = [await run.result(timeout=40) for run in runs]
    assert results == [[0, 1, 2]] * 200


async def test_a_worker_that_hardly_ever_polls_delivers_what_was_left_with_the_end_of_a_child(
    make_app: MakeApp,
) -> None:
    app = make_app(settings=HARDLY_EVER)
    child_task = task(app, "child")

    @app.workflow
    async def parent(ctx: Context) -> list[int]:
        handles = [await ctx.start(child_task, n) for n in range(10)]
        return [await handle.result() for handle in handles]

    async with app.worker(concurrency=1):
        run = await app.start(parent)
        assert await run.result(timeout=PATIENCE) == list(range(10))


@pytest.fixture
def app(make_app: MakeApp) -> Stepfast:
    """A run that waits for a signal stays in memory for a moment; a short one, because most tests wait for its end."""
    return make_app(settings=Settings(inline_wait=0.1))


# -- taken once ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["before the commit", "after the commit"])
async def test_a_signal_is_taken_once_although_the_worker_dies_taking_it(make_app: MakeApp, where: str) -> None:
    """Taking it and recording it is one transaction. The worker dies on either side of its commit."""
    victim, other = make_app(), make_app()
    for each in (victim, other):
        listener(each, "go", "go")
    dying = asyncio.Event()

    async def flush(call: Callable[..., Awaitable[Any]], worker: str, batch: Any) -> Any:
        answer = None if batch.joint and where == "before the commit" else await call(worker, batch)
        if batch.joint:
            dying.set()
            await asyncio.Event().wait()
        return answer

    run = await victim.start("order")
    await run.signal("go", "first")
    wrap(await victim.store(), "flush", flush)
    async with doomed(victim):
        await asyncio.wait_for(dying.wait(), PATIENCE)
    taken = where == "after the commit"
    assert await count(other, "mailbox", run) == (0 if taken else 1)
    assert await count(other, "steps", run) == (1 if taken else 0)
    await other.drain()
    assert await run.status() == "waiting"
    await run.signal("go", "second")
    assert await finished(other, other.get(run.id)) == ["first", "second"]


async def test_a_signal_is_taken_once_although_the_reply_of_its_commit_is_lost(app: Stepfast) -> None:
    """Rule 7: the entry is written again, and matches what it wrote before."""
    lost: list[int] = []

    async def flush(call: Callable[..., Awaitable[Any]], worker: str, batch: Any) -> Any:
        answer = await call(worker, batch)
        if batch.joint and len(lost) < 20 and (not lost or lost[-1] != id(batch)):
            lost.append(id(batch))
            raise DatabaseUnavailable("the reply was lost")
        return answer

    wrap(await app.store(), "flush", flush)
    run = await app.start(listener(app, *["go"] * 5))
    for value in range(5):
        await run.signal("go", value)
    assert await finished(app, run) == [0, 1, 2, 3, 4]
    assert lost


async def test_a_signal_whose_sender_got_no_reply_is_there_once(app: Stepfast) -> None:
    """Rule 7: the sender sends it again with the same id."""
    tries: list[int] = []

    async def send(call: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        answer = await call(*args)
        tries.append(1)
        if len(tries) == 1:
            raise DatabaseUnavailable("the reply was lost")
        return answer

    run = await app.start(listener(app))
    wrap(await app.store(), "send", send)
    await run.signal("go", 1)
    assert len(tries) == 2
    assert await count(app, "mailbox", run) == 1


# -- never slept over ---------------------------------------------------------------------------------------------


async def test_many_senders_at_once_lose_nothing_and_are_not_slept_over(make_app: MakeApp) -> None:
    """Rule 6: the run goes to sleep after each signal, while others are just being sent; there is no time limit on its
    waits that could save it, and no tick that looks for what was missed."""
    number, senders = 300, 10
    app = make_app(settings=Settings(inline_wait=0, poll_interval=60, sweep_interval=60))

    @app.workflow
    async def collect(ctx: Context) -> list[int]:
        return [await ctx.wait_signal("item", type=int) for _ in range(number)]

    async def send(first: int) -> None:
        for value in range(first, number, senders):
            await run.signal("item", value)

    async with app.worker():
        run = await app.start(collect)
        await asyncio.gather(*(send(first) for first in range(senders)))
        taken = await run.result(timeout=40)
    assert Counter(taken) == Counter(range(number))
    for first in range(senders):
        mine = [value for value in taken if value % senders == first]
        assert mine == sorted(mine)


async def test_a_dialogue_goes_on_whatever_the_moment_it_speaks(make_app: MakeApp) -> None:
    """Rule 6: each signal is sent as soon as the last one was taken, which is when the run lies down again."""
    app = make_app(settings=Settings(inline_wait=0, poll_interval=60, sweep_interval=60))
    said = asyncio.Queue[int]()

    @app.workflow
    async def talk(ctx: Context) -> int:
        for turn in range(100):
            assert await ctx.wait_signal("word", type=int) == turn
            said.put_nowait(turn)
        return 100

    async with app.worker():
        run = await app.start(talk)
        for turn in range(100):
            await run.signal("word", turn)
            while await asyncio.wait_for(said.get(), PATIENCE) != turn:
                pass  # a replay says it again
        assert await run.result(timeout=PATIENCE) == 100


async def test_a_signal_between_the_last_query_and_the_release_is_not_slept_over(make_app: MakeApp) -> None:
    """Rule 6: the record "now waiting" is on its way when the signal comes."""
    app = make_app(settings=Settings(inline_wait=0, poll_interval=60, sweep_interval=60))
    on_the_way, let_go = asyncio.Event(), asyncio.Event()

    async def flush(call: Callable[..., Awaitable[Any]], worker: str, batch: Any) -> Any:
        if any(move.status == "waiting" for move in batch.transitions) and not let_go.is_set():
            on_the_way.set()
            await let_go.wait()
        return await call(worker, batch)

    wrap(await app.store(), "flush", flush)
    run = await app.start(listener(app))
    async with app.worker():
        await asyncio.wait_for(on_the_way.wait(), PATIENCE)
        await run.signal("go", "heard")
        let_go.set()
        assert await run.result(timeout=PATIENCE) == "heard"


@pytest.mark.parametrize("how", ["notified", "polling alone"])
async def test_a_run_in_memory_hears_a_signal_while_a_branch_is_busy(make_app: MakeApp, how: str) -> None:
    """It cannot be released, and so not be woken by a claim."""
    app, sender = make_app(settings=HARDLY_EVER if how == "notified" else Settings(poll_interval=0.1)), make_app()
    if how == "polling alone":
        for each in (app, sender):
            await deafen(each)
    gate = Gate()

    async def listens(ctx: Context) -> Any:
        value = await ctx.wait_signal("go")
        await ctx.step("open", gate.open)
        return value

    @app.workflow
    async def order(ctx: Context) -> Any:
        value, _ = await ctx.gather(ctx.branch(listens), ctx.step(gate.passing))
        return value

    async with app.worker() as worker:
        run = await app.start(order)
        await gate.reached()
        await eventually(lambda: worker.duties.mailbox_poller._watched)  # the other branch waits
        await (app if how == "notified" else sender).signal(run.id, "go", 7)
        assert await run.result(timeout=PATIENCE) == 7


async def test_every_branch_begins_before_the_run_is_released(make_app: MakeApp, calls: Calls) -> None:
    """Rule 24: one that waits at once must not lay the run to rest before the others have begun."""
    app = make_app(settings=Settings(inline_wait=0))

    async def listener(ctx: Context) -> Any:
        return await ctx.wait_signal("go")

    async def worker(ctx: Context) -> None:
        await ctx.step("work", calls.hit, "work")

    async def nested(ctx: Context) -> None:
        await ctx.gather(ctx.branch(listener), ctx.branch(worker), ctx.step("nested", calls.hit, "nested"))

    order = calling(app, lambda ctx: ctx.gather(ctx.branch(listener), ctx.branch(nested), ctx.branch(worker)))
    run = await drained(app, order)
    assert await run.status() == "waiting"
    assert calls == {"work": 2, "nested": 1}
    await run.signal("go")
    await run.signal("go")
    await finished(app, run)
    assert calls == {"work": 2, "nested": 1}


async def test_calls_gathered_by_asyncio_all_begin_before_the_run_is_released(make_app: MakeApp, calls: Calls) -> None:
    """Rule 24, for ``asyncio.gather``, of whose tasks the engine knows nothing."""
    app = make_app(settings=Settings(inline_wait=0))
    order = calling(app, lambda ctx: asyncio.gather(ctx.wait_signal("go"), ctx.step("work", calls.hit, "work")))
    run = await drained(app, order)
    assert await run.status() == "waiting"
    assert calls == {"work": 1}
    await run.signal("go", "x")
    assert await finished(app, run) == ["x", 1]


# -- what follows from them ---------------------------------------------------------------------------------------


@dataclass
class Verdict:
    ok: bool
    note: str = ""


async def test_a_signal_with_a_field_that_its_type_does_not_know_is_not_taken_for_one_without(
    app: Stepfast, calls: Calls
) -> None:
    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.wait_signal("verdict", type=Verdict)
        await ctx.step("ship", calls.hit, "ship")

    run = await app.start(order)
    await run.signal("verdict", {"ok": True, "nte": "only if it rains"})
    await app.drain()
    assert await run.status() in ("failed", "waiting")
    assert not calls


async def test_signals_that_nobody_waits_for_are_not_read(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mailbox may be full of them, and is looked into about once a second. Those that are waited for come in order,
    some at a time."""
    brought: list[str] = []
    put = RunMailbox.put

    def noted(inbox: RunMailbox, box: Mailbox, *more: Any) -> None:
        brought.extend(mail.name for mail in box.mail)
        put(inbox, box, *more)

    monkeypatch.setattr(RunMailbox, "put", noted)

    @app.workflow
    async def collect(ctx: Context) -> list[list[int]]:
        words = [await ctx.wait_signal("word", type=int) for _ in range(40)]
        late = await ctx.gather(*(ctx.wait_signal("late", type=int) for _ in range(20)))
        return [words, sorted(late)]

    run = await app.start(collect)
    for n in range(50):
        await run.signal("other", n)
        if n < 40:
            await run.signal("word", n)
        if n < 20:
            await run.signal("late", n)
    assert await finished(app, run) == [list(range(40)), list(range(20))]
    assert "other" not in brought
    assert (brought.count("word"), brought.count("late")) == (40, 20), "each is brought once"


# -- many names at once -------------------------------------------------------------------------------------------


MANY = 30
"""More names than are remembered of those that nobody wants any more."""


@pytest.mark.parametrize("sent", ["while it waits", "before it is claimed"])
async def test_a_run_that_waits_for_many_names_at_once_is_woken_by_each(make_app: MakeApp, sent: str) -> None:
    """Of the names that it had begun to look for, the first were forgotten when it came to the last: it looked for them
    without end, kept its slot, and heard of no signal any more."""
    app = make_app(settings=Settings(inline_wait=0, poll_interval=60, sweep_interval=60))
    order = calling(app, lambda ctx: ctx.gather(*(ctx.wait_signal(f"part {n}", type=int) for n in range(MANY))))
    run = await app.start(order)
    if sent == "before it is claimed":
        await run.signal(f"part {MANY - 1}", MANY - 1)
    async with app.worker():
        if sent == "while it waits":
            await reached(run, "waiting")
            await run.signal(f"part {MANY - 1}", MANY - 1)
        looks = Counted(await app.store(), "mail")
        await eventually(lambda: _taken_and_waiting(app, run))
        assert len(looks) <= 5, "looking does not go on when all there is is known"
        for n in range(MANY - 1):
            await run.signal(f"part {n}", n)
        assert await run.result(timeout=PATIENCE) == list(range(MANY))


async def _taken_and_waiting(app: Stepfast, run: Run[Any]) -> bool:
    return await count(app, "mailbox", run) == 0 and await run.status() == "waiting"


async def test_a_signal_in_time_counts_although_many_names_are_waited_for_when_time_is_up(make_app: MakeApp) -> None:
    """When time is up the mailbox is looked into once more. Before that question went out other waits began, for so
    many names that this one was forgotten, and not asked for."""
    app = make_app(settings=Settings(inline_wait=3600, poll_interval=60, sweep_interval=60))
    await deafen(app)
    gate = Gate()
    executions: list[Any] = []

    async def others(ctx: Context) -> list[int]:
        await ctx.step(gate.passing)
        return list(await ctx.gather(*(ctx.wait_signal(f"part {n}", type=int) for n in range(MANY))))

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        executions.append(current_execution.get())
        return list(await ctx.gather(ctx.wait_signal("approved", timeout=3600), ctx.branch(others)))

    async with app.worker() as worker:
        run = await app.start(order)
        await gate.reached()
        [execution] = executions
        [waiting] = await eventually(lambda: list(execution.waits._open))
        earlier = HeldReply(await app.store(), "mail")
        worker.duties.mailbox_poller.look_again()
        await earlier.done()  # a look is under way: the next question goes out after it
        await run.signal("approved", "in time")
        time_is_up(waiting)
        await eventually(lambda: execution.waits.reader._looking is not None)
        gate.open()
        await eventually(lambda: len(execution.waits._open) == MANY)
        earlier.release()
        for n in range(MANY):
            await run.signal(f"part {n}", n)
        assert await run.result(timeout=PATIENCE) == ["in time", list(range(MANY))]
