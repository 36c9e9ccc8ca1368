"""Waiting for something that announces itself to nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter

from bench.probe import PROBE

PATIENCE = 120.0


async def until(done: Callable[[], Awaitable[bool]], what: str, pause: float = 0.02) -> None:
    """Ask again and again; give up after two minutes."""
    deadline = perf_counter() + PATIENCE
    while not await done():
        if perf_counter() > deadline:
            raise TimeoutError(f"waited {PATIENCE:g} s for {what}")
        await asyncio.sleep(pause)


async def handled(count: int) -> None:
    """Wait until this many handlers have ended; complain when none has for a long time."""
    seen, since = -1, perf_counter()
    while len(PROBE.left) < count:
        await asyncio.sleep(0.004)
        if len(PROBE.left) != seen:
            seen, since = len(PROBE.left), perf_counter()
        elif perf_counter() - since > PATIENCE:
            raise TimeoutError(f"only {seen} of {count} runs were handled; nothing moved for {PATIENCE:g} s")
