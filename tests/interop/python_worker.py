"""A worker of the published package for Python: `python python_worker.py URL GROUP`, until it is ended."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from durable_worker import FatalError, Worker  # type: ignore[import-not-found]
from durable_worker.db_runner import run_db_worker  # type: ignore[import-not-found]


async def main(url: str, group: str) -> None:
    worker = Worker()

    @worker.step("who")  # type: ignore[untyped-decorator]
    async def who(data: Any) -> str:
        return "python"

    @worker.step("echo")  # type: ignore[untyped-decorator]
    async def echo(data: Any) -> Any:
        return data

    @worker.step("rain")  # type: ignore[untyped-decorator]
    async def rain(data: Any) -> None:
        raise ValueError("it rains")

    @worker.step("fatal")  # type: ignore[untyped-decorator]
    async def fatal(data: Any) -> None:
        raise FatalError("card declined", "declined")

    showers = iter(range(2))

    @worker.step("shower")  # type: ignore[untyped-decorator]
    async def shower(data: Any) -> Any:
        if next(showers, None) is not None:
            raise ValueError("a shower")
        return data

    @worker.step("hold")  # type: ignore[untyped-decorator]
    async def hold(data: Any) -> None:
        await asyncio.Event().wait()

    print("ready", flush=True)
    await run_db_worker(worker, group=group, dsn=url, dialect="postgres", poll_ms=20, batch_size=3)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
