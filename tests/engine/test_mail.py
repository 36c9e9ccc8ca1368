"""The mailbox of a run: sorted in memory, looked into for many at once, heard of by whichever worker has the run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from stepfast import Context, DatabaseUnavailable, RunCancelled, RunFailed, Settings, SignalTimeout, Stepfast
from stepfast.engine.host import current_execution
from stepfast.engine.waits import MailboxReader, RunMailbox
from stepfast.model.records import Look, Mail, Mailbox
from stepfast.worker.queries import MailboxPoller
from tests.engine.conftest import MakeApp
from tests.support.engine import PATIENCE, Calls, Gate, eventually
from tests.support.waiting import HARDLY_EVER, count, deafen, reached
from tests.support.worker_context import make_kit
from tests.worker.spying import Counted, HeldReply, wrap


def signal(name: str, id_: str, value: str = "null") -> Mail:
    return Mail("run", id_, "signal", name, value)


def child(id_: str) -> Mail:
    return Mail("run", id_, "child", "completed", "null")


def box(*mail: Mail, wakes: int = 1, ends: int = 0) -> Mailbox:
    return Mailbox(wakes, ends, list(mail))


# -- the inbox ----------------------------------------------------------------------------------------------------


async def test_mail_that_nobody_waits_for_is_kept_in_order_per_name() -> None:
    inbox = RunMailbox(0, 0)
    inbox.put(box(signal("a", "1"), signal("b", "2"), signal("a", "3")))
    taken = [inbox.take("signal", name) for name in ("a", "b", "a", "a")]
    assert [mail and mail.id for mail in taken] == ["1", "2", "3", None]


async def test_mail_goes_to_who_waits_longest() -> None:
    inbox = RunMailbox(0, 0)
    first, second = inbox.wait("signal", "a"), inbox.wait("signal", "a")
    inbox.put(box(signal("a", "1")))
    assert first.result() == signal("a", "1") and not second.done()
    assert inbox.take("signal", "a") is None


async def test_who_has_given_up_waiting_is_passed_over() -> None:
    inbox = RunMailbox(0, 0)
    first, second = inbox.wait("signal", "a"), inbox.wait("signal", "a")
    first.cancel()
    inbox.put(box(signal("a", "1")))
    assert second.result() == signal("a", "1")


async def test_mail_is_seen_once_however_often_it_is_brought() -> None:
    """Rule 7: a look that was under way while the mail was taken brings it again."""
    inbox = RunMailbox(0, 0)
    for _ in range(3):
        inbox.put(box(signal("a", "1")))
    assert inbox.take("signal", "a") is not None
    assert inbox.take("signal", "a") is None
    inbox.put(box(signal("a", "1")))
    assert inbox.take("signal", "a") is None


async def test_mail_given_back_is_the_next_to_be_taken() -> None:
    inbox = RunMailbox(0, 0)
    inbox.put(box(signal("a", "1"), signal("a", "2")))
    first = inbox.take("signal", "a")
    assert first is not None
    inbox.give_back(first)
    assert [inbox.take("signal", "a"), inbox.take("signal", "a")] == [signal("a", "1"), signal("a", "2")]


@pytest.mark.parametrize("mail", [signal("a", "1"), child("1")])
async def test_mail_given_back_goes_to_who_waits_for_it_by_now(mail: Mail) -> None:
    """Rule 6: a branch was cancelled, or lost a race, at the very moment it got the mail; another waits for the same.
    The run would be released knowing all there is to know, and never hear of it again."""
    inbox = RunMailbox(0, 0)
    key = mail.id if mail.kind == "child" else mail.name
    first = inbox.wait(mail.kind, key)
    second = inbox.wait(mail.kind, key)
    inbox.put(box(mail))
    assert not second.done()
    inbox.give_back(first.result() or mail)
    assert second.result() == mail


async def test_ends_of_children_are_found_by_their_id() -> None:
    inbox = RunMailbox(0, 0)
    late = inbox.wait("child", "c2")
    inbox.put(box(child("c1"), child("c2"), wakes=0, ends=2))
    assert late.result() == child("c2")
    assert inbox.take("child", "c1") == child("c1")
    assert inbox.ends == 2


async def test_any_wake_is_told_to_those_who_watch_and_no_other() -> None:
    inbox = RunMailbox(3, 0)
    watcher = inbox.watch()
    inbox.put(box(wakes=3, ends=1))
    assert not watcher.done()
    inbox.put(box(wakes=4))
    assert watcher.done() and inbox.wakes == 4


async def test_much_mail_of_one_name_does_not_keep_another_from_being_known() -> None:
    """Or a run that waits for the other would look, and read, until all mail of the first is in its memory."""
    inbox = RunMailbox(0, 0)
    for name in ("much", "none"):
        inbox.want("signal", name)
    inbox.put(box(signal("much", "1", "x" * 1000), wakes=2), inbox.look("run"), 1000)
    assert (inbox.knows("signal", "none"), inbox.knows("signal", "much")) == (True, False)


async def test_names_that_nobody_wants_any_more_are_forgotten_but_for_some() -> None:
    """A run may wait for thousands of names, one after the other: looks do not ask for all of them for ever. One that
    somebody wants is asked for however many come after it."""
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


async def test_who_waits_no_more_is_forgotten_and_others_for_the_same_are_not() -> None:
    inbox = RunMailbox(0, 0)
    first, second, third = (inbox.wait("signal", "a") for _ in range(3))
    second.cancel()
    inbox.wait_no_more("signal", "a", second)
    assert list(inbox._waiters["signal", "a"]) == [first, third]
    inbox.put(box(signal("a", "1"), signal("a", "2")))
    assert (first.result(), third.result()) == (signal("a", "1"), signal("a", "2"))
    assert not inbox._waiters["signal", "a"], "who has mail is not asked again for all that comes with it"
    for waiter in (first, third, third):
        inbox.wait_no_more("signal", "a", waiter)
    assert inbox._waiters == {}


async def test_a_run_keeps_nothing_of_waits_that_are_over(make_app: MakeApp) -> None:
    """It may wait for one name after the other in memory, without ever leaving it."""
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
    """Stands in for the store: answers looks into the mailbox of one run, one after the other."""

    def __init__(self, *answers: Mailbox) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def mail(self, looks: list[Look]) -> dict[str, Mailbox]:
        self.asked += 1
        return {look.run_id: self.answers.pop(0) for look in looks}


def reader_of(paper: PaperMail, inbox: Any) -> tuple[MailboxPoller, MailboxReader]:
    """Of a run that waits, and is in memory as far as that needs."""
    mailbox_poller = MailboxPoller(make_kit(paper))
    host = SimpleNamespace(settings=Settings(), look=mailbox_poller.look, watch=mailbox_poller.watch)
    execution: Any = SimpleNamespace(run_id="run", inbox=inbox, closed=None, began=0.0, recorder=host)
    return mailbox_poller, MailboxReader(execution, lambda: True)


async def test_a_look_that_left_something_is_over_when_the_next_one_is() -> None:
    """A run that went to sleep between the two would wait for ends of children that lie in its mailbox."""
    inbox, paper = RunMailbox(0, 0), PaperMail(Mailbox(1, 2, [child("c1")], more=True), Mailbox(1, 2, [child("c2")]))
    mailbox_poller, reader = reader_of(paper, inbox)
    async with asyncio.timeout(PATIENCE):
        await reader.look()
    assert [inbox.take("child", each) for each in ("c1", "c2")] == [child("c1"), child("c2")]
    assert paper.asked == 2
    await mailbox_poller.close()


async def test_a_fresh_look_is_begun_after_it_was_wished_for() -> None:
    """One that is under way may have been asked before the latest mail was sent."""
    asked, go_on = asyncio.Event(), asyncio.Event()

    class Slow(PaperMail):
        async def mail(self, looks: list[Look]) -> dict[str, Mailbox]:
            answer = await super().mail(looks)
            asked.set()
            await go_on.wait()
            return answer

    inbox, paper = RunMailbox(0, 0), Slow(Mailbox(0, 0), Mailbox(1, 1, [child("c1")]))
    mailbox_poller, reader = reader_of(paper, inbox)
    async with asyncio.timeout(PATIENCE):
        first = asyncio.ensure_future(reader.look())
        await asked.wait()
        afresh = asyncio.ensure_future(reader.look_afresh())
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(first, afresh)
    assert inbox.take("child", "c1") == child("c1")
    assert paper.asked == 2
    await mailbox_poller.close()


async def test_a_look_whose_worker_stops_asking_is_over() -> None:
    """The reader's own task would wait for an answer that nobody brings, and be found when its loop has ended."""
    before, asked = asyncio.all_tasks(), asyncio.Event()

    class Silent(PaperMail):
        async def mail(self, looks: list[Look]) -> dict[str, Mailbox]:
            asked.set()
            await asyncio.get_running_loop().create_future()
            raise AssertionError("nobody answers")

    mailbox_poller, reader = reader_of(Silent(), RunMailbox(0, 0))
    looking = asyncio.ensure_future(reader.look())
    await asyncio.wait_for(asked.wait(), PATIENCE)
    await mailbox_poller.close()
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(looking, return_exceptions=True)
    assert looking.cancelled()
    assert asyncio.all_tasks() <= before


async def test_news_bring_what_is_new_without_anybody_who_looks() -> None:
    inbox, paper = RunMailbox(0, 0), PaperMail(Mailbox(1, 2, [child("c1")], more=True), Mailbox(1, 2, [child("c2")]))
    mailbox_poller, reader = reader_of(paper, inbox)
    mailbox_poller.watch(reader)
    mailbox_poller.told()
    await eventually(lambda: paper.asked == 2)
    await eventually(lambda: inbox.take("child", "c2") is not None)
    await mailbox_poller.close()


async def test_a_letter_that_cannot_be_taken_in_is_an_error_for_whoever_looks() -> None:
    """Nobody waits for ever because of a bug, nor asks for ever."""
    broken = SimpleNamespace(wakes=0, ends=0, put=None, look=Look)
    mailbox_poller, reader = reader_of(PaperMail(Mailbox(1, 2)), broken)
    with pytest.raises(TypeError):
        async with asyncio.timeout(PATIENCE):
            await reader.look()
    await mailbox_poller.close()


@pytest.mark.parametrize("moment", [0, 3600])
async def test_a_mailbox_known_to_be_empty_is_not_looked_into(make_app: MakeApp, moment: float) -> None:
    """Nothing was ever sent to the run, and nobody has told of anything lately: waiting costs no question."""
    app = make_app(settings=Settings(inline_wait=moment, poll_interval=60, sweep_interval=60))
    await deafen(app)
    looks = Counted(await app.store(), "mail")

    @app.workflow
    async def order(ctx: Context) -> Any:
        return await ctx.wait_signal("go", timeout=3600)

    async with app.worker(shutdown_grace=0) as worker:
        worker.duties.mailbox_poller.look_again = lambda: None  # type: ignore[method-assign]  # each tick is a reason to look
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
        looks = Counted(await app.store(), "mail")
        await asyncio.gather(*(run.signal("go", 100) for run in runs))
        assert [await run.result(timeout=PATIENCE) for run in runs] == list(range(100, 150))
    assert max(len(asked) for (asked, *_) in looks.calls) == 50
    assert 1 <= len(looks) <= 50


async def test_looking_rides_out_an_outage(make_app: MakeApp) -> None:
    """The database is away when the mailman comes: he comes again."""
    app = make_app(settings=Settings(outage_backoff_max=0.05))
    failures: list[int] = []

    async def away(call: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        if len(failures) < 3:
            failures.append(1)
            raise DatabaseUnavailable("away")
        return await call(*args)

    @app.workflow
    async def order(ctx: Context) -> Any:
        return await ctx.wait_signal("go")

    run = await app.start(order)
    await run.signal("go", 1)
    wrap(await app.store(), "mail", away)
    await app.drain()
    assert await run.result(timeout=PATIENCE) == 1
    assert len(failures) == 3


async def test_an_error_of_the_engine_fails_the_run_and_says_so(app: Stepfast) -> None:
    """It neither hangs nor keeps its slot, and the worker goes on."""

    async def broken(_call: Callable[..., Awaitable[Any]], *_args: Any) -> Any:
        raise RuntimeError("the mailman stumbled")

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> Any:
        return await ctx.wait_signal("go")

    @app.task
    async def other() -> str:
        return "well"

    run = await app.start(order)
    await run.signal("go", 1)
    wrap(await app.store(), "mail", broken)
    async with app.worker(concurrency=1):
        with pytest.raises(RunFailed, match="the mailman stumbled"):
            await run.result(timeout=PATIENCE)
        assert await (await app.start(other)).result(timeout=PATIENCE) == "well"


async def test_an_answer_that_comes_when_the_run_has_left_is_harmless(app: Stepfast) -> None:
    """The run is cancelled while the mailman is under way."""
    held = HeldReply(await app.store(), "mail")

    @app.workflow
    async def order(ctx: Context) -> Any:
        return await ctx.wait_signal("go")

    @app.task
    async def other() -> str:
        return "well"

    run = await app.start(order)
    await run.signal("go", 1)
    async with app.worker():
        await held.done()
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result(timeout=PATIENCE)
        held.release()
        assert await (await app.start(other)).result(timeout=PATIENCE) == "well"


# -- many workers -------------------------------------------------------------------------------------------------


async def test_a_sender_elsewhere_wakes_the_worker_at_once(make_app: MakeApp) -> None:
    """The run is released; the worker that will have it hardly ever polls."""
    app, sender = make_app(settings=Settings(inline_wait=0, poll_interval=60, sweep_interval=60)), make_app()

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        return [await ctx.wait_signal("go") for _ in range(3)]

    async with app.worker():
        await _hearing(app)
        run = await app.start(order)
        for number in range(3):
            await reached(run, "waiting")
            await sender.signal(run.id, "go", number)
            await eventually(lambda number=number: _taken(app, run, number + 1))  # type: ignore[misc]
        assert await run.result(timeout=PATIENCE) == [0, 1, 2]


async def test_a_sender_elsewhere_is_heard_by_a_run_in_memory(make_app: MakeApp) -> None:
    app, sender = make_app(settings=Settings(inline_wait=3600, poll_interval=60, sweep_interval=60)), make_app()

    @app.workflow
    async def order(ctx: Context) -> Any:
        return await ctx.wait_signal("go")

    async with app.worker() as worker:
        await _hearing(app)
        run = await app.start(order)
        await eventually(
            lambda: run.id in worker.duties.executor.running and not worker.duties.executor.running[run.id].busy
        )
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
    """Signals and ends of children, with nobody told of anything."""
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

        @app.workflow(name="collect")
        async def collect(ctx: Context) -> list[int]:
            return [await ctx.wait_signal("item", type=int) for _ in range(3)]

    runs = await apps[0].start_many("collect", [None] * 200)
    async with apps[0].worker(concurrency=5), apps[1].worker(concurrency=5):
        for turn in range(3):
            await asyncio.gather(*(apps[n % 2].signal(run.id, "item", turn) for n, run in enumerate(runs)))
        results = [await run.result(timeout=40) for run in runs]
    assert results == [[0, 1, 2]] * 200


async def test_a_worker_that_hardly_ever_polls_delivers_what_was_left_with_the_end_of_a_child(
    make_app: MakeApp,
) -> None:
    """The mail of a child is delivered after its commit, by the worker that committed it, at once."""
    app = make_app(settings=HARDLY_EVER)

    @app.task(name="child")
    async def child_task(number: int) -> int:
        return number

    @app.workflow
    async def parent(ctx: Context) -> list[int]:
        handles = [await ctx.start(child_task, n) for n in range(10)]
        return [await handle.result() for handle in handles]

    async with app.worker(concurrency=1):
        run = await app.start(parent)
        assert await run.result(timeout=PATIENCE) == list(range(10))
