"""A worker that is watched: probes, metrics, an observer of one's own, and statistics.

The worker serves a port that Kubernetes and Prometheus would ask; here the example asks it itself. One of three parcels
cannot be sent, which the observer tells of at once, and the statistics afterwards.

    python examples/watched.py
"""

from __future__ import annotations

import asyncio
import os
import urllib.error
import urllib.request

from stepfast import Backoff, Context, Stepfast
from stepfast.telemetry import HealthPort, Metrics, Observer, RunEnded, StepEnded


class Bell(Observer):
    """Rings when something goes wrong. It is called in the midst of the work, so it only prints."""

    def step_ended(self, event: StepEnded) -> None:
        """Each call of a step's function, failed ones too; never one that is only replayed."""
        if event.outcome == "failed":
            print(f"  bell: try {event.number} of {event.step} failed with {event.error_type}", flush=True)

    def ended(self, event: RunEnded) -> None:
        """The end of a run, once it is committed."""
        if event.status == "failed":
            print(f"  bell: a run of {event.workflow} failed for good", flush=True)


app = Stepfast(os.environ.get("STEPFAST_URL", "sqlite://"), observers=[Metrics(), Bell()])


async def weigh(parcel: str) -> int:
    """How heavy it is."""
    return len(parcel)


async def hand_over(parcel: str) -> str:
    """Give it to a courier, if there is one."""
    if parcel == "piano":
        raise ConnectionError("no courier answers")
    return f"{parcel} is on its way"


@app.workflow(max_attempts=1)
async def send(ctx: Context, parcel: str) -> str:
    """Two steps, of which the second may fail."""
    await ctx.step(weigh, parcel)
    return await ctx.options(retries=1, backoff=Backoff(base=0)).step(hand_over, parcel)


def ask(port: int, path: str) -> tuple[int, str]:
    """What a probe does."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def main() -> None:
    """Three parcels, while somebody watches."""
    async with app, HealthPort(app, 0) as health:
        print("ready before there is a worker:", (await asyncio.to_thread(ask, health.port, "/readyz"))[0])
        async with app.worker():
            print("ready with one:", (await asyncio.to_thread(ask, health.port, "/readyz"))[0])
            runs = await app.start_many(send, ["book", "lamp", "piano"])
            await asyncio.gather(*(run.result(timeout=30) for run in runs), return_exceptions=True)
            _, text = await asyncio.to_thread(ask, health.port, "/metrics")
        for line in text.splitlines():
            if line.startswith(("stepfast_runs_ended_total", "stepfast_step_tries_failed_total")):
                print(line)
        stats = await app.stats()
        for failure in stats.failures:
            print(f"{failure.count} run failed at {failure.step}: {failure.error_type}")


if __name__ == "__main__":
    asyncio.run(main())
