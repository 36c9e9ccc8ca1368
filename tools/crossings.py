"""Count the modules in which a function ran, between the start and the result of a run, a signal and a remote step.

python tools/crossings.py [--list]

Caller and worker share this process, on a private Postgres. A remote step is served by a process of its own, because
a worker in any language may serve it: the modules of the engine's side are counted. The package is the one that Python
finds, so an earlier commit is counted with PYTHONPATH on the src of its checkout.

Each of the three is repeated, and a module counts if it took part in more than half of the takes: work that a service
of the worker happens to do at that time is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from argparse import ArgumentParser
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from stepfast import Context, Stepfast, step  # noqa: E402
from tests.support.postgres import PrivatePostgres  # noqa: E402

PACKAGE = "stepfast"
TAKES = 5
LONGEST = 30.0
"""Seconds for one take."""
GROUP = "crossings"

REMOTE_WORKER = """
import asyncio, sys
from stepfast.remote import RemoteWorker

async def main():
    worker = RemoteWorker(sys.argv[1], sys.argv[2])
    worker.handle(sys.argv[2])(lambda number: number)
    await worker.run()

asyncio.run(main())
"""


class Recorder:
    """Notes the modules of a package in which functions run, in this thread and in those that begin later."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._modules: dict[str, None] | None = None

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Have every call of a function reported while the block lasts, also when a coroutine is resumed."""
        earlier = threading.getprofile(), sys.getprofile()
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(earlier[1])
            threading.setprofile(earlier[0])

    @contextlib.contextmanager
    def recording(self) -> Iterator[dict[str, None]]:
        """Fill a dictionary, in the order of first use, while the block lasts."""
        self._modules = modules = dict[str, None]()
        try:
            yield modules
        finally:
            self._modules = None

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        modules = self._modules
        if modules is None or event != "call" or frame.f_code.co_name == "<module>":
            return
        module = frame.f_globals.get("__name__") or ""
        if module not in modules and module.partition(".")[0] == self._package:
            modules[module] = None


def usual(takes: list[dict[str, None]]) -> list[str]:
    """Return the modules of more than half of the takes, in the order of the first take that has each."""
    counts = Counter(module for take in takes for module in take)
    ordered = dict.fromkeys(module for take in takes for module in take)
    return [module for module in ordered if 2 * counts[module] > len(takes)]


class Subject:
    """The three workflows, on an application with a worker in this process."""

    def __init__(self, url: str, recorder: Recorder) -> None:
        self.app = Stepfast(url)
        self._recorder = recorder
        self._remote = dict[str, None]()
        self._returned = asyncio.Event()

        @step
        async def add(number: int) -> int:
            return number + 1

        @self.app.workflow
        async def one_step(ctx: Context, number: int) -> int:
            return await ctx.step(add, number)

        @self.app.workflow
        async def signalled(ctx: Context) -> None:
            await ctx.wait_signal("go")

        @self.app.workflow
        async def remote(ctx: Context) -> None:
            with self._recorder.recording() as self._remote:
                await ctx.remote(GROUP, 1)
            self._returned.set()

        self._one_step, self._signalled, self._remote_step = one_step, signalled, remote

    async def run(self) -> dict[str, None]:
        """From the start of a run of one step to its result."""
        with self._recorder.recording() as modules:
            await (await self.app.start(self._one_step, 1)).result(timeout=LONGEST)
        return modules

    async def signal(self) -> dict[str, None]:
        """From a signal to the result of its run, which had given its slot back."""
        run = await self.app.start(self._signalled)
        while await run.status() != "waiting":
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.3)
        with self._recorder.recording() as modules:
            await run.signal("go")
            await run.result(timeout=LONGEST)
        return modules

    async def remote_step(self) -> dict[str, None]:
        """From the call of a remote step in its workflow until the call returns."""
        self._returned.clear()
        run = await self.app.start(self._remote_step)
        async with asyncio.timeout(LONGEST):
            await self._returned.wait()
        await run.result(timeout=LONGEST)
        return self._remote


async def count(url: str, recorder: Recorder) -> dict[str, list[str]]:
    """Return the modules of each of the three."""
    subject = Subject(url, recorder)
    figures = dict[str, list[str]]()
    async with subject.app, subject.app.worker(), remote_worker(url):
        for title, take in (
            ("a run of one step", subject.run),
            ("a signal that wakes a waiting run", subject.signal),
            ("a remote step", subject.remote_step),
        ):
            await take()
            await asyncio.sleep(0.5)
            figures[title] = usual([await take() for _ in range(TAKES)])
    return figures


@contextlib.asynccontextmanager
async def remote_worker(url: str) -> AsyncIterator[None]:
    """A process that serves the remote steps while the block lasts."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", REMOTE_WORKER, url, GROUP)
    try:
        yield
    finally:
        process.kill()
        await process.wait()


def main() -> None:
    """Count, and print."""
    parser = ArgumentParser(description="Count the modules that take part in a run, a signal and a remote step.")
    parser.add_argument("--list", action="store_true", help="name the modules, in the order of first use")
    options = parser.parse_args()
    with PrivatePostgres() as server:
        recorder = Recorder(PACKAGE)
        with recorder.installed():
            figures = asyncio.run(count(server.create_database("crossings"), recorder))
    for title, modules in figures.items():
        print(f"{title}: {len(modules)} modules")
        for module in modules if options.list else []:
            print(f"  {module}")


if __name__ == "__main__":
    main()
