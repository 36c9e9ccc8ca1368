"""Random programs as workflows: what a run does is a list in its input, and this plays it.

An op is a dictionary whose ``do`` names what is done. Everything that a step does in the world goes through the ledger
of the storms, so their checker judges it; whether it fails this time is counted outside of the run, as in life.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from stepfast import (
    Again,
    Backoff,
    CallbackFailed,
    CallbackTimeout,
    ChildFailed,
    Context,
    Done,
    NonRetryableError,
    SignalTimeout,
    StepFailed,
    Stepfast,
    SyncContext,
    step,
)
from stepfast.engine.call import DurableCall
from stepfast.engine.host import current_call, current_execution
from stepfast.engine.workflow import Workflow
from stepfast.errors import WaitTimeout
from stepfast.model.status import TIMED_OUT
from tests.faults import talking
from tests.faults.composing import key_of
from tests.judge.evidence import ASKS, LATE, RAISES, RETURNS, TASK
from tests.judge.ledger import Ledger
from tests.simulation import threads

Op = dict[str, Any]
Program = list[Op]

QUICK = Backoff(base=0.05, factor=1, max=0.05, jitter=False)
SLOW = Backoff(base=1.5, factor=1, max=1.5, jitter=False)
"""Longer than a moment, mostly: the slot is given back."""
BACKOFFS = {"quick": QUICK, "slow": SLOW}
FAILURES = (ChildFailed, SignalTimeout, StepFailed, WaitTimeout)

MAY_FAIL = frozenset({"doomed", "doomed_def", "saga", "saga_def", "sour"})
MAY_UNDO = frozenset({"saga", "sour", "doomed", "saga_def"})
MAY_FAIL_TO_UNDO = frozenset({"sour"})
WITH_INPUT = ("plain", "doomed", "saga", "sour", "chain", "plain_def", "doomed_def", "saga_def")


class HeldCallback:
    """What holders of a token did, and what its run saw of it."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.accepted: set[str] = set()
        """Outcomes whose sender was told that they are taken."""
        self.sent: set[str] = set()
        """Outcomes that were sent, whatever their senders were told."""
        self.seen: set[str] = set()
        """Outcomes that the code saw, on any replay."""


class Outside:
    """What the world knows of runs, and runs do not: how often each place was called, and what it saw there."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.called: Counter[tuple[str, str, int]] = Counter()
        self.drawn: dict[tuple[str, str, int, int], str] = {}
        self.wrong: list[tuple[str, str]] = []
        """(run, text) of what was not the same twice."""
        self.allowed: dict[tuple[str, str, int], int] = {}
        """How many retries a place was given."""
        self.branched: set[tuple[str, tuple[str, int]]] = set()
        """Where branches began, and what lost a race: places that may have no record."""

        self.callbacks: dict[str, HeldCallback] = {}
        """By token, in the order in which they were made."""

    def times(self) -> int:
        """How often the present place was called before."""
        execution, call = current_execution.get(), current_call.get()
        assert execution is not None
        place = ("", TASK) if call is None else (call.branch, call.position)
        return self.times_at(execution.run_id, *place)

    def times_at(self, run_id: str, branch: str, position: int) -> int:
        """How often a place was called before."""
        self.called[run_id, branch, position] += 1
        return self.called[run_id, branch, position] - 1

    def same(self, run_id: str, branch: str, position: int, number: int, value: str) -> None:
        """What a run draws at a place must be what it drew there before."""
        if self.drawn.setdefault((run_id, branch, position, number), value) != value:
            self.wrong.append((run_id, f"at {branch}:{position} it drew {value}, and before that another value"))


class Stage:
    """Where programs are played: the code is the same in all worlds, and what is outside of it is not."""

    outside: Outside


class Acts:
    """What steps, undos and transactions do."""

    def __init__(self) -> None:
        self.undo = step(name="undo", retries=9, backoff=QUICK)(self._undo)
        self.slow_undo = step(name="slow undo", retries=9, backoff=SLOW)(self._slow_undo)
        self.no_undo = step(name="no undo", retries=1, backoff=QUICK)(self._no_undo)

    @property
    def _outside(self) -> Outside:
        return Stage.outside

    @property
    def _ledger(self) -> Ledger:
        return Stage.outside.ledger

    async def work(self, needs: int, op: Op) -> str:
        """A step that takes a while, and fails the first few times."""
        nonce, does = self._begin(needs, op)
        if does == RAISES and op.get("cancels"):
            _cancel_this_task()
        await asyncio.sleep(_seconds(op, does))
        return _ended(nonce, does)

    def work_in_thread(self, needs: int, op: Op) -> str:
        """The same as a plain function."""
        nonce, does = self._begin(needs, op)
        threads.sleep(_seconds(op, does))
        return _ended(nonce, does)

    def _begin(self, needs: int, op: Op) -> tuple[str, str]:
        fails = self._outside.times() < op.get("fails", 0)
        does = RETURNS if not fails else LATE if op.get("timeout") else RAISES
        return self._ledger.act(does, needs), does

    def writing(self, ctx: Context | SyncContext, needs: int, op: Op) -> Callable[[Any], str]:
        """A function for ``ctx.transaction``: one row, with the value that it returns."""
        branch, position = place = (ctx._cursor.branch, ctx._cursor.position)

        def write(connection: Any) -> str:
            fails = self._outside.times_at(ctx.run_id, branch, position) < op.get("fails", 0)
            nonce = self._ledger.act_at(ctx, place, "write", RAISES if fails else RETURNS, needs)
            sql = "INSERT INTO audit_rows (run, branch, position, nonce) VALUES (?, ?, ?, ?)"
            connection.execute(sql, (ctx.run_id, branch, position, nonce))
            if fails:
                raise ValueError(nonce)
            return nonce

        return write

    def asking(self, needs: int, op: Op) -> Callable[..., Awaitable[Any]]:
        """A check for ``ctx.wait_until``: not so yet, the first few times. It counts them outside, or in a state."""

        async def is_so(asked: int = 0) -> Any:
            if op["every"] == 1.0:
                if asked < op["asks"]:
                    self._ledger.act(ASKS, needs)
                    return Again(asked + 1, after=0.1 * asked)
                return Done(self._ledger.act(RETURNS, needs))
            if self._outside.times() < op["asks"]:
                self._ledger.act(ASKS, needs)
                return None
            return self._ledger.act(RETURNS, needs)

        return is_so

    async def _undo(self, output: str, *_: Any) -> str:
        fails = self._outside.times() < 1
        nonce = self._ledger.act(RAISES if fails else RETURNS, undoes=output)
        await asyncio.sleep(0.02)
        if fails:
            raise ValueError(nonce)
        return nonce

    def _slow_undo(self, output: str, *_: Any) -> str:
        fails = self._outside.times() < 1
        nonce = self._ledger.act(RAISES if fails else RETURNS, undoes=output)
        threads.sleep(0.1)
        if fails:
            raise ValueError(nonce)
        return nonce

    async def _no_undo(self, output: str, *_: Any) -> str:
        raise ValueError(self._ledger.act(RAISES, undoes=output))

    def undo_of(self, op: Op) -> Any:
        """What undoes the step of an op, if anything does."""
        return {None: None, "quick": self.undo, "slow": self.slow_undo, "never": self.no_undo}[op.get("undo")]


def _cancel_this_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


def _seconds(op: Op, does: str) -> float:
    return float(op["timeout"]) * 2 if does == LATE else float(op.get("pause", 0))


def _ended(nonce: str, does: str) -> str:
    if does == RAISES:
        raise ValueError(nonce)
    return nonce


class Story:
    """What the code of a run has seen, and what it set: its result."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}
        self.lost: list[str] = []
        self.set: dict[str, Any] = {}

    async def see(self, call: DurableCall[Any], caught: bool = True) -> Any:
        """Await a call; its value, or None if it failed and that is caught."""
        try:
            value = await call
        except FAILURES:
            self.seen[key_of(call)] = "failed"
            if not caught:
                raise
            return None
        self.seen[key_of(call)] = value
        return value

    def told(self) -> dict[str, Any]:
        """The result of the run."""
        return {"seen": self.seen, "lost": self.lost, "set": self.set}


class Player:
    """Plays a program in an ``async def`` workflow."""

    def __init__(self, acts: Acts, story: Story) -> None:
        self._outside = Stage.outside
        self._acts = acts
        self._story = story
        self._draws: Counter[tuple[str, int]] = Counter()

    async def line(self, ctx: Context, program: Program) -> None:
        """One op after the other."""
        for op in program:
            await getattr(self, "_" + op["do"])(ctx, op)

    def _call(self, ctx: Context, op: Op, needs: int) -> DurableCall[Any]:
        """The call of a step, with its options."""
        cursor = ctx._cursor
        self._outside.allowed[ctx.run_id, cursor.branch, cursor.position] = op.get("retries", 0)
        how: Any = {
            "retries": op.get("retries", 0),
            "backoff": BACKOFFS[op.get("backoff", "quick")],
            "timeout": op.get("timeout"),
            "compensate": self._acts.undo_of(op),
        }
        work: Any = self._acts.work_in_thread if op.get("plain") else self._acts.work
        return ctx.options(**how).step(
            work, needs, {k: op[k] for k in ("pause", "fails", "timeout", "cancels") if k in op}
        )

    async def _step(self, ctx: Context, op: Op) -> None:
        await self._story.see(self._call(ctx, op, ctx._cursor.position), op.get("caught", True))

    async def _together(self, ctx: Context, op: Op) -> None:
        needs = ctx._cursor.position
        calls = [self._story.see(self._call(ctx, each, needs)) for each in op["ops"]]
        if not op.get("tasks"):
            await ctx.gather(*calls)
            return
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(call)

    async def _sleep(self, ctx: Context, op: Op) -> None:
        if op.get("until"):
            await ctx.sleep_until(ctx.now() + timedelta(seconds=op["seconds"]))
        else:
            await ctx.sleep(op["seconds"])

    async def _signal(self, ctx: Context, op: Op) -> None:
        await self._story.see(ctx.wait_signal(op["name"], type=str, timeout=op.get("timeout")))

    async def _callback(self, ctx: Context, op: Op) -> None:
        """Its token is known outside as soon as the code has it; the code may be elsewhere when it ends."""
        callback = await ctx.callback("held", timeout=op.get("timeout"), heartbeat=op.get("heartbeat"))
        held = self._outside.callbacks.setdefault(callback.token, HeldCallback(ctx.run_id))
        await self.line(ctx, op.get("meanwhile", []))
        for _ in range(op["asks"]):
            try:
                held.seen.add(str(await callback.result()))
            except CallbackFailed as failed:
                held.seen.add(failed.message)
            except CallbackTimeout:
                held.seen.add(TIMED_OUT)

    async def _echo(self, ctx: Context, op: Op) -> None:
        """The run signals itself, and takes what it has sent: once, whatever crashes."""
        place = f"{ctx._cursor.branch}:{ctx._cursor.position}"
        name, nonce = f"echo {place}", f"echo {ctx.run_id} {place}"
        self._outside.ledger.sends(ctx.run_id, name, nonce)
        try:
            await ctx.signal(ctx.run_id, name, nonce)
        except StepFailed:
            return
        self._outside.ledger.signalled(nonce)
        await self._story.see(ctx.wait_signal(name, type=str))
        await self._story.see(ctx.wait_signal(name, type=str, timeout=0))

    async def _children(self, ctx: Context, op: Op) -> None:
        children = await ctx.start_many(op["workflow"], op["inputs"])
        await self._story.see(children[0].result())

    async def _until(self, ctx: Context, op: Op) -> None:
        check = self._acts.asking(ctx._cursor.position, op)
        await self._story.see(ctx.wait_until(check, every=op["every"], timeout=op.get("timeout")))

    async def _transaction(self, ctx: Context, op: Op) -> None:
        how: Any = {"retries": op.get("retries", 0), "backoff": BACKOFFS[op.get("backoff", "quick")]}
        self._outside.allowed[ctx.run_id, ctx._cursor.branch, ctx._cursor.position] = how["retries"]
        write = self._acts.writing(ctx, ctx._cursor.position, op)
        call = ctx.options(**how, compensate=self._acts.undo_of(op)).transaction(write)
        await self._story.see(call, op.get("caught", True))

    async def _child(self, ctx: Context, op: Op) -> None:
        given: Any = op["input"]
        if op["how"] == "call":
            await self._story.see(ctx.call(op["workflow"], given))
            return
        child = await ctx.start(op["workflow"], given)
        await self.line(ctx, op.get("meanwhile", []))
        if op["how"] == "result":
            await self._story.see(child.result())

    async def _branches(self, ctx: Context, op: Op) -> None:
        await ctx.gather(*(ctx.branch(self.line, each) for each in self._branching(ctx, op["lines"])))

    async def _map(self, ctx: Context, op: Op) -> None:
        goal: Any = {"max_failures": 0} if op["limit"] == 2 else {}
        await ctx.map(self.line, self._branching(ctx, op["lines"]), limit=op["limit"], **goal)

    def _branching(self, ctx: Context, lines: list[Program]) -> list[Program]:
        """Branches begin at the next places, which leave no record there."""
        branch, position = ctx._cursor.branch, ctx._cursor.position
        self._outside.branched |= {(ctx.run_id, (branch, position + number)) for number in range(len(lines))}
        return lines

    async def _race(self, ctx: Context, op: Op) -> None:
        needs = ctx._cursor.position
        mine = {str(number): Story() for number in range(len(op["ops"]))}
        runners = {str(n): self._runner(ctx, each, needs, mine[str(n)]) for n, each in enumerate(op["ops"])}
        winner, value = await ctx.first(**{f"r{name}": call for name, call in runners.items()})
        won = winner[1:]
        losers = [call for name, call in runners.items() if name != won]
        self._story.lost += [key_of(call) for call in losers]
        # One that was not begun, because the race was over when the worker before died, has no record.
        self._outside.branched |= {(ctx.run_id, (call.branch, call.position)) for call in losers}
        if op["ops"][int(won)]["do"] in ("step", "signal"):
            self._story.seen[key_of(runners[won])] = value
        self._story.seen.update(mine[won].seen)
        self._story.lost += mine[won].lost

    def _runner(self, ctx: Context, op: Op, needs: int, mine: Story) -> DurableCall[Any]:
        if op["do"] == "step":
            return self._call(ctx, op, needs)
        if op["do"] == "signal":
            return ctx.wait_signal(op["name"], type=str)
        if op["do"] == "sleep":
            return ctx.sleep(op["seconds"])
        self._branching(ctx, [op["ops"]])
        return ctx.branch(Player(self._acts, mine).line, op["ops"])

    async def _patience(self, ctx: Context, op: Op) -> None:
        """The code itself gives a step up."""
        call = self._call(ctx, op["op"], ctx._cursor.position)
        try:
            async with asyncio.timeout(op["seconds"]):
                await self._story.see(call)
        except TimeoutError:
            self._story.seen.pop(key_of(call), None)
            self._story.lost.append(key_of(call))

    async def _tell(self, ctx: Context, op: Op) -> None:
        key = f"at {ctx._cursor.branch}"
        self._story.set[key] = op["value"]
        await ctx.set(key, op["value"])
        ctx.progress(f"at {op['value']}")

    async def _draw(self, ctx: Context, op: Op) -> None:
        place = (ctx._cursor.branch, ctx._cursor.position)
        self._draws[place] += 1
        drawn = f"{ctx.random()} {ctx.uuid()} {ctx.patched('a change')}"
        self._outside.same(ctx.run_id, *place, self._draws[place], drawn)

    async def _stumble(self, ctx: Context, op: Op) -> None:
        if ctx.attempt <= op["attempts"]:
            if op.get("cancels"):
                _cancel_this_task()
                await asyncio.sleep(0)
            raise RuntimeError("not at this attempt")

    async def _give_up(self, ctx: Context, op: Op) -> None:
        raise NonRetryableError("all of it was in vain")


class PlainPlayer:
    """Plays what a plain ``def`` workflow can do."""

    def __init__(self, acts: Acts) -> None:
        self._outside = Stage.outside
        self._acts = acts
        self.story = Story()

    def line(self, ctx: SyncContext, program: Program) -> None:
        """One op after the other; what only an ``async def`` can do is left out."""
        for op in program:
            play = getattr(self, "_" + op["do"], None)
            if play is not None:
                play(ctx, op)

    def _see(self, ctx: SyncContext, caught: bool, call: Callable[..., Any], *args: Any, **options: Any) -> None:
        key = f":{ctx._cursor.position}"
        try:
            self.story.seen[key] = call(*args, **options)
        except FAILURES:
            self.story.seen[key] = "failed"
            if not caught:
                raise

    def _step(self, ctx: SyncContext, op: Op) -> None:
        needs = ctx._cursor.position
        self._outside.allowed[ctx.run_id, "", needs] = op.get("retries", 0)
        how: Any = {
            "retries": op.get("retries", 0),
            "backoff": BACKOFFS[op.get("backoff", "quick")],
            "timeout": op.get("timeout"),
            "compensate": self._acts.undo_of(op),
        }
        work: Any = self._acts.work_in_thread if op.get("plain") else self._acts.work
        given = {k: op[k] for k in ("pause", "fails", "timeout") if k in op}
        self._see(ctx, op.get("caught", True), ctx.options(**how).step, work, needs, given)

    def _sleep(self, ctx: SyncContext, op: Op) -> None:
        ctx.sleep(op["seconds"])

    def _signal(self, ctx: SyncContext, op: Op) -> None:
        self._see(ctx, True, ctx.wait_signal, op["name"], type=str, timeout=op.get("timeout"))

    def _until(self, ctx: SyncContext, op: Op) -> None:
        check = self._acts.asking(ctx._cursor.position, op)
        self._see(ctx, True, ctx.wait_until, check, every=op["every"], timeout=op.get("timeout"))

    def _transaction(self, ctx: SyncContext, op: Op) -> None:
        how: Any = {"retries": op.get("retries", 0), "backoff": BACKOFFS[op.get("backoff", "quick")]}
        self._outside.allowed[ctx.run_id, "", ctx._cursor.position] = how["retries"]
        write = self._acts.writing(ctx, ctx._cursor.position, op)
        undo = self._acts.undo_of(op)
        self._see(ctx, op.get("caught", True), ctx.options(**how, compensate=undo).transaction, write)

    def _child(self, ctx: SyncContext, op: Op) -> None:
        if op["how"] == "call":
            self._see(ctx, True, ctx.call, op["workflow"], op["input"])
            return
        child = ctx.start(op["workflow"], op["input"])
        if op["how"] == "result":
            self._see(ctx, True, child.result)

    def _tell(self, ctx: SyncContext, op: Op) -> None:
        self.story.set["at"] = op["value"]
        ctx.set("at", op["value"])
        ctx.progress(f"at {op['value']}")

    def _stumble(self, ctx: SyncContext, op: Op) -> None:
        if ctx.attempt <= op["attempts"]:
            raise RuntimeError("not at this attempt")

    def _give_up(self, ctx: SyncContext, op: Op) -> None:
        raise NonRetryableError("all of it was in vain")


@functools.cache
def code() -> dict[str, Workflow[Any, Any]]:
    """The workflows that play programs, and tasks: declared once, for reading the code takes longer than playing it."""
    app, acts = Stepfast("sqlite://"), Acts()

    async def play(ctx: Context, input: dict[str, Any]) -> dict[str, Any]:
        story = Story()
        await Player(acts, story).line(ctx, input["program"])
        if input.get("left"):
            ctx.continue_as({**input, "left": input["left"] - 1})
        return story.told()

    def play_plainly(ctx: SyncContext, input: dict[str, Any]) -> dict[str, Any]:
        player = PlainPlayer(acts)
        player.line(ctx, input["program"])
        return player.story.told()

    for name, attempts in (("plain", 3), ("doomed", 2), ("saga", 1), ("sour", 1), ("chain", 3)):
        app.workflow(name=name, max_attempts=attempts, backoff=QUICK)(play)
    for name, attempts in (("plain_def", 3), ("doomed_def", 2), ("saga_def", 1)):
        app.workflow(name=name, max_attempts=attempts, backoff=QUICK)(play_plainly)

    @app.task(max_attempts=3, backoff=QUICK)
    async def task(input: Op) -> str:
        return await acts.work(0, input)

    @app.task(max_attempts=3, backoff=QUICK)
    def task_def(input: Op) -> str:
        return acts.work_in_thread(0, input)

    talking.add_to(app, lambda: Stage.outside.ledger)
    return app.workflows
