"""Worker processes: each opens the engine, works, and answers one-line questions on its pipes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench.engines import load
from bench.meter import client_cpu, resident_bytes
from bench.probe import PROBE


class WorkerProcess:
    """The parent's end."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ask(self, question: str) -> dict[str, Any]:
        """Send one word and wait for the answer."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(question.encode() + b"\n")
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a worker process ended with code {await self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def stop(self) -> None:
        """Close its input, which ends it, and wait."""
        assert self._process.stdin
        self._process.stdin.close()
        await self._process.wait()


@asynccontextmanager
async def worker_processes(
    engine: str, url: str, count: int, concurrency: int, work: bool = True
) -> AsyncIterator[list[WorkerProcess]]:
    """So many processes with a worker each; they work at once, or when asked to `work`."""
    order = json.dumps({"role": "worker", "engine": engine, "url": url, "concurrency": concurrency})
    command = (sys.executable, "-W", "ignore", "-m", "bench.child", order)
    workers = [
        WorkerProcess(
            await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
        )
        for _ in range(count)
    ]
    try:
        await asyncio.gather(*(worker.ask("hello") for worker in workers))
        if work:
            await asyncio.gather(*(worker.ask("work") for worker in workers))
        yield workers
    finally:
        await asyncio.gather(*(worker.stop() for worker in workers))


async def serve(engine: str, url: str, concurrency: int) -> None:
    """The child's end: answer until the input ends."""
    subject = load(engine)(url)
    await subject.open()
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async for question in _questions(reader):
        if question == "work":
            async with subject.worker(concurrency):
                _answer({})
                async for later in _questions(reader):
                    _answer(_report(later))
                PROBE.release.set()
        else:
            _answer(_report(question))
    await subject.close()


async def _questions(reader: asyncio.StreamReader) -> AsyncIterator[str]:
    while line := await reader.readline():
        yield line.decode().strip()


def _report(question: str) -> dict[str, Any]:
    if question == "reset":
        PROBE.reset()
    return {
        "entered": len(PROBE.entered),
        "left": len(PROBE.left),
        "delays": PROBE.delays if question == "delays" else [],
        "memory": resident_bytes(os.getpid()),
        "cpu": client_cpu(),
    }


def _answer(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)
