"""Answers that hold for a moment: one asks for all, and nobody sees what was before their own change."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepfast.store.readonly import Remembered


class Source:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self) -> int:
        self.asked += 1
        number = self.asked
        await self.gate.wait()
        return number


async def test_an_answer_holds_for_a_moment_and_one_asks_for_all() -> None:
    source, memory = Source(), Remembered(60)
    source.gate.clear()
    tabs = [asyncio.create_task(memory.get("k", source)) for _ in range(10)]
    await asyncio.sleep(0)
    tabs[0].cancel()  # whoever asked first may go: the others are told all the same
    source.gate.set()
    assert await asyncio.gather(*tabs[1:]) == [1] * 9
    assert await memory.get("k", source) == 1
    assert await memory.get("other", source) == 2
    assert memory.asked == 2


async def test_what_took_long_holds_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question takes a twentieth of the time of one connection at most."""
    now = 0.0
    monkeypatch.setattr("stepfast.store.readonly.time.monotonic", lambda: now)
    memory, asked = Remembered(1), 0

    async def slow() -> int:
        nonlocal now, asked
        now, asked = now + 2, asked + 1
        return asked

    assert await memory.get("k", slow) == 1
    now += 39
    assert await memory.get("k", slow) == 1
    now += 2
    assert await memory.get("k", slow) == 2


async def test_after_a_change_nothing_holds_that_was_asked_before() -> None:
    source, memory = Source(), Remembered(60)
    assert await memory.get("k", source) == 1
    source.gate.clear()
    early = asyncio.create_task(memory.get("late", source))
    await asyncio.sleep(0)
    memory.forget()
    source.gate.set()
    assert await early == 2
    assert await memory.get("k", source) == 3
    assert await memory.get("late", source) == 4


async def test_an_error_is_told_to_all_who_wait_and_not_kept() -> None:
    memory = Remembered(60)

    async def broken() -> Any:
        raise ValueError("no")

    found = await asyncio.gather(memory.get("k", broken), memory.get("k", broken), return_exceptions=True)
    assert [type(each) for each in found] == [ValueError, ValueError]
    assert await memory.get("k", Source()) == 1


async def test_answers_do_not_pile_up() -> None:
    memory = Remembered(60)
    for number in range(600):
        await memory.get(number, Source())
    assert len(memory._kept) == 500
