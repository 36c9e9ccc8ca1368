"""A busy customer, a quiet one, and a provider that takes only so many calls: limits of a queue.

Two customers import photos through one queue. One of them comes with forty at once, the other with two, a moment later.
The provider that scales the photos takes twenty calls in half a second, and no customer gets more than two at a time.
These limits hold over all worker processes, because they are kept in the database; an operator can change them while
everything runs.

    python examples/fair_shares.py
    STEPFAST_URL=postgresql://… python examples/fair_shares.py
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter

from stepfast import QueueFull, Rate, Stepfast

app = Stepfast(os.environ.get("STEPFAST_URL", "sqlite://"))
app.queue("photos", rate=Rate(20, per=0.5), key_concurrency=2, max_ready=100)

at_work: Counter[str] = Counter()
most: Counter[str] = Counter()
done: list[str] = []


@app.task(queue="photos")
async def scale(photo: str) -> None:
    """Counts how many photos of a customer are being scaled."""
    customer = photo.partition("/")[0]
    at_work[customer] += 1
    most[customer] = max(most[customer], at_work[customer])
    await asyncio.sleep(0.01)
    at_work[customer] -= 1
    done.append(customer)


async def main() -> None:
    """The busy one comes first, and the quiet one does not wait for it."""
    async with app:
        busy = await app.start_many(scale, [f"busy/{n}.jpg" for n in range(40)], concurrency_key="busy")
        quiet = await app.start_many(scale, [f"quiet/{n}.jpg" for n in range(2)], concurrency_key="quiet")
        try:
            await app.start_many(scale, [f"eager/{n}.jpg" for n in range(100)], concurrency_key="eager")
        except QueueFull as full:
            print(f"100 more are refused: {full.ready} are ready, {full.most} may be")
        async with app.worker():
            for run in quiet:
                await run.result(timeout=30)
            print(f"the quiet customer is done when the busy one has {done.count('busy')} of 40")
            await app.set_limits("photos", rate=None, key_concurrency=10)
            print("an operator lifts the limits")
            for run in busy:
                await run.result(timeout=30)
        print(f"{len(done)} photos; at most {most['quiet']} at once for the quiet customer")


if __name__ == "__main__":
    asyncio.run(main())
