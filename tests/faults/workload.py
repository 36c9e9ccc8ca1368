"""What the storms let workers do, and the programs they run as.

    python -m tests.faults.workload work JSON       a worker, until it is killed
    python -m tests.faults.workload start JSON      starts runs and writes down each start that returned, until killed
    python -m tests.faults.workload send JSON       sends signals to runs that listen, until killed

Every kind of step is here: loops, parallel steps, tries that fail and wait (in memory and released), attempts that
fail, threads that come back after their time, tasks and workflows in async and in plain functions. What waits and is
composed is in composing.py; who sends signals and meddles, in bystanders.py.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from stepfast import Backoff, Context, DatabaseUnavailable, Stepfast, SyncContext
from stepfast.settings import Settings
from tests.faults import bystanders, composing, graphs
from tests.faults.audit import Database
from tests.judge.evidence import LATE, RAISES, RETURNS
from tests.judge.ledger import Ledger
from tests.support.false_time import mend_sleep

AT_ONCE = Backoff(base=0.02, factor=1, max=0.02)
RELEASED = Backoff(base=0.5, factor=1, max=0.5)
"""Longer than a moment, as the storms set it: the slot is given back."""
MOMENT = 0.2

MIX = {
    "chain": 4, "parallel": 3, "flaky": 2, "resting": 2, "second_attempt": 2, "synchronous": 2, "late_handler": 1,
    "late_step": 1, "simple": 3, "simple_def": 2, "unlucky": 1, "tangled": 1, **composing.MIX,
}  # fmt: skip
"""How often each workflow is started."""

CULPRITS = frozenset({"poison"})
"""Workflows that kill their process."""

MAY_FAIL = frozenset({"unlucky"}) | CULPRITS | composing.MAY_FAIL


def make_app(url: str, ledger: Ledger, settings: Settings, logger: logging.Logger | None = None) -> Stepfast:
    """The application that every process of a storm has."""
    app = Stepfast(url, settings=settings, logger=logger)

    async def work(needs: int, pause: float = 0.0) -> str:
        nonce = ledger.act(RETURNS, needs)
        await asyncio.sleep(pause)
        return nonce

    def work_in_thread(needs: int, pause: float = 0.0) -> str:
        nonce = ledger.act(RETURNS, needs)
        time.sleep(pause)
        return nonce

    async def work_or_raise(needs: int, risk: float) -> str:
        if random.random() < risk:
            nonce = ledger.act(RAISES, needs)
            raise ValueError(nonce)
        return ledger.act(RETURNS, needs)

    def work_or_be_late(needs: int, risk: float, late: float) -> str:
        if random.random() >= risk:
            return ledger.act(RETURNS, needs)
        nonce = ledger.act(LATE, needs)
        time.sleep(late)
        return nonce

    # -- durable functions ---------------------------------------------------------------------------------------

    @app.workflow
    async def chain(ctx: Context, pause: float) -> list[str | None]:
        """Steps in a loop."""
        return [await ctx.step(work, position, random.random() * pause) for position in range(5)]

    @app.workflow
    async def parallel(ctx: Context, pause: float) -> list[str | None]:
        """One step, four at once, one step."""
        first = await ctx.step(work, 0, pause)
        crowd = await asyncio.gather(*(ctx.step(work, 1, random.random() * pause) for _ in range(4)))
        return [first, *crowd, await ctx.step(work, 5, pause)]

    @app.workflow
    async def flaky(ctx: Context, pause: float) -> list[str | None]:
        """Tries that fail and are repeated after a moment, kept in memory."""
        careful = ctx.options(retries=40, backoff=AT_ONCE)
        return [await careful.step(work_or_raise, position, 0.4) for position in range(4)]

    @app.workflow
    async def resting(ctx: Context, pause: float) -> list[str | None]:
        """The same, but the wait gives the slot back."""
        careful = ctx.options(retries=40, backoff=RELEASED)
        first = await ctx.step(work, 0, pause)
        return [first, await careful.step(work_or_raise, 1, 0.4), await ctx.step(work, 2, pause)]

    @app.workflow(max_attempts=20, backoff=AT_ONCE)
    async def second_attempt(ctx: Context, pause: float) -> list[str | None]:
        """The code between two steps fails at first."""
        before = [await ctx.step(work, position, pause) for position in range(2)]
        if ctx.attempt == 1:
            raise RuntimeError("not at the first attempt")
        return [*before, await ctx.step(work, 2, pause)]

    @app.workflow(max_attempts=20, backoff=AT_ONCE)
    async def tangled(ctx: Context, pause: float) -> list[str | None]:
        """Parallel steps of which one ends the attempt while the others work or wait for a try."""
        careful = ctx.options(retries=40, backoff=AT_ONCE)
        steps = [ctx.step(work_or_raise, 0, 0.3), ctx.step(work, 0, pause), careful.step(work_or_raise, 0, 0.6)]
        return [*await asyncio.gather(*steps), await ctx.step(work, 3, pause)]

    @app.workflow
    def synchronous(ctx: SyncContext, pause: float) -> list[str | None]:
        """A plain function with steps of both kinds."""
        return [
            ctx.step(work_in_thread, position, pause) if position % 2 else ctx.step(work, position, pause)
            for position in range(4)
        ]

    @app.workflow(timeout=0.5, max_attempts=40, backoff=AT_ONCE)
    def late_handler(ctx: SyncContext, pause: float) -> list[str | None]:
        """The first attempt is stuck in a step beyond its timeout, comes back, and would like to go on."""
        risk = 1.0 if ctx.attempt == 1 else 0.0
        first = ctx.step(work, 0, 0)
        return [first, ctx.step(work_or_be_late, 1, risk, 0.6 + random.random()), ctx.step(work, 2, 0)]

    @app.workflow
    async def late_step(ctx: Context, pause: float) -> list[str | None]:
        """A blocking step beyond its own timeout, whose thread comes back while the next try is under way."""
        careful = ctx.options(retries=40, timeout=0.2, backoff=AT_ONCE)
        return [await careful.step(work_or_be_late, position, 0.4, 0.25) for position in range(2)]

    @app.workflow(max_attempts=2, backoff=AT_ONCE)
    async def unlucky(ctx: Context, pause: float) -> list[str | None]:
        """Mostly ends without a result."""
        first = await ctx.step(work, 0, pause)
        return [first, await ctx.options(retries=1, backoff=AT_ONCE).step(work_or_raise, 1, 0.8)]

    # -- for single scenes; not in the mix -------------------------------------------------------------------------

    @app.workflow
    async def long(ctx: Context, seconds: float) -> list[str | None]:
        """One step of a given length."""
        return [await ctx.step(work, 0, seconds)]

    @app.workflow
    async def slow_chain(ctx: Context, pause: float) -> list[str | None]:
        """Steps that take a while, so that a worker is always in the middle of one."""
        return [await ctx.step(work, position, pause) for position in range(4)]

    @app.workflow
    async def poison(ctx: Context, pause: float) -> list[str | None]:
        """Takes its process along, each time."""

        async def kill() -> str:
            ledger.act(RETURNS, 1)
            await asyncio.sleep(pause)
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError

        return [await ctx.step(work, 0), await ctx.step(kill)]

    @app.workflow
    async def block(ctx: Context, seconds: float) -> list[str | None]:
        """Keeps the whole event loop busy."""

        async def hog(needs: int) -> str:
            nonce = ledger.act(RETURNS, needs)
            time.sleep(seconds)
            return nonce

        return [await ctx.step(work, 0), await ctx.step(hog, 1), await ctx.step(work, 2)]

    @app.workflow
    async def slow_to_fail(ctx: Context, pause: float) -> list[str | None]:
        """One step that fails the first time; each try takes a while."""

        async def fail_once() -> str:
            first = _first(ledger.folder / f"failed {ctx.run_id}")
            nonce = ledger.act(RAISES if first else RETURNS)
            await asyncio.sleep(pause)
            if first:
                raise ValueError(nonce)
            return nonce

        return [await ctx.options(retries=3, backoff=AT_ONCE).step(fail_once)]

    @app.workflow
    async def month(ctx: Context, days: float) -> list[str | None]:
        """Each day brings a new record, a rest, and the death of the worker that woke the run up."""

        async def rest(needs: int) -> str:
            for trouble in ("raise", "kill"):
                if _first(ledger.folder / f"{trouble} {ctx.run_id} {needs}"):
                    ledger.act(RAISES if trouble == "raise" else RETURNS, needs)
                    if trouble == "kill":
                        os.kill(os.getpid(), signal.SIGKILL)
                    raise ValueError
            return ledger.act(RETURNS, needs)

        notes: list[str | None] = []
        for day in range(int(days)):
            notes.append(await ctx.step(work, 2 * day))
            notes.append(await ctx.options(retries=9, backoff=RELEASED).step(rest, 2 * day + 1))
        return notes

    composing.add_to(app, ledger, Database(url), work, lambda name: _first(ledger.folder / name))
    graphs.add_to(app, ledger)

    # -- tasks ---------------------------------------------------------------------------------------------------

    @app.task
    async def simple(pause: float) -> str:
        return await work(0, pause)

    @app.task
    async def large(input: dict[str, str]) -> str:
        """Its claim is more than the buffers of a connection hold."""
        return await work(0)

    @app.task
    def simple_def(pause: float) -> str:
        return work_in_thread(0, pause)

    return app


def _first(mark: Path) -> bool:
    """Whether nobody has been here before."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


async def start_one(app: Stepfast, ledger: Ledger, keys: int, pause: float = 0.02) -> Any:
    """Start a run of a random kind; its handle, or None if the start did not return."""
    [workflow] = random.choices(list(MIX), list(MIX.values()))
    key = f"key {random.randrange(keys)}" if random.random() < 0.15 else None
    options: dict[str, Any] = {"priority": random.choice((0, 0, 0, 5, -5))}
    if key is None and random.random() < 0.1:
        options["delay"] = random.random()
    given = composing.input_of(workflow, pause)
    try:
        if random.random() < 0.05:
            # Such a handle does not know whether its transaction was committed: it is asked when the storm is over.
            await bystanders.start_within(app, ledger, workflow, given, options)
            return None
        run = await app.start(workflow, given, key=key, **options)
    except bystanders.TROUBLE:
        return None
    ledger.started(run.id, workflow, key)
    return run


# -- programs ------------------------------------------------------------------------------------------------------


async def work(app: Stepfast, ledger: Ledger, arguments: dict[str, Any]) -> None:
    ready = TellWhenReady(ledger)
    app.logger.addHandler(ready)
    await until_connected(app)
    async with app:
        while True:
            try:
                await app.work(concurrency=arguments["concurrency"], shutdown_grace=0)
                return
            except DatabaseUnavailable:
                if ready.told:
                    raise  # it was at work: then it must ride out anything
                await asyncio.sleep(0.2)


class TellWhenReady(logging.Handler):
    """Hears the worker say that it has begun."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger
        self.told = False

    def emit(self, record: logging.LogRecord) -> None:
        if not self.told and record.msg.startswith("worker %s started"):
            self.told = True
            self._ledger.append("ready", {"pid": os.getpid()})


_MOST_QUEUED = 400
"""What a process that starts runs leaves queued at most: a slow machine would not be through with it in time."""


async def until_connected(app: Stepfast) -> None:
    """A process that comes up during an outage is started again, by whoever looks after it: here, by itself."""
    while True:
        try:
            await app.store()
            return
        except DatabaseUnavailable:
            await asyncio.sleep(0.2)


async def _start(app: Stepfast, ledger: Ledger, arguments: dict[str, Any]) -> None:
    await until_connected(app)
    async with app:
        ledger.append("ready", {"pid": os.getpid()})
        while True:
            if not await _is_crowded(app):
                await asyncio.gather(*(start_one(app, ledger, arguments["keys"]) for _ in range(3)))
            await asyncio.sleep(random.random() * 0.1)


async def _is_crowded(app: Stepfast) -> bool:
    """Whether so much is queued that what is started now would only be left to do when the storm is over."""
    try:
        return await app.count(status="queued") >= _MOST_QUEUED
    except bystanders.TROUBLE:
        return False


async def _send(app: Stepfast, ledger: Ledger, arguments: dict[str, Any]) -> None:
    await until_connected(app)
    async with app:
        ledger.append("ready", {"pid": os.getpid()})
        await bystanders.keep_signalling(app, ledger, f"process {os.getpid()}")


def die_with_the_parent() -> None:
    """A worker must not outlive the test that started it, however that ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, which reaches a frozen process too

    def wait_for_the_end() -> None:
        while os.read(0, 100):
            pass
        os._exit(0)

    threading.Thread(target=wait_for_the_end, daemon=True).start()


def main(program: str, arguments: dict[str, Any]) -> None:
    die_with_the_parent()
    mend_sleep()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    for name in arguments.get("change", "").split():
        from tests.faults import changes

        getattr(changes, name)(arguments)
    ledger = Ledger(Path(arguments["folder"]))
    app = make_app(arguments["url"], ledger, Settings(**arguments["settings"]), logging.getLogger("worker"))
    programs = {"work": work, "start": _start, "send": _send, "start graphs": graphs.keep_starting}
    asyncio.run(programs[program](app, ledger, arguments))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
