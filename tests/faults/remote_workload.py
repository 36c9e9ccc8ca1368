"""What storms over remote steps let workers do, on both sides, and the programs they run as.

    python -m tests.faults.remote_workload work JSON       a worker of the application, until it is killed
    python -m tests.faults.remote_workload serve JSON      a worker elsewhere, of our own make

Whoever serves a step, in whatever language, first writes a line into the ledger: which step of which run, the value
that it made up for it, and what it is about to do: return it, fail with it, or fail for good.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import secrets
import sys
from collections.abc import Awaitable
from functools import partial
from pathlib import Path
from typing import Any

from stepfast import (
    Backoff,
    Context,
    DatabaseUnavailable,
    NonRetryableError,
    RemoteStepError,
    Stepfast,
    SyncContext,
)
from stepfast.errors import RemoteTimeout
from stepfast.remote import FatalError, RemoteWorker, SqlTransport
from stepfast.settings import Settings
from tests.faults.workload import die_with_the_parent, work
from tests.judge.ledger import Ledger, now

SERVED, GROUP = "served", "storm"
LATE = "late"
RETRIES = 3
AT_ONCE = Backoff(base=0.02, factor=1, max=0.02)
MIX = {"chain": 4, "fan": 3, "race": 2, "timed": 2, "stubborn": 2, "plain": 1, "saga": 3, "graph": 2}
MAY_FAIL = frozenset({"stubborn", "graph"})
SERVE, UNDO = "storm.serve", "storm.undo"
"""How often each workflow is started."""


def make_app(url: str, transport: str | None, settings: Settings, logger: logging.Logger | None = None) -> Stepfast:
    """The application that every process of the storm has."""
    carrier = SqlTransport(transport, settings=settings) if transport else None
    app = Stepfast(url, settings=settings, logger=logger, transport=carrier)

    @app.workflow
    async def chain(ctx: Context, pause: float) -> dict[str, str]:
        return {what: await told(_ask(ctx, what, pause)) for what in ("a", "b", "c")}

    @app.workflow
    async def fan(ctx: Context, pause: float) -> dict[str, str]:
        names = [f"fan {number}" for number in range(6)]
        calls = [ctx.branch(_branch, what, pause) for what in names[:3]]
        plain = [ctx.remote(*_order(ctx, what, pause, 0.0), **_HOW) for what in names[3:]]
        return dict(zip(names, await ctx.gather(*calls, *plain), strict=True))

    async def _branch(ctx: Context, what: str, pause: float) -> str:
        await ctx.sleep(0.01)
        return await told(_ask(ctx, what, pause))

    @app.workflow
    async def race(ctx: Context, pause: float) -> dict[str, str]:
        """Often the sleep is quicker: then the step is nobody's any more."""
        calls = {"remote": ctx.remote(*_order(ctx, "racer", pause, 0.0), **_HOW), "sleep": ctx.sleep(0.15)}
        winner, value = await ctx.first(**calls)
        return {"racer": value if winner == "remote" else LATE, "after": await told(_ask(ctx, "after", pause))}

    @app.workflow
    async def timed(ctx: Context, pause: float) -> dict[str, str]:
        return {what: await told(_ask(ctx, what, pause, timeout=0.3)) for what in ("in time", "once more")}

    @app.workflow(max_attempts=3, backoff=AT_ONCE)
    async def stubborn(ctx: Context, pause: float) -> dict[str, str]:
        """What fails here ends the attempt, and the next one asks anew."""
        first = await told(_ask(ctx, "first", pause))
        return {"first": first, "uncaught": await ctx.remote(*_order(ctx, "uncaught", pause, 0.5), group=GROUP)}

    @app.workflow
    async def saga(ctx: Context, pause: float) -> dict[str, str]:
        """Half of them fail in the end, and what was done elsewhere is undone there."""
        found = {what: await told(_ask(ctx, what, pause, compensate=UNDO)) for what in ("one", "two", "three")}
        if ctx.random() < 0.5:
            raise NonRetryableError("all of it was in vain")
        return found

    graph = app.dag("graph")
    for name, after in (("top", []), ("left", ["top"]), ("right", ["top"]), ("bottom", ["left", "right"])):
        how: Any = {**_HOW, "after": after, "handler": SERVE, "compensate": UNDO}
        graph.remote(name, input=partial(_graph_input, name), **how)

    @app.workflow
    def plain(ctx: SyncContext, pause: float) -> dict[str, str]:
        return {"plain": str(ctx.remote(*_order(ctx, "plain", pause, 0.0), **_HOW))}

    return app


_HOW: Any = {"group": GROUP, "retries": RETRIES, "backoff": AT_ONCE}


def _order(ctx: Any, what: str, pause: float, odds: float) -> tuple[str, dict[str, Any]]:
    return SERVE, {"run": ctx.run_id, "what": what, "pause": pause, "odds": odds}


def _graph_input(what: str, ctx: Any) -> dict[str, Any]:
    return _order(ctx, what, ctx.input, 0.1)[1]


def _ask(ctx: Context, what: str, pause: float, **more: Any) -> Awaitable[str]:
    name, given = _order(ctx, what, pause, 0.2)
    return ctx.remote(name, given, **{**_HOW, **more})


async def told(call: Awaitable[str]) -> str:
    """What came of a step, in a word."""
    try:
        return str(await call)
    except RemoteTimeout:
        return LATE
    except RemoteStepError as error:
        return f"failed {error.message}"


# -- programs ------------------------------------------------------------------------------------------------------


def outcome(ledger: Ledger, maker: str, input: dict[str, Any], of: str | None = None) -> tuple[str, str]:
    """Write down that a step is served, or an undo ``of`` what one gave, and how: what it does, and its value."""
    dice = random.random()
    does = "fatal" if dice < input["odds"] / 5 else "failed" if dice < input["odds"] else "completed"
    nonce = secrets.token_hex(8)
    entry = {"at": now(), "run": input["run"], "what": input["what"], "maker": maker, "does": does, "nonce": nonce}
    ledger.append(SERVED, {**entry, "pid": os.getpid(), "of": of})
    return does, nonce


async def _serve(arguments: dict[str, Any], ledger: Ledger) -> None:
    settings = Settings(outage_backoff_max=1.0, connect_timeout=5)
    worker = RemoteWorker(
        arguments["transport"], GROUP, lease=arguments["lease"], poll_interval=0.05, concurrency=10, settings=settings,
        logger=logging.getLogger("remote"),
    )  # fmt: skip

    @worker.handle(SERVE)
    async def serve(input: dict[str, Any]) -> str:
        does, nonce = outcome(ledger, "stepfast", input)
        await asyncio.sleep(random.random() * input["pause"])
        if does == "fatal":
            raise FatalError(nonce)
        if does == "failed":
            raise ValueError(nonce)
        return nonce

    @worker.handle(UNDO)
    async def undo(input: dict[str, Any]) -> str:
        return outcome(ledger, "stepfast", {**input["input"], "odds": 0}, input["output"])[1]

    while True:  # one that comes up during an outage is started again by whoever looks after it
        try:
            await worker.start()
            break
        except DatabaseUnavailable:
            await asyncio.sleep(0.2)
    ledger.append("ready", {"pid": os.getpid()})
    await worker.broken.wait()
    raise SystemExit("the worker has ended by itself")


def main(program: str, arguments: dict[str, Any]) -> None:
    die_with_the_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    ledger = Ledger(Path(arguments["folder"]))
    if program == "serve":
        asyncio.run(_serve(arguments, ledger))
        return
    settings = Settings(**arguments["settings"])
    app = make_app(arguments["url"], arguments["transport"], settings, logging.getLogger("worker"))
    asyncio.run(work(app, ledger, arguments))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
