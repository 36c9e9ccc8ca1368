"""A run that starts runs: children have their own retries, their own records and their own place in the queue.

A newsletter is cut into batches, one child each; the parent waits for all of them. The worker has a single slot, and
that is enough: whoever waits holds none. One batch cannot be sent; its failure reaches the parent by name.

    python examples/fan_out.py
    STEPFAST_URL=postgresql://… python examples/fan_out.py
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass

from stepfast import ChildFailed, Context, NonRetryableError, Settings, Stepfast

app = Stepfast(os.environ.get("STEPFAST_URL", "sqlite://"), settings=Settings(inline_wait=0))

SIZE = 25


@dataclass
class Batch:
    """The input of a child."""

    number: int
    readers: list[str]


@dataclass
class Issue:
    """The input of the parent."""

    title: str
    readers: list[str]


async def deliver(readers: list[str]) -> int:
    """To all of them at once."""
    if "nobody@nowhere" in readers:
        raise NonRetryableError("nobody@nowhere is no address")
    await asyncio.sleep(0.01)
    return len(readers)


@app.workflow
async def send_batch(ctx: Context, batch: Batch) -> int:
    """A child is a workflow like any other; it may also be started by itself."""
    return await ctx.step(deliver, batch.readers)


@app.task
async def file_report(lines: list[str]) -> str:
    """A plain task can be a child too."""
    return "; ".join(lines)


@app.workflow
async def send_issue(ctx: Context, issue: Issue) -> str:
    """Start them all, then wait for them all. A child is started exactly once, whatever crashes in between."""
    parts = [issue.readers[start : start + SIZE] for start in range(0, len(issue.readers), SIZE)]
    children = [
        await ctx.start(send_batch, Batch(number, part), tags=[issue.title]) for number, part in enumerate(parts)
    ]
    ends = await ctx.gather(*(child.result() for child in children), return_errors=True)
    lines = [f"{sum(end for end in ends if isinstance(end, int))} sent"]
    for error in ends:
        if isinstance(error, ChildFailed):
            await ctx.set("to look at", error.run_id)
            lines.append(f"{error.workflow} failed: {error.message}")
    return await ctx.call(file_report, lines)


async def main() -> None:
    """One slot for a parent and its children."""
    readers = [f"reader-{n}@example.org" for n in range(200)]
    readers[30] = "nobody@nowhere"
    async with app, app.worker(concurrency=1):
        run = await app.start(send_issue, Issue("spring", readers))
        print(await run.result(timeout=60))
        children = await app.runs(tag="spring")
        print(len(children), "children, all of this parent:", {child.parent for child in children} == {run.id})
        failed = app.get(await run.get("to look at"))
        print("the one to look at:", (await failed.info()).status)


if __name__ == "__main__":
    asyncio.run(main())
