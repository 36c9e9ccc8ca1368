"""The program that worker processes of the tests run, and the workflows that both sides know.

    python -m tests.support.worker_program DESCRIPTOR JSON

works until it is told to stop; ``ready`` goes through the descriptor when the worker is registered.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from stepfast import Context, Stepfast
from stepfast.settings import Settings
from tests.support.processes import Ledger


def make_app(
    url: str, ledger: Ledger, settings: Settings | None = None, logger: logging.Logger | None = None
) -> Stepfast:
    """An application with everything that tests let processes do."""
    app = Stepfast(url, settings=settings, logger=logger)

    @app.task
    async def quick(number: int) -> int:
        ledger.write("quick", number, os.getpid())
        return number

    @app.task(max_attempts=1)
    async def hold(gate: str) -> str:
        """Waits at a gate."""
        ledger.write("hold", gate, os.getpid())
        await ledger.passing(gate)
        return gate

    @app.task(max_attempts=1)
    async def block_loop(gate: str) -> str:
        """The same, with the whole event loop."""
        ledger.write("hold", gate, os.getpid())
        ledger.passing_blocked(gate)
        return gate

    @app.task(max_attempts=1)
    def block_thread(gate: str) -> str:
        """The same in a thread."""
        ledger.write("hold", gate, os.getpid())
        ledger.passing_blocked(gate)
        return gate

    @app.task(max_attempts=1)
    async def stubborn(gate: str) -> str:
        """Waits at a gate and does not let the worker cancel it; only the end of the event loop does."""
        ledger.write("hold", gate, os.getpid())
        with contextlib.suppress(asyncio.CancelledError):
            await ledger.passing(gate)
        await ledger.passing(gate)
        return gate

    @app.workflow(max_attempts=1)
    async def chain(ctx: Context, plan: dict[str, Any]) -> list[int]:
        """Steps 0 … n-1; step ``hold`` waits at a gate after it has done its work."""

        async def work(number: int) -> int:
            ledger.write("step", plan["name"], number, os.getpid())
            if number == plan.get("hold"):
                await ledger.passing(plan["gate"])
            return number

        return [await ctx.step(work, number) for number in range(plan["n"])]

    @app.workflow(max_attempts=1)
    async def poison(ctx: Context, plan: dict[str, Any]) -> str:
        """Takes its process along, until the gate is open."""

        async def prepare() -> None:
            ledger.write("prepare", os.getpid())

        if plan.get("prepare"):
            await ctx.step(prepare)
        ledger.write("poison", ctx.run_id, os.getpid())
        if not ledger.is_open(plan["gate"]):
            os.kill(os.getpid(), signal.SIGKILL)
        return "survived"

    @app.workflow(max_attempts=1)
    async def stroll(ctx: Context, plan: dict[str, Any]) -> str:
        """Steps that take their time; the first of a culprit takes its process along instead."""

        async def pace(number: int) -> None:
            ledger.write("pace", plan["name"], number, os.getpid())
            if plan.get("culprit"):
                os.kill(os.getpid(), signal.SIGKILL)
            await asyncio.sleep(plan["seconds"])

        for number in range(plan["n"]):
            await ctx.step(pace, number)
        return str(plan["name"])

    @app.task(max_attempts=1)
    async def nap(seconds: float) -> None:
        """Blocks the loop for a time."""
        ledger.write("nap", os.getpid())
        time.sleep(seconds)

    return app


async def main(descriptor: int, arguments: dict[str, Any]) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logger = logging.getLogger("worker")
    app = make_app(arguments["url"], Ledger(Path(arguments["ledger"])), Settings(**arguments["settings"]), logger)
    async with app:
        telling = asyncio.create_task(_tell_when_ready(app, descriptor))
        await app.work(**arguments["work"])
        await telling


async def _tell_when_ready(app: Stepfast, descriptor: int) -> None:
    store = await app.store()
    while os.getpid() not in [worker.pid for worker in await store.workers()]:
        await asyncio.sleep(0.01)
    os.write(descriptor, b"ready")
    os.close(descriptor)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), json.loads(sys.argv[2])))
