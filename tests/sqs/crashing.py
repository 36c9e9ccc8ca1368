"""Programs that are killed: `python -m tests.sqs.crashing WHAT …`, with an account's address in the arguments.

``engine`` works off an application's runs; at the place named by its last argument it kills itself, for good.
``worker`` serves the group ``echo`` and kills itself in the handler of ``deadly``.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from stepfast import Context, Stepfast
from stepfast.remote import RemoteWorker, SqsTransport
from tests.sqs.conftest import QUICK
from tests.support.sqs import REGION


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Mortal(SqsTransport):
    """Dies at a place."""

    place = ""

    async def dispatch(self, tasks: Any, connection: Any = None) -> float | None:
        if self.place == "before sending":
            die()
        kept = await super().dispatch(tasks, connection)
        if self.place == "after sending":
            die()
        return kept

    async def results(self, step_ids: Any, connection: Any = None) -> Any:
        found = await super().results(step_ids, connection)
        if found and self.place == "before recording":
            die()
        return found

    async def remove(self, results: Any, connection: Any = None) -> None:
        if results and self.place == "before deleting":
            die()
        await super().remove(results, connection)

    def copy(self, create: bool | None = None, settings: Any = None) -> Mortal:
        other = Mortal(self.where.region, self.where.endpoint_url, self.where.prefix, settings=settings)
        other.place = self.place
        return other


async def engine(store: str, endpoint: str, prefix: str, place: str) -> None:
    transport = Mortal(REGION, endpoint, prefix)
    transport.place = place
    app = Stepfast(store, transport=transport, settings=QUICK)

    @app.workflow
    async def shop(ctx: Context, count: int) -> list[Any]:
        return await ctx.gather(*(ctx.remote("echo", n) for n in range(count)))

    async with app, app.worker():
        await asyncio.Event().wait()


async def worker(endpoint: str, prefix: str) -> None:
    url = f"sqs://{REGION}?endpoint_url={endpoint}"
    async with RemoteWorker(url, "echo", prefix, lease=2) as serving:

        @serving.handle("echo")
        async def echo(input: Any) -> None:
            die()

        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(engine(*sys.argv[2:]) if sys.argv[1] == "engine" else worker(*sys.argv[2:]))
