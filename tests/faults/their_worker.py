"""A worker of the published package for Python in a storm: `python their_worker.py URL GROUP FOLDER LEASE`."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path
from typing import Any

from durable_worker import Worker  # type: ignore[import-not-found]
from durable_worker.db_runner import run_db_worker  # type: ignore[import-not-found]
from durable_worker.worker import FatalError  # type: ignore[import-not-found]

from tests.faults.remote_workload import outcome
from tests.faults.workload import die_with_the_parent
from tests.judge.ledger import Ledger


async def main(url: str, group: str, folder: str, lease: str) -> None:
    worker, ledger = Worker(), Ledger(Path(folder))

    @worker.step("storm.serve")  # type: ignore[untyped-decorator]
    async def serve(input: dict[str, Any]) -> str:
        does, nonce = outcome(ledger, "python", input)
        await asyncio.sleep(random.random() * input["pause"])
        if does == "fatal":
            raise FatalError(nonce)
        if does == "failed":
            raise ValueError(nonce)
        return nonce

    @worker.step("storm.undo")  # type: ignore[untyped-decorator]
    async def undo(input: dict[str, Any]) -> str:
        return outcome(ledger, "python", {**input["input"], "odds": 0}, input["output"])[1]

    ledger.append("ready", {"pid": os.getpid()})
    while True:  # an error of the database ends it, and whoever looks after it starts it again
        try:
            lease_ms = int(float(lease) * 1000)
            await run_db_worker(
                worker, group=group, dsn=url, dialect="postgres", poll_ms=50, lease_ms=lease_ms, batch_size=3
            )
        except Exception:
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    die_with_the_parent()
    asyncio.run(main(*sys.argv[1:]))
