"""Stepfast on Postgres, through the face every user has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, ClassVar

import stepfast
from bench.engines.base import Kind, PostgresEngine
from bench.probe import ITEMS, PAUSE, PROBE, TRICKLE, carry, work
from stepfast import Context, Stepfast, step

if TYPE_CHECKING:
    from stepfast.telemetry import Observer

one = step()(work)
large = step()(carry)


@step
async def stream_out(_: int) -> None:
    """Send many items as fast as they can be sent."""
    out = stepfast.stream("items")
    for number in range(ITEMS):
        out.send(number)


@step
async def trickle_out(_: int) -> None:
    """Send an item now and then: the time at which it was sent."""
    out = stepfast.stream("items")
    for _number in range(TRICKLE):
        await asyncio.sleep(PAUSE)
        out.send(perf_counter_ns())


CALLERS = 500


class StepfastEngine(PostgresEngine):
    """The defaults, except the number of runs in flight."""

    piece: ClassVar[Any] = one
    """The function of each step."""

    kinds: ClassVar[frozenset[Kind]] = frozenset({"noop", "steps", "hold", "stream", "trickle"})
    pace: ClassVar[dict[Kind, int]] = {"noop": 15000, "steps": 5000, "hold": 1000, "stream": 20}
    busy_sql: ClassVar[str] = """
        SELECT 1 WHERE EXISTS (SELECT FROM stepfast.runs WHERE worker IS NOT NULL)
            OR EXISTS (SELECT FROM stepfast.runs WHERE place IS NOT NULL AND losses < 2)
    """
    # The ids of history are older than any that will be made now, as they would be in life.
    seed_sql: ClassVar[str] = """
        CREATE TEMP TABLE made AS
            SELECT (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint - 86400000 + n), 12, '0')
                || '7' || substr(md5(n::text), 1, 3) || '8' || substr(md5(n::text), 4, 15))::uuid AS id
            FROM generate_series(1, {finished}) AS n;
        ALTER TABLE made ADD run_id uuid GENERATED ALWAYS AS (id) STORED;
        INSERT INTO stepfast.runs
            SELECT copy.* FROM (SELECT * FROM stepfast.runs LIMIT 1) AS one, made,
                LATERAL jsonb_populate_record(one::stepfast.runs, to_jsonb(made)) AS copy;
        INSERT INTO stepfast.steps
            SELECT copy.* FROM (SELECT * FROM stepfast.steps LIMIT 5) AS one, made,
                LATERAL jsonb_populate_record(one::stepfast.steps, to_jsonb(made)) AS copy;
        DROP TABLE made;
    """

    def observers(self) -> list[Observer]:
        """Who is told what happens to runs."""
        return []

    async def setup(self) -> None:
        app = Stepfast(self.url)
        await app.migrate()
        await app.close()

    async def open(self) -> None:
        self.app = Stepfast(self.url, observers=self.observers())
        piece = self.piece

        @self.app.task()
        async def noop(sent: int) -> None:
            PROBE.leave(PROBE.enter(sent))

        @self.app.workflow()
        async def steps(ctx: Context, sent: int) -> int:
            entered = PROBE.enter(sent)
            value = 0
            for i in range(PROBE.steps):
                if PROBE.payload is None:
                    value = await ctx.step(piece, i)
                else:
                    await ctx.step(large, PROBE.payload)
            PROBE.leave(entered)
            return value

        @self.app.workflow()
        async def hold(ctx: Context, sent: int) -> None:
            await ctx.step(one, 0)
            entered = PROBE.enter(sent)
            await PROBE.release.wait()
            PROBE.leave(entered)

        @self.app.workflow()
        async def stream(ctx: Context, sent: int) -> None:
            entered = PROBE.enter(sent)
            await ctx.step(stream_out, 0)
            PROBE.leave(entered)

        @self.app.workflow()
        async def trickle(ctx: Context, sent: int) -> None:
            await ctx.step(trickle_out, 0)

        self._flows: dict[Kind, Any] = {
            "noop": noop, "steps": steps, "hold": hold, "stream": stream, "trickle": trickle,
        }  # fmt: skip

    async def start(self, kind: Kind, sent: int) -> object:
        return await self.app.start(self._flows[kind], sent)

    async def start_many(self, kind: Kind, count: int) -> None:
        await self.app.start_many(self._flows[kind], [0] * count)

    async def start_later(self, kind: Kind, count: int, delay: float) -> None:
        for begin in range(0, count, CALLERS):
            size = min(CALLERS, count - begin)
            await asyncio.gather(*(self.app.start(self._flows[kind], 0, delay=delay) for _ in range(size)))

    async def finish(self, handle: Any) -> None:
        await handle.result()

    async def follow(self, handle: Any) -> AsyncIterator[int]:
        async for item in handle.stream("items"):
            yield item.value

    async def all_ended(self) -> bool:
        """Whether every run is recorded as ended, asked through the face: tables may differ between versions."""
        for status in ("queued", "running"):
            if await self.app.runs(status=status, limit=1):
                return False
        return True

    def worker(self, concurrency: int) -> AbstractAsyncContextManager[Any]:
        worker: AbstractAsyncContextManager[Any] = self.app.worker(concurrency=concurrency)
        return worker

    async def close(self) -> None:
        await self.app.close()
        await self.close_side()
