"""A storm over remote steps: workers of the application are killed, and so are those who serve its steps, ours and
those of others; replies are lost, and databases restarted.

Where the tables of the transport are is one of three: beside the application's own on Postgres, or on a MariaDB, with
the application on Postgres or on SQLite.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from stepfast import InvalidState, Stepfast
from stepfast.remote import SqlTransport
from stepfast.settings import Settings
from tests.faults import remote_workload
from tests.faults.bystanders import TROUBLE, wish
from tests.faults.remote_workload import GROUP, MIX, SERVED
from tests.faults.storm import SETTLE, TOTALS, UNFINISHED, Process, Storm, every, meanwhile
from tests.faults.storms import cut, lose_replies, stall
from tests.interop.packages import node, node_folder, python_folder
from tests.judge.remote import RemoteRow, RemoteScene, Served, check, tell
from tests.remote.tables import Tables
from tests.support.proxy import Proxy

LEASE = 2.0
OURS, NODE, PYTHON = "stepfast", "node", "python"

_ENDED = "status IN ('failed', 'cancelled') AND dag_id IS NULL"


class RemoteStorm(Storm):
    """A storm over runs with remote steps. ``transport`` names another database that these go over."""

    programs = "tests.faults.remote_workload"
    enough, most_open, at_once = 10, 60, 6

    def __init__(
        self,
        url: str,
        folder: Path,
        *,
        transport: str | None = None,
        through: str | None = None,
        transport_through: str | None = None,
        lease: float = LEASE,
        **options: Any,
    ) -> None:
        self.transport = transport
        self._carried_through = transport_through or transport
        self.tables_url = transport or url
        self.served_through = self._carried_through or through or url
        """The URL that workers elsewhere use."""
        options.setdefault("backoff_base", 0.05)
        super().__init__(url, folder, through=through, lease=lease, **options)
        self.lease = lease
        self.servers: dict[Process, str] = {}
        """Workers elsewhere, and who made them."""

    def make_app(self, url: str) -> Stepfast:
        carrier = self.transport if url == self.url else self._carried_through
        return remote_workload.make_app(url, carrier, Settings(**self.settings))

    async def __aenter__(self) -> RemoteStorm:
        await super().__aenter__()
        async with SqlTransport(self.tables_url):
            pass  # workers of others may not make the tables at the same time
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self.servers:
            process.kill()
        await super().__aexit__(*_)

    # -- processes -------------------------------------------------------------------------------------------------

    def launch(self, program: str = "work", **arguments: Any) -> Process:
        return super().launch(program, transport=self._carried_through, **arguments)

    def serve(self, maker: str) -> Process:
        """Start a worker elsewhere, ready or not."""
        self._processes += 1
        log = self.ledger.folder / f"log-{self._processes}"
        given = [self.served_through, GROUP, str(self.ledger.folder), str(self.lease)]
        if maker == NODE:
            process = Process([node(), "storm.mjs", *given], log, node_folder())
        elif maker == PYTHON:
            paths = {"PYTHONPATH": str(python_folder())}
            process = Process([sys.executable, "-m", "tests.faults.their_worker", *given], log, environment=paths)
        else:
            process = super().launch("serve", transport=self.served_through, lease=self.lease)
            self._starters.remove(process)
        self.servers[process] = maker
        return process

    async def ready(self, processes: list[Process]) -> None:
        """Wait until these are at work."""
        async with asyncio.timeout(60):
            while not {process.pid for process in processes} <= {line["pid"] for line in self.ledger.read("ready")}:
                for process in processes:
                    assert process.alive, f"a process did not come up:\n{process.log}"
                await asyncio.sleep(0.02)

    async def gather(self, makers: Sequence[str], workers: int = 2) -> None:
        """Two workers of the application, and one elsewhere of each maker."""
        await self.ready([*(self.launch() for _ in range(workers)), *map(self.serve, makers)])

    def kill_worker(self) -> None:
        """One of the application's."""
        self.kill(random.choice(self.workers))
        self.launch()

    def kill_server(self, maker: str | None = None) -> None:
        """One of those elsewhere."""
        victims = [process for process, made_by in self.servers.items() if maker in (None, made_by)]
        process = random.choice(victims)
        made_by = self.servers.pop(process)
        process.kill()
        TOTALS[f"kills of {made_by}"] += 1
        if made_by == OURS:
            self._gone.append(process)
        self.serve(made_by)

    async def supervise(self) -> None:
        """Those of others end when their database is away. Ours must not."""
        while True:
            for process, maker in list(self.servers.items()):
                if maker != OURS and not process.alive:
                    del self.servers[process]
                    process.kill()
                    self.serve(maker)
            await asyncio.sleep(0.1)

    # -- runs ------------------------------------------------------------------------------------------------------

    async def start_one(self) -> Any:
        [workflow] = random.choices(list(MIX), list(MIX.values()))
        with contextlib.suppress(*TROUBLE):
            run = await self.app.start(workflow, self.pause)
            self.acknowledge(run, workflow)

    def bystanders(self) -> list[Awaitable[None]]:
        return [self._meddle(), self._retry(), self.supervise()]

    async def _meddle(self) -> None:
        """Operators cancel some runs, hold others and let them go."""
        while True:
            for run_id in await self._some_unfinished():
                what = random.choices(("cancel", "pause", "resume"), (1, 3, 3))[0]
                await wish(self.app, self.ledger, run_id, what)
                if what == "pause" and random.random() < 0.7:
                    await asyncio.sleep(random.random() * 0.2)
                    await wish(self.app, self.ledger, run_id, "resume")
            await asyncio.sleep(random.random() * 0.8)

    async def _retry(self) -> None:
        """One who lets runs go on that have ended otherwise than they were meant to."""
        while True:
            await asyncio.sleep(random.random())
            with contextlib.suppress(*TROUBLE, InvalidState):
                for (run_id,) in await self.database.fetch(
                    f"SELECT id FROM [runs] WHERE {_ENDED} ORDER BY random() LIMIT 1"
                ):
                    self._watched.discard(str(run_id))
                    await wish(self.app, self.ledger, str(run_id), "retry")

    async def _some_unfinished(self) -> list[str]:
        some = f"SELECT id FROM [runs] WHERE dag_id IS NULL AND {UNFINISHED} ORDER BY random() LIMIT 3"
        with contextlib.suppress(*TROUBLE):
            return [str(run_id) for (run_id,) in await self.database.fetch(some)]
        return []

    async def _let_go(self) -> None:
        """Nobody is held any more, and every group is served."""
        async with meanwhile(self.supervise()):
            while True:
                held = "SELECT id FROM [runs] WHERE dag_id IS NULL AND (status = 'paused' OR asked = 'pause')"
                for (run_id,) in await self.database.fetch(held):
                    await wish(self.app, self.ledger, str(run_id), "resume")
                await asyncio.sleep(0.1)

    # -- the verdict -------------------------------------------------------------------------------------------------

    async def scene(self) -> RemoteScene:
        """Everything there is to know."""
        rows = await self.database.fetch("SELECT run_id, seq, state, attempt, resent, due_at FROM [remote_steps]")
        records = await self.database.fetch(
            "SELECT run_id, branch, position, status, output, error, undo FROM [steps] WHERE kind = 'remote'"
        )
        dags = await self.database.fetch("SELECT id, dag_id FROM [runs] WHERE dag_id IS NOT NULL")
        return RemoteScene(
            await self.evidence(),
            [Served(**line) for line in self.ledger.read(SERVED)],
            [RemoteRow(str(row[0]), *row[1:]) for row in rows],
            {(str(row[0]), row[1], row[2]): (row[3], row[4], row[5]) for row in records},
            {(str(row[0]), row[1], row[2]) for row in records if row[6] is not None},
            {str(row_id): str(dag_id) for row_id, dag_id in dags},
            await self.left(),
        )

    async def left(self) -> list[str]:
        """Steps of which something is in the transport's tables."""
        tables = await Tables(self.tables_url).open()
        try:
            return sorted({*await tables.tasks(), *await tables.results()})
        finally:
            await tables.close()

    async def until_tidy(self) -> None:
        """Wait until nothing is left; what is, the rules will tell. A worker that was killed in the midst of a step
        holds its task for a lease, and what comes of it when nobody waits is looked for after another."""
        end = time.monotonic() + max(8 * self.lease + 2, 30)
        open_ = "SELECT count(*) FROM [remote_steps] WHERE due_at IS NOT NULL"
        while time.monotonic() < end:
            if not await self.left() and not (await self.database.fetch(open_))[0][0]:
                return
            await asyncio.sleep(0.1)

    async def judge(self, *, runs: int = 1, patience: float = SETTLE) -> RemoteScene:
        """Settle, check, tell the story if there is one."""
        await self.settle(patience)
        await self.until_tidy()
        scene = await self.scene()
        self.judge_by(check(scene), scene.count(), lambda found: tell(scene, found))
        assert len(scene.evidence.runs) >= runs, f"a storm over {len(scene.evidence.runs)} runs is none"
        ours = [process for process, maker in self.servers.items() if maker == OURS]
        assert all(process.alive for process in ours), "a remote worker ended by itself"
        return scene


async def kills(
    url: str, folder: Path, seconds: float, makers: Sequence[str], transport: str | None = None, **options: Any
) -> RemoteScene:
    """SIGKILL of everybody in turn."""
    pace = options.pop("pace", 1.0)
    async with RemoteStorm(url, folder, transport=transport, **options) as storm:
        await storm.gather(makers)
        faults = (every(pace * 1.5, storm.kill_worker), every(pace, storm.kill_server))
        async with meanwhile(*faults, *storm.bystanders()):
            await storm.keep_starting(seconds)
        return await storm.judge(runs=storm.enough)


async def a_kill_each(url: str, folder: Path) -> RemoteScene:
    """The shortest: the worker of the application and the one elsewhere die in the midst of their work, once."""
    async with RemoteStorm(url, folder, lease=0.5) as storm:
        await storm.gather((OURS,), workers=1)
        await storm.start(12)
        async with asyncio.timeout(30):
            while len(storm.ledger.read(SERVED)) < 5:
                await asyncio.sleep(0.005)
        storm.kill(storm.workers[0])
        storm.kill_server()
        async with storm.app.worker():
            return await storm.judge(runs=12)


async def bad_network(
    url: str, folder: Path, seconds: float, makers: Sequence[str], transport: str | None = None
) -> RemoteScene:
    """Connections are reset, nothing moves for a while, and replies are lost after the work was done; of another
    database than Postgres only the first two."""
    async with contextlib.AsyncExitStack() as stack:
        through = transport_through = None
        faults: list[Awaitable[None]] = []
        if not url.startswith("sqlite"):
            proxy = await stack.enter_async_context(_proxy(url))
            through = proxy.url(url)
            faults += [lose_replies(proxy), every(1.5, lambda: cut(proxy)), every(3, lambda: stall(proxy, 1))]
        if transport is not None:
            other = await stack.enter_async_context(_proxy(transport, "raw"))
            transport_through = other.url(transport)
            faults += [every(0.7, lambda: cut(other)), every(3, lambda: stall(other, 1))]
        options: dict[str, Any] = {"through": through, "transport_through": transport_through, "cut": True}
        storm = await stack.enter_async_context(RemoteStorm(url, folder, transport=transport, **options))
        await storm.gather(makers)
        async with meanwhile(*faults, *storm.bystanders()):
            await storm.keep_starting(seconds)
        return await storm.judge(runs=storm.enough)


async def restarts(
    url: str, folder: Path, seconds: float, makers: Sequence[str], restart: Callable[[], None], transport: str | None
) -> RemoteScene:
    """The database of the transport is restarted, and crashes. It may be the application's own, too."""
    async with RemoteStorm(url, folder, transport=transport, cut=True) as storm:
        await storm.gather(makers)

        async def again_and_again() -> None:
            """The last restart is waited for."""
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                await asyncio.sleep(random.uniform(1, 4))
                await asyncio.to_thread(restart)
                TOTALS["restarts"] += 1

        async with meanwhile(*storm.bystanders()):
            await asyncio.gather(again_and_again(), storm.keep_starting(seconds))
        return await storm.judge(runs=storm.enough)


def _proxy(url: str, protocol: Literal["postgres", "raw"] = "postgres") -> Proxy:
    parts = urlsplit(url)
    assert parts.hostname is not None and parts.port is not None
    return Proxy(parts.hostname, parts.port, protocol=protocol)
