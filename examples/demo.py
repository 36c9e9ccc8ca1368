"""`make demo`: an order is worked on, its worker is killed in the middle, another worker goes on.

Three processes share one SQLite file in a temporary folder. This one starts a run and watches. The two others are
workers: the first is ended by SIGKILL while it packs the parcel, as a power cut would; the second finds the run after
the lease of the first is over, and goes on where the records end.

    python examples/demo.py
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from stepfast import Context, Run, Settings, Stepfast, StepInfo, step

# A file in the folder where the demo runs, which is a temporary one. The lease is short, so that nobody has to wait
# half a minute until worker 2 is sure that worker 1 is dead.
app = Stepfast("sqlite:///demo.db", settings=Settings(lease=2, sweep_interval=0.25))

SCRIPT = str(Path(__file__).resolve())
PATIENCE = 60.0
"""Seconds after which the demo gives up; it needs about six."""


@dataclass
class Order:
    """What the customer wants."""

    id: str
    item: str
    cents: int


def say(event: str) -> None:
    """Tell the watching process, line by line."""
    print(event, flush=True)


@step
async def reserve_stock(order: Order) -> str:
    """Quick."""
    say(f"call reserve_stock {order.item} is taken off the shelf")
    await asyncio.sleep(0.5)
    return f"shelf-7/{order.item}"


@step
async def charge_card(order: Order) -> str:
    """The step that nobody wants to see twice."""
    say(f"call charge_card {order.cents / 100:.2f} are charged")
    await asyncio.sleep(0.5)
    return f"receipt-{order.id}"


@step
async def pack_parcel(order: Order) -> str:
    """Slow enough to be killed in the middle."""
    say(f"call pack_parcel {order.item} goes into a box")
    await asyncio.sleep(1.5)
    return f"parcel-{order.id}"


@step
async def send_mail(order: Order, parcel: str) -> str:
    """The last one."""
    say(f"call send_mail the customer hears of {parcel}")
    await asyncio.sleep(0.3)
    return "sent"


@app.workflow
async def fulfil(ctx: Context, order: Order) -> str:
    """Ordinary code; each result is recorded before the next line begins."""
    await ctx.step(reserve_stock, order)
    receipt = await ctx.step(charge_card, order)
    parcel = await ctx.step(pack_parcel, order)
    await ctx.step(send_mail, order, parcel)
    return f"{parcel}, paid with {receipt}"


# --- the process that watches -----------------------------------------------------------------------------------


class Watched:
    """A worker process, and how often it called each step."""

    def __init__(self, name: str, colour: str, console: Console) -> None:
        self.name = name
        self.calls: dict[str, int] = {}
        self._colour = colour
        self._console = console
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it; it says what it calls on its standard output."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, SCRIPT, "--worker", stdout=asyncio.subprocess.PIPE
        )
        self._print(f"starts (process {self._process.pid})")

    async def watch(self, until: str = "") -> None:
        """Show what it calls, up to the step named."""
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            _, name, what = line.decode().strip().split(" ", 2)
            self.calls[name] = self.calls.get(name, 0) + 1
            self._print(f"calls [bold]{name}[/]: {what}")
            if name == until:
                return

    async def end(self, number: signal.Signals) -> int | None:
        """Send a signal and wait for the end; its exit code."""
        if self._process is None:
            return None
        if self._process.returncode is None:
            self._process.send_signal(number)
        return await self._process.wait()

    def _print(self, text: str) -> None:
        self._console.print(f"  [{self._colour}]{self.name}[/] {text}", highlight=False)


async def demo(console: Console) -> bool:
    """The story; whether it ended well."""
    order = Order("o-42", "teapot", 4900)
    first, second = Watched("worker 1", "yellow", console), Watched("worker 2", "green", console)
    try:
        async with app:
            run = await app.start(fulfil, order)
            console.print(f"\nStarted run [bold]{run.id}[/] of workflow [bold]fulfil[/]\n", highlight=False)
            await first.start()
            await first.watch(until="pack_parcel")
            await asyncio.sleep(0.3)
            await first.end(signal.SIGKILL)
            console.print("  [bold red]worker 1 is killed (SIGKILL), in the middle of pack_parcel[/]\n")
            await second.start()
            console.print("  [dim]… and waits until the lease of worker 1 is over[/]")
            watching = asyncio.create_task(second.watch())
            result = await run.result(timeout=PATIENCE)
            stopped_well = await second.end(signal.SIGTERM) == 0
            await watching
            console.print(f"\nThe run is completed: [bold]{result}[/]\n", highlight=False)
            return await tell(console, run, first, second) and stopped_well
    finally:
        for worker in (first, second):
            await worker.end(signal.SIGKILL)


async def tell(console: Console, run: Run[str], first: Watched, second: Watched) -> bool:
    """Who called what, beside what is recorded."""
    steps = await run.steps()
    console.print(table(steps, first, second))
    info = await run.info()
    console.print(
        f"\nAttempts of the code: {info.attempt}. A dead worker is a loss, not a failed attempt.\n"
        "The card was charged once. Only the step that was cut short was called again.\n",
        highlight=False,
    )
    finished = ("reserve_stock", "charge_card")
    once = all((first.calls.get(name), second.calls.get(name)) == (1, None) for name in finished)
    return once and len(steps) == 4 and second.calls.get("pack_parcel", 0) >= 1


def table(steps: list[StepInfo], first: Watched, second: Watched) -> Table:
    """One line per step."""
    result = Table(title="What is recorded, and who called it")
    for heading in ("step", "status", "result", first.name, second.name):
        result.add_column(heading)
    for done in steps:
        calls = [str(worker.calls.get(done.name, "-")) for worker in (first, second)]
        result.add_row(done.name, done.status, str(done.output), *calls)
    return result


def main() -> int:
    """Run the story in a folder of its own, which is gone afterwards."""
    if "--worker" in sys.argv:
        asyncio.run(app.work())
        return 0
    console = Console()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="stepfast-demo-") as folder, contextlib.chdir(folder):
        well = asyncio.run(demo(console))
    if not well:
        console.print("[bold red]The demo did not go as it should: see above.[/]")
        return 1
    console.print(f"[dim]{time.monotonic() - began:.1f} s. The code: examples/demo.py[/]", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
