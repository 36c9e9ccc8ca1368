"""What observers send along is stored with a run, a signal or a remote step, and told to whoever takes it."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import Any

import pytest

from stepfast import Context, DagContext, InvalidState, Settings, Stepfast
from stepfast.engine.observers import MOST, decoded, encoded
from stepfast.model.remote_steps import Result, Task
from stepfast.telemetry import Observer, RunClaimed, RunReleasing, Sending, SendingEnded, SignalTaken
from tests.remote_steps.memory import MemoryTransport, echo


class Postmark(Observer):
    """Stamps whatever is sent with a number of its own, and notes what arrives."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, int]] = []
        self.outcomes: list[tuple[str, str | None]] = []
        self.claimed_with: list[tuple[str, dict[str, str]]] = []
        self.taken_with: list[dict[str, str]] = []

    def sending(self, event: Sending) -> None:
        """Stamp it."""
        self.sent.append((event.kind, event.name, event.number))
        event.trace["stamp"] = f"{event.kind}-{len(self.sent)}"

    def sending_ended(self, event: SendingEnded) -> None:
        """Note how it ended."""
        self.outcomes.append((event.sending.kind, event.error_type))

    def claimed(self, event: RunClaimed) -> None:
        """Note what arrived."""
        self.claimed_with.append((event.dag_step or event.workflow, event.trace))

    def releasing(self, event: RunReleasing) -> None:
        """Leave word for the next claim."""
        event.trace["claims"] = str(event.claim)

    def signal_taken(self, event: SignalTaken) -> None:
        """Note what arrived."""
        self.taken_with.append(event.trace)


@pytest.fixture
def postmark() -> Postmark:
    """Somebody who sends something along."""
    return Postmark()


async def test_it_goes_with_starts_children_signals_and_over_suspensions(url: str, postmark: Postmark) -> None:
    async with Stepfast(url, observers=[postmark], settings=Settings(inline_wait=0)) as app:

        @app.task
        async def wrap(name: str) -> str:
            return name

        @app.workflow
        async def order(ctx: Context, name: str) -> Any:
            await ctx.call(wrap, name)
            return await ctx.wait_signal("approved")

        run = await app.start(order, "ada")
        await app.drain()
        await run.signal("approved", True)
        await app.drain()
        assert await run.result()
        assert postmark.sent == [("start", "order", 1), ("child", "wrap", 1), ("signal", "approved", 1)]
        assert postmark.outcomes == [("start", None), ("signal", None)]
        assert postmark.claimed_with[:2] == [("order", {"stamp": "start-1"}), ("wrap", {"stamp": "child-2"})]
        assert all(seen["stamp"] == "start-1" for name, seen in postmark.claimed_with if name == "order")
        assert int(postmark.claimed_with[-1][1]["claims"]) >= 1
        assert postmark.taken_with == [{"stamp": "signal-3"}]


async def test_it_goes_with_many_starts_dags_and_what_a_run_goes_on_as(url: str, postmark: Postmark) -> None:
    async with Stepfast(url, observers=[postmark]) as app:
        fulfil = app.dag("fulfil")

        @fulfil.step
        async def pack(ctx: DagContext) -> int:
            return 1

        @fulfil.step(after=["pack"])
        async def ship(ctx: DagContext) -> int:
            return 2

        @app.task
        async def job(n: int) -> int:
            return n

        @app.workflow
        async def again(ctx: Context, n: int) -> int:
            return n or ctx.continue_as(1)

        await app.start(fulfil)
        await app.start_many(job, [1, 2, 3])
        await app.start(again, 0)
        await app.drain()
        starts = [("start", "fulfil", 1), ("start", "job", 3), ("start", "again", 1), ("next", "again", 1)]
        assert postmark.sent == starts
        stamps = {(name, seen.get("stamp")) for name, seen in postmark.claimed_with}
        assert stamps == {
            ("pack", "start-1"), ("ship", "start-1"), ("fulfil", "start-1"), ("job", "start-2"),
            ("again", "start-3"), ("again", "next-4"),
        }  # fmt: skip


async def test_it_goes_with_a_debounced_start_and_with_one_in_the_callers_transaction(
    sqlite_url: str, postmark: Postmark
) -> None:
    async with Stepfast(sqlite_url, observers=[postmark]) as app:

        @app.task
        async def job(n: int) -> int:
            return n

        await app.start(job, 1, key="k", debounce=0.01)
        with contextlib.closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as connection:
            await app.start(job, 2, connection=connection)
            connection.commit()
        await app.drain()
        assert {seen["stamp"] for _, seen in postmark.claimed_with} == {"start-1", "start-2"}


async def test_a_transport_that_has_room_for_it_is_given_it_with_tasks(sqlite_url: str, postmark: Postmark) -> None:
    seen: list[str | None] = []

    def serve(task: Task) -> Result:
        seen.append(task.trace)
        return echo(task)

    quick = Settings(sweep_interval=0.05, poll_interval=0.05)
    async with Stepfast(sqlite_url, observers=[postmark], transport=MemoryTransport(serve), settings=quick) as app:

        @app.workflow
        async def order(ctx: Context) -> Any:
            return await ctx.remote("print", "label")

        run = await app.start(order)
        async with app.worker():
            await run.result(timeout=30)
        assert seen == ['{"stamp":"remote-2"}']


async def test_what_could_not_be_sent_is_told_with_its_error(postmark: Postmark) -> None:
    async with Stepfast("sqlite://", observers=[postmark]) as app:

        @app.task
        async def job() -> None: ...

        run = await app.start(job)
        await app.drain()
        with pytest.raises(InvalidState):
            await run.signal("late")
        assert postmark.outcomes == [("start", None), ("signal", "InvalidState")]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', "null", '"x"', "{" + " " * MOST + "}"])
def test_what_no_observer_could_have_sent_is_nothing(text: str) -> None:
    assert decoded(text) == {}


def test_what_is_too_long_is_not_sent() -> None:
    assert encoded({"a": "x" * MOST}) is None
    assert encoded({}) is None
    assert decoded(encoded({"a": "x" * 1000})) == {"a": "x" * 1000}
