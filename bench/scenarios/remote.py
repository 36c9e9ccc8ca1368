"""Remote steps: how many rows one worker elsewhere serves in a second, ours beside the published one for Node; and how
many steps a workflow gets done that way, from the call to its outcome.

Both workers have one process, the same rows, and claim ten at a time; handlers do nothing, so that it does not matter
that the other one calls them one after the other.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter

import asyncpg

from bench.option_names import options_of
from bench.scenarios.base import Figure, Figures, Scenario
from bench.subject import Subject
from bench.waiting import until
from stepfast import Context, Stepfast
from stepfast.remote import RemoteWorker, SqlTransport, Task

NODE = "node_worker"
GROUP = "noop"
BATCH = 10
POLL = 0.02
FIRST = 100
"""With so many results the clock begins: the process has come up."""


async def measure(subject: Subject) -> Figures:
    url, count = subject.urls[0], 2_000 if subject.quick else 6_000
    async with SqlTransport(url) as transport:
        for begin in range(0, count, 1000):
            await transport.dispatch(
                [Task(f"run:{n}", "run", n, GROUP, GROUP, "1") for n in range(begin, begin + 1000)]
            )
    await _execute(url, "VACUUM ANALYZE")
    figures = {"served": await _served(subject.engine, url, count)}
    if subject.engine == "stepfast":
        await _execute(url, "TRUNCATE durable_transport_results")
        async with _process(subject.engine, url):
            figures |= await _end_to_end(url, 20 if subject.quick else 100)
    return figures


async def _served(engine: str, url: str, count: int) -> float:
    """Rows per second, from the first result until the last one."""
    connection = await asyncpg.connect(url)

    async def reached(wanted: int) -> bool:
        return int(await connection.fetchval("SELECT count(*) FROM durable_transport_results")) >= wanted

    try:
        async with _process(engine, url):
            await until(lambda: reached(FIRST), "the first results")
            begin = perf_counter()
            await until(lambda: reached(count), "the last result")
            return (count - FIRST) / (perf_counter() - begin)
    finally:
        await connection.close()


async def _end_to_end(url: str, size: int) -> Figures:
    """Steps per second: of runs that ask for a hundred at once, and of one run that asks for one after the other."""
    app = Stepfast(url)

    @app.workflow
    async def wide(ctx: Context, width: int) -> int:
        return len(await ctx.gather(*(ctx.remote(GROUP, number) for number in range(width))))

    @app.workflow
    async def chain(ctx: Context, length: int) -> int:
        return sum([1 for number in range(length) if await ctx.remote(GROUP, number) is None])

    async with app, app.worker(concurrency=100):
        await (await app.start(wide, 10)).result(timeout=60)
        begin = perf_counter()
        runs = await app.start_many(wide, [100] * size)
        await asyncio.gather(*(run.result(timeout=600) for run in runs))
        rate = 100 * size / (perf_counter() - begin)
        begin = perf_counter()
        await (await app.start(chain, size)).result(timeout=600)
        return {"steps": rate, "alone": (perf_counter() - begin) / size * 1000}


@asynccontextmanager
async def _process(engine: str, url: str) -> AsyncIterator[None]:
    """A worker elsewhere, as long as the block lasts."""
    if engine == NODE:
        from tests.interop.packages import node, node_folder

        command, folder = [node(), "noop.mjs", url, GROUP, str(BATCH), str(POLL)], node_folder()
    else:
        command, folder = [sys.executable, "-m", __name__, url], None
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, cwd=folder, stdin=quiet, stdout=quiet)
    try:
        yield
    finally:
        process.kill()
        await process.wait()


async def _execute(url: str, sql: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


async def _serve(url: str) -> None:
    options = options_of(RemoteWorker, batch=BATCH, concurrency=BATCH, poll_interval=POLL)
    worker = RemoteWorker(url, GROUP, **options)

    @worker.handle(GROUP)
    async def noop(input: object) -> None:
        return None

    await worker.run()


SCENARIO = Scenario(
    name="remote",
    title="remote steps through one worker elsewhere, ten claimed at a time, looked for every 20 ms",
    figures={
        "served": Figure("rows served by the worker alone"),
        "steps": Figure("steps of workflows, 100 of a run at once"),
        "alone": Figure("one after the other, each", "ms", more_is_better=False),
    },
    engines=("stepfast", NODE),
    measure=measure,
    in_quick=False,
)

if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
