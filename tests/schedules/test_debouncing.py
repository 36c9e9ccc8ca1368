"""`start(…, key=…, debounce=…)` from end to end."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stepfast import Run, Stepfast
from stepfast.errors import ConfigurationError
from tests.support.engine import PATIENCE, Gate
from tests.support.workflows import task

SQLITE = pytest.mark.enough_on("sqlite")


async def test_many_starts_are_one_run_with_the_last_input(app: Stepfast) -> None:
    gate, done = Gate(), list[str]()

    @app.task
    async def index(text: str) -> str:
        done.append(text)
        if text == "c":
            await gate.passing()
        return text

    runs = [await app.start(index, text, key="doc-7", debounce=0.3) for text in "abc"]
    assert len({run.id for run in runs}) == 1
    assert (await runs[0].info()).key == "doc-7"
    async with app.worker():
        await gate.reached()
        found = await app.runs(key="doc-7", status="running")
        assert [info.id for info in found] == [runs[0].id], "lists find it by its key, whatever its status"
        later = await app.start(index, "d", key="doc-7", debounce=0.05)
        assert later.id != runs[0].id, "the first is being executed: the key is free"
        gate.open()
        assert await runs[0].result(timeout=PATIENCE) == "c"
        assert await later.result(timeout=PATIENCE) == "d"
    assert done == ["c", "d"]


@SQLITE
async def test_a_run_is_not_put_off_for_ever(app: Stepfast) -> None:
    done = asyncio.Event()

    @app.task
    async def index(number: int) -> int:
        done.set()
        return number

    first = await app.start(index, 0, key="doc", debounce=0.2, debounce_max=timedelta(seconds=0.4))
    number = 1
    await app.start(index, number, key="doc", debounce=0.2, debounce_max=0.4)
    async with app.worker():
        while not done.is_set():
            number += 1
            await app.start(index, number, key="doc", debounce=0.2, debounce_max=0.4)
            await asyncio.sleep(0.02)
            assert number < 500
        assert await first.result(timeout=PATIENCE) > 0


async def test_what_is_retried_leaves_its_key_to_others(app: Stepfast) -> None:
    """One that ended before it was claimed has given its key up, and another run may wait under it."""
    index = task(app, "index")
    runs = list[Run[str]]()
    for text in "ab":
        runs.append(await app.start(index, text, key="doc", debounce=60))
        await runs[-1].cancel()
    waits = await app.start(index, "c", key="doc", debounce=0.01)
    await runs[0].retry()
    assert (await (await app.store()).apply_bulk("retry", [runs[1].id])).done == [runs[1].id]
    assert (await app.start(index, "d", key="doc", debounce=0.01)).id == waits.id
    await asyncio.sleep(0.02)
    await app.drain()
    assert [await run.result(timeout=PATIENCE) for run in (*runs, waits)] == ["a", "b", "d"]


@SQLITE
async def test_what_does_not_go_together_is_refused(app: Stepfast) -> None:
    index = task(app, "index", returns=None)
    graph = app.dag("graph")

    @graph.step()
    async def only(ctx: Any) -> None: ...

    wrong: list[tuple[str, dict[str, Any]]] = [
        ("goes with a key", {"debounce": 5}),
        ("goes with debounce", {"key": "k", "debounce_max": 5}),
        ("cannot join a transaction", {"key": "k", "debounce": 5, "connection": object()}),
        ("debounce or delay, not both", {"key": "k", "debounce": 5, "delay": 1}),
        ("debounce or at, not both", {"key": "k", "debounce": 5, "at": datetime.now(UTC)}),
        ("more than 0 seconds", {"key": "k", "debounce": 0}),
        ("debounce must be zero or more", {"key": "k", "debounce": -1}),
        (
            r"debounce_max \(1 s\) must not be shorter than debounce \(5 s\)",
            {"key": "k", "debounce": 5, "debounce_max": 1},
        ),
    ]
    for said, options in wrong:
        with pytest.raises(ConfigurationError, match=said):
            await app.start(index, "x", **options)
    with pytest.raises(ConfigurationError, match="start_many has no option 'debounce'"):
        await app.start_many(index, ["x"], debounce=5)  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match="is a dag, whose start takes no debounce"):
        await app.start(graph, {}, key="k", debounce=5)
    assert await app.runs() == []


@SQLITE
async def test_without_an_event_loop(app: Stepfast) -> None:
    index = task(app, "index")

    def twice() -> None:
        runs = [app.sync.start(index, text, key="k", debounce=0.05) for text in "ab"]
        app.sync.drain()
        assert [run.result() for run in runs] == ["b", "b"]
        app.sync.close()

    await asyncio.to_thread(twice)
