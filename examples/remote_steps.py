"""A step that a worker elsewhere does: in another process, in another language, with what this one does not have.

On Postgres the two sides meet in two tables, and the worker is a `RemoteWorker`, or one in Node or PHP. Without a
server that both can reach there is a transport of one's own: whatever can carry a task there and a result back will do.
Here it is a dictionary, and the other side a function.

    python examples/remote_steps.py
    STEPFAST_URL=postgresql://… python examples/remote_steps.py
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Sequence
from typing import Any, TypedDict

from stepfast import Context, RemoteStepError, Settings, Stepfast
from stepfast.remote import FatalError, RemoteWorker, Result, Task


class Page(TypedDict):
    """What the other side gives back."""

    text: str


def extract(input: dict[str, str]) -> Page:
    """What the other side does."""
    if not input["url"]:
        raise FatalError("there is no address", code="no_address")
    return {"text": f"all of {input['url']}"}


class Postbox:
    """A transport: it keeps tasks until they are done, and results until they were recorded. Calls may come twice."""

    prefix = "postbox"

    def __init__(self) -> None:
        self.tasks: dict[str, Task] = {}
        self.done: dict[str, Result] = {}

    async def open(self) -> None:
        """Nothing has to be connected."""

    async def close(self) -> None:
        """Nor disconnected."""

    async def dispatch(self, tasks: Sequence[Task], connection: Any = None) -> None:
        """Send tasks out; in a moment somebody has done them."""
        self.tasks |= {task.step_id: task for task in tasks if task.step_id not in self.done}
        asyncio.get_running_loop().call_later(0.05, self.serve)

    def serve(self) -> None:
        """The other side."""
        while self.tasks:
            step_id, task = self.tasks.popitem()
            try:
                output, status, error = json.dumps(extract(json.loads(task.input or "null"))), "completed", None
            except FatalError as fatal:
                output, status = None, "failed"
                error = json.dumps({"message": str(fatal), "code": fatal.code, "retryable": False})
            self.done[step_id] = Result(step_id, task.run_id, task.seq, status, output, error, None)

    async def results(self, step_ids: Sequence[str], connection: Any = None) -> list[Result]:
        """What has come of these so far."""
        return [self.done[step_id] for step_id in step_ids if step_id in self.done]

    async def remove(self, results: Sequence[Result], connection: Any = None) -> None:
        """They were recorded."""
        for result in results:
            self.done.pop(result.step_id, None)

    async def cancel(self, step_ids: Sequence[str], connection: Any = None) -> list[str]:
        """Take back what nobody has begun."""
        return [step_id for step_id in step_ids if self.tasks.pop(step_id, None) is not None]

    async def unclaimed(self, step_ids: Sequence[str]) -> list[str]:
        """What nobody has begun."""
        return [step_id for step_id in step_ids if step_id in self.tasks]

    async def lost(self, step_ids: Sequence[str]) -> list[str]:
        """What is neither waiting nor done: it is sent again."""
        return [step_id for step_id in step_ids if step_id not in self.tasks and step_id not in self.done]

    async def leftovers(self, after: str, limit: int) -> list[str]:
        """What has lain here for long: nothing does."""
        return []


POSTGRES = os.environ.get("STEPFAST_URL", "")
app = Stepfast(POSTGRES or "sqlite://", transport=None if POSTGRES else Postbox(), settings=Settings(poll_interval=0.1))


@app.workflow
async def summary(ctx: Context, url: str) -> str:
    """The engine's side: a step like others. No worker is held while it is out."""
    try:
        page = await ctx.remote("pipeline.extract", {"url": url}, type=Page, retries=3)
    except RemoteStepError as error:
        return f"nothing, because {error.message} ({error.code})"
    return page["text"].upper()


def other_side() -> contextlib.AbstractAsyncContextManager[Any]:
    """On Postgres: a worker that needs the database and nothing else. It could be on another machine."""
    if not POSTGRES:
        return contextlib.nullcontext()
    worker = RemoteWorker(POSTGRES, group="pipeline.extract", poll_interval=0.05)
    worker.handle("pipeline.extract")(extract)
    return worker


async def main() -> None:
    """Start two runs, and wait for both."""
    async with app, app.worker(), other_side():
        runs = await app.start_many(summary, ["a page", ""])
        for run in runs:
            (step,) = await run.steps() if await run.result(timeout=60) else []
            print(f"{step.name}: {step.status} | {await run.result()}")


if __name__ == "__main__":
    asyncio.run(main())
