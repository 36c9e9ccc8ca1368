"""What the storms let workers do beyond steps: sleeping, listening, children, branches, transactions, undoing, chains.

Each workflow tells at its end what it saw at which place, so that the checker can compare it with the records.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from stepfast import Backoff, ChildFailed, Context, SignalTimeout, Stepfast, SyncContext, step
from stepfast.engine.call import DurableCall
from stepfast.engine.context_base import ContextBase
from tests.faults.audit import Database
from tests.judge.evidence import ASKS, RAISES, RETURNS, Place
from tests.judge.ledger import Ledger, now

AT_ONCE = Backoff(base=0.02, factor=1, max=0.02)
RELEASED = Backoff(base=0.5, factor=1, max=0.5)
STOP = "stop"
"""The sender whose signal ends whoever listens."""

MIX = {
    "dozing": 2, "listening": 3, "impatient": 2, "racing": 2, "duet": 1, "waiting_def": 2, "asking": 1, "family": 2,
    "brood": 1, "clan": 1, "fan": 2, "crowd": 2, "booking": 3, "saga": 3, "sour_saga": 1, "saga_def": 1, "overdue": 1,
    "chained": 2, "relay": 2, "telling": 1,
}  # fmt: skip
"""How often each workflow is started."""

LISTENERS = {
    "listening": ("word",), "impatient": ("word",), "racing": ("word",), "duet": ("left", "right"),
    "waiting_def": ("word",), "relay": ("word",), "longing": ("word",),
}  # fmt: skip
"""Workflows that wait for signals until they are told to stop, and the names of these."""

PATIENT = {"listening": 6, "duet": 2, "waiting_def": 2, "longing": 3, "hoping": 3, "dozing": 1, "asking": 1}
"""Workflows that do little but wait: for a signal, two at once, a race with a sleep, a child, a time, a check."""

NEEDED = {"relay": 2}
"""How many signals it takes to be done with one of them, where not one."""

MAY_FAIL = frozenset({"overdue"})
MAY_UNDO = frozenset({"saga", "saga_def", "overdue"})
MAY_FAIL_TO_UNDO = frozenset({"sour_saga"})


def input_of(workflow: str, pause: float) -> Any:
    """What a workflow is started with."""
    return {"left": random.randrange(4)} if workflow in ("chained", "relay") else pause


class Notes:
    """What the code of a run has seen."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}
        self.lost: list[str] = []

    async def see(self, call: DurableCall[Any]) -> Any:
        """Await a call; its value, or None if it failed as a wait or a child may."""
        try:
            value = await call
        except (ChildFailed, SignalTimeout):
            self.seen[key_of(call)] = "failed"
            return None
        self.seen[key_of(call)] = value
        return value

    async def see_all(self, ctx: Context, *calls: DurableCall[Any]) -> None:
        """The same for several at once."""
        for call, value in zip(calls, await ctx.gather(*calls, return_errors=True), strict=True):
            self.seen[key_of(call)] = "failed" if isinstance(value, Exception) else value

    def told(self) -> dict[str, Any]:
        """The result of the run."""
        return {"seen": self.seen, "lost": self.lost}


def key_of(call: DurableCall[Any]) -> str:
    return f"{call.branch}:{call.position}"


def add_to(
    app: Stepfast, ledger: Ledger, database: Database, work: Callable[..., Awaitable[str]], mark: Callable[..., bool]
) -> None:
    """Register all of them. ``work(needs, pause)`` is the usual step; ``mark(name)`` is true the first time."""
    write_row = _row_writer(ledger, database)

    # -- waiting -------------------------------------------------------------------------------------------------

    @app.workflow
    async def dozing(ctx: Context, pause: float) -> dict[str, Any]:
        """Sleeps between steps: kept in memory, released, until a point in time."""
        notes = Notes()
        await notes.see(ctx.step(work, 0, pause))
        await ctx.sleep(random.choice((0, 0.05, 0.5)))
        await notes.see(ctx.step(work, 2, pause))
        await ctx.sleep_until(datetime.fromtimestamp(now() / 1e6, UTC) + timedelta(seconds=random.random() * 0.7))
        await notes.see(ctx.step(work, 4, pause))
        return notes.told()

    async def listen(ctx: Context, name: str, pause: float, notes: Notes) -> None:
        word = ""
        while not word.startswith(STOP):
            word = await notes.see(ctx.wait_signal(name, type=str))
            await notes.see(ctx.step(work, 0, random.random() * pause))

    @app.workflow
    async def listening(ctx: Context, pause: float) -> dict[str, Any]:
        """Takes one signal after the other."""
        notes = Notes()
        await listen(ctx, "word", pause, notes)
        return notes.told()

    @app.workflow
    async def duet(ctx: Context, pause: float) -> dict[str, Any]:
        """Two branches, each with its own ear."""
        notes = Notes()
        await ctx.gather(*(ctx.branch(listen, name, pause, notes) for name in LISTENERS["duet"]))
        return notes.told()

    @app.workflow
    async def impatient(ctx: Context, pause: float) -> dict[str, Any]:
        """Waits for a signal only so long, and then again."""
        notes = Notes()
        word = ""
        while not (word or "").startswith(STOP):
            word = await notes.see(ctx.wait_signal("word", type=str, timeout=random.choice((0.05, 0.7))))
        return notes.told()

    async def stroll(ctx: Context, notes: Notes) -> str:
        await notes.see(ctx.step(work, 0, random.random() * 0.2))
        await ctx.sleep(random.random() * 0.3)
        await notes.see(ctx.step(work, 2, random.random() * 0.2))
        return "strolled"

    @app.workflow
    async def racing(ctx: Context, pause: float) -> dict[str, Any]:
        """Races between a signal and something else; whoever loses must have taken nothing."""
        notes = Notes()
        word, lap = "", 0
        while not word.startswith(STOP):
            mine = Notes()
            others: list[Callable[[], DurableCall[Any]]] = [
                lambda: ctx.sleep(random.random() * 0.8),
                lambda: ctx.step(work, 0, random.random() * 0.5),
                lambda: ctx.branch(stroll, mine),  # noqa: B023
            ]
            runners = {"word": ctx.wait_signal("word", type=str), "other": others[lap % 3]()}
            winner, value = await ctx.first(**runners)
            notes.lost += [key_of(runner) for name, runner in runners.items() if name != winner]
            word = value if winner == "word" else ""
            if winner == "word" or lap % 3 == 1:
                notes.seen[key_of(runners[winner])] = value
            elif lap % 3 == 2:
                notes.seen.update(mine.seen)
            lap += 1
        return notes.told()

    @app.workflow
    async def longing(ctx: Context, pause: float) -> dict[str, Any]:
        """Not in the mix: races between a signal and a sleep that is longer than any storm."""
        notes = Notes()
        word = ""
        while not word.startswith(STOP):
            runners: dict[str, DurableCall[Any]] = {
                "word": ctx.wait_signal("word", type=str), "nap": ctx.sleep(3600),
            }  # fmt: skip
            winner, word = await ctx.first(**runners)
            notes.lost += [key_of(runner) for name, runner in runners.items() if name != winner]
            notes.seen[key_of(runners[winner])] = word
        return notes.told()

    @app.workflow
    async def hoping(ctx: Context, pause: float) -> dict[str, Any]:
        """Not in the mix: a child that waits for signals."""
        notes = Notes()
        await notes.see(ctx.call("listening", pause))
        return notes.told()

    @app.workflow
    async def asking(ctx: Context, pause: float) -> dict[str, Any]:
        """Asks whether something outside is so, until it is."""

        async def is_so() -> str | None:
            if any(mark(f"asked {ctx.run_id} {time}") for time in range(3)):
                ledger.act(ASKS, 1)
                return None
            return ledger.act(RETURNS, 1)

        notes = Notes()
        await notes.see(ctx.step(work, 0, pause))
        await notes.see(ctx.wait_until(is_so, every=random.choice((0.05, 0.4))))
        await notes.see(ctx.step(work, 2, pause))
        return notes.told()

    @app.workflow
    async def telling(ctx: Context, pause: float) -> dict[str, Any]:
        """Says how far it is, for others to read."""
        notes = Notes()
        for number in range(4):
            if ctx.patched(f"change {number}"):  # no record of it is missing, or the position after it would be another
                await notes.see(ctx.step(work, 2 * number, pause))
            await ctx.set("at", number)
            ctx.progress(f"at {number}")
            await ctx.sleep(random.choice((0, 0.3)))
        return {**notes.told(), "set": {"at": 3}}

    @app.workflow
    def waiting_def(ctx: SyncContext, pause: float) -> dict[str, Any]:
        """A plain function that does a bit of everything, and listens until it is told to stop."""
        seen: dict[str, Any] = {}

        def see(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
            key = f":{ctx._cursor.position}"
            try:
                value = call(*args, **options)
            except (ChildFailed, SignalTimeout):
                value = "failed"
            seen[key] = value
            return value

        see(ctx.step, work, 0, pause)
        ctx.sleep(random.random() * 0.4)
        see(ctx.transaction, write_row(ctx, ("", 2), 2, pause))
        see(ctx.call, "simple_def", pause)
        child = ctx.start("chain", pause)
        see(child.result)
        word = ""
        while not word.startswith(STOP):
            word = see(ctx.wait_signal, "word", type=str, timeout=5)
        return {"seen": seen}

    # -- children ------------------------------------------------------------------------------------------------

    @app.workflow
    async def family(ctx: Context, pause: float) -> dict[str, Any]:
        """Children of several kinds, one of which may fail; some have children of their own."""
        notes = Notes()
        first = await ctx.start("chain", pause)
        second = await ctx.start("simple", pause)
        await notes.see(ctx.call("unlucky", pause))
        await notes.see_all(ctx, first.result(), second.result(), ctx.call("brood", pause))
        await notes.see(ctx.step(work, 0, pause))
        return notes.told()

    @app.workflow
    async def brood(ctx: Context, pause: float) -> dict[str, Any]:
        """A child per item."""
        notes = Notes()

        async def raise_one(ctx: Context, number: int) -> None:
            await notes.see(ctx.call("simple_def" if number % 2 else "dozing", pause))

        await ctx.map(raise_one, range(4), limit=3)
        return notes.told()

    @app.workflow
    async def clan(ctx: Context, pause: float) -> dict[str, Any]:
        """Waits for a chain, and for a child that is undone."""
        notes = Notes()
        await notes.see(ctx.call("chained", {"left": 2}))
        await notes.see(ctx.call("saga", pause))
        return notes.told()

    @app.workflow
    async def lone_parent(ctx: Context, pause: float) -> dict[str, Any]:
        """For single scenes: one child, which takes a while."""
        notes = Notes()
        await notes.see(ctx.call("long", pause))
        return notes.told()

    # -- branches ------------------------------------------------------------------------------------------------

    @app.workflow
    async def fan(ctx: Context, pause: float) -> dict[str, Any]:
        """A branch per item, a few at once; some sleep."""
        notes = Notes()

        async def one(ctx: Context, number: int) -> None:
            await notes.see(ctx.step(work, 0, random.random() * pause))
            if number % 2:
                await ctx.sleep(random.random() * 0.4)
            await notes.see(ctx.step(work, 1 + number % 2, random.random() * pause))

        await ctx.map(one, range(6), limit=3)
        await notes.see(ctx.step(work, 0, pause))
        return notes.told()

    @app.workflow
    async def crowd(ctx: Context, pause: float) -> dict[str, Any]:
        """Branches within branches, beside steps and tries that wait."""
        notes = Notes()

        async def line(ctx: Context, depth: int) -> None:
            await notes.see(ctx.step(work, 0, random.random() * pause))
            if depth:
                await ctx.gather(ctx.branch(line, depth - 1), ctx.branch(line, depth - 1))
            careful = ctx.options(retries=40, backoff=random.choice((AT_ONCE, RELEASED)))
            await notes.see(careful.step(sometimes, 1 if not depth else 0, 0.3))

        await ctx.gather(ctx.branch(line, 1), ctx.branch(line, 0), notes.see(ctx.step(work, 0, pause)))
        return notes.told()

    async def sometimes(needs: int, risk: float) -> str:
        if random.random() < risk:
            raise ValueError(ledger.act(RAISES, needs))
        return ledger.act(RETURNS, needs)

    # -- transactions --------------------------------------------------------------------------------------------

    @app.workflow
    async def booking(ctx: Context, pause: float) -> dict[str, Any]:
        """Rows in a table of the test, one per transaction: alone, after failures, and several at once."""
        notes = Notes()
        await notes.see(ctx.transaction(write_row(ctx, ("", 0), 0, pause)))
        careful = ctx.options(retries=40, backoff=random.choice((AT_ONCE, RELEASED)))
        await notes.see(careful.transaction(write_row(ctx, ("", 1), 1, pause, risk=0.4)))
        await notes.see(ctx.step(work, 2, pause))

        async def one(ctx: Context, number: int) -> None:
            await notes.see(ctx.transaction(write_row(ctx, (ctx._cursor.branch, 0), 0, pause)))

        await ctx.map(one, range(3))
        return notes.told()

    @app.workflow
    async def slow_booking(ctx: Context, pause: float) -> dict[str, Any]:
        """For single scenes: one transaction, of a given length."""
        notes = Notes()
        await notes.see(ctx.transaction(write_row(ctx, ("", 0), 0, pause, least=pause)))
        return notes.told()

    # -- undoing -------------------------------------------------------------------------------------------------

    @step(retries=40, backoff=AT_ONCE)
    async def take_back(output: str, *args: Any) -> str:
        await asyncio.sleep(random.random() * 0.02)
        if random.random() < 0.2:
            raise ValueError(ledger.act(RAISES, undoes=output))
        return ledger.act(RETURNS, undoes=output)

    @step(retries=40, backoff=RELEASED)
    def take_back_slowly(output: str, *args: Any) -> str:
        time.sleep(random.random() * 0.02)
        if random.random() < 0.2:
            raise ValueError(ledger.act(RAISES, undoes=output))
        return ledger.act(RETURNS, undoes=output)

    @step(retries=1, backoff=AT_ONCE)
    async def never_taken_back(output: str, *args: Any) -> str:
        raise ValueError(ledger.act(RAISES, undoes=output))

    @app.workflow(max_attempts=1)
    async def saga(ctx: Context, pause: float) -> dict[str, Any]:
        """Steps that can be undone, in the main line, in branches and in a transaction; mostly it fails at the end."""
        notes = Notes()
        undoable = ctx.options(compensate=take_back)
        await notes.see(undoable.step(work, 0, pause))
        await notes.see(undoable.transaction(write_row(ctx, ("", 1), 1, pause)))
        await notes.see(ctx.step(work, 2, pause))

        async def one(ctx: Context, number: int) -> None:
            await notes.see(ctx.options(compensate=take_back_slowly).step(work, 0, random.random() * pause))

        await ctx.map(one, range(3))
        await ctx.sleep(random.random() * 0.3)
        await notes.see(undoable.step(work, 3, pause))
        if ctx.random() < 0.75:
            raise RuntimeError("the trip is cancelled")
        return notes.told()

    @app.workflow(max_attempts=1)
    async def sour_saga(ctx: Context, pause: float) -> dict[str, Any]:
        """One of its undos never succeeds; the others are called all the same."""
        notes = Notes()
        for number in range(3):
            undo = never_taken_back if number == 1 else take_back
            await notes.see(ctx.options(compensate=undo).step(work, number, pause))
        raise RuntimeError("the trip is cancelled")

    @app.workflow(max_attempts=1)
    def saga_def(ctx: SyncContext, pause: float) -> dict[str, Any]:
        """The same in a plain function."""
        for number in range(3):
            undo = take_back_slowly if number == 1 else take_back
            ctx.options(compensate=undo).step(work, number, pause)
        raise RuntimeError("the trip is cancelled")

    @app.workflow(deadline=1.0)
    async def overdue(ctx: Context, pause: float) -> dict[str, Any]:
        """Its time is up while it sleeps."""
        await ctx.options(compensate=take_back).step(work, 0, pause)
        await ctx.sleep(300)
        return {"seen": {}}

    # -- chains --------------------------------------------------------------------------------------------------

    @app.workflow
    async def chained(ctx: Context, input: dict[str, int]) -> dict[str, Any]:
        """Goes on as a new run, so many times."""
        notes = Notes()
        await notes.see(ctx.step(work, 0, 0.02))
        await ctx.sleep(random.choice((0, 0.3)))
        await notes.see(ctx.transaction(write_row(ctx, ("", 2), 2, 0.02)))
        if input["left"]:
            ctx.continue_as({"left": input["left"] - 1})
        return notes.told()

    @app.workflow
    async def relay(ctx: Context, input: dict[str, int]) -> dict[str, Any]:
        """Each link takes two signals and leaves the rest to the next; the last one stays until it is told to stop."""
        notes = Notes()
        if input["left"]:
            for _ in range(NEEDED["relay"]):
                await notes.see(ctx.wait_signal("word", type=str))
            ctx.continue_as({"left": input["left"] - 1})
        await listen(ctx, "word", 0.02, notes)
        return notes.told()


def _row_writer(ledger: Ledger, database: Database) -> Callable[..., Callable[..., Any]]:
    """Makes functions for ``ctx.transaction``: each writes one row, with the value that it returns."""

    def write_row(
        ctx: ContextBase, place: Place, needs: int, pause: float, risk: float = 0.0, least: float = 0.0
    ) -> Callable[..., Any]:
        branch, position = place

        def begin() -> tuple[bool, str]:
            fails = random.random() < risk
            return fails, ledger.act_at(ctx, place, "write", RAISES if fails else RETURNS, needs)

        async def write(connection: Any) -> str:
            fails, nonce = begin()
            sql = "INSERT INTO audit.rows (run, branch, position, nonce) VALUES ($1, $2, $3, $4)"
            await connection.execute(sql, ctx.run_id, branch, position, nonce)
            await asyncio.sleep(max(least, random.random() * pause))
            if fails:
                raise ValueError(nonce)
            return nonce

        def write_in_thread(connection: Any) -> str:
            fails, nonce = begin()
            sql = "INSERT INTO audit_rows (run, branch, position, nonce) VALUES (?, ?, ?, ?)"
            connection.execute(sql, (ctx.run_id, branch, position, nonce))
            time.sleep(random.random() * pause / 10)  # nobody else writes meanwhile
            if fails:
                raise ValueError(nonce)
            return nonce

        async def write_on_mariadb(connection: Any) -> str:
            fails, nonce = begin()
            sql = "INSERT INTO audit_rows (run, branch, position, nonce) VALUES (%s, %s, %s, %s)"
            await connection.cursor().execute(sql, (ctx.run_id, branch, position, nonce))
            await asyncio.sleep(max(least, random.random() * pause))
            if fails:
                raise ValueError(nonce)
            return nonce

        write_on_mariadb.__name__ = write_on_mariadb.__qualname__ = write.__name__
        write_in_thread.__name__ = write_in_thread.__qualname__ = write.__name__
        return {"postgres": write, "mysql": write_on_mariadb, "sqlite": write_in_thread}[database.kind]

    return write_row
