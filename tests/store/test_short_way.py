"""The short way of a flush, which each database has for its usual freight, comes to the same as the flow of them all.

Two runs live alike, entry for entry. What one of them brings goes the short way, if there is one for it; what its twin
brings goes through the flow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest

from stepfast.model.records import Batch, Claimed, Entry, FlushAnswer, StepDone, StepWith
from stepfast.store.flows.flush import flush
from stepfast.store.postgres import PostgresStore
from stepfast.store.sqlite import SqliteStore
from stepfast.store.sqlite import flush as sqlite_flushing
from tests.store.conftest import EVERYWHERE, ON_POSTGRES, ON_SQLITE, only_on
from tests.store.scene import (
    Scene,
    child_of,
    completed,
    failed,
    failed_try,
    joint,
    opened,
    retried,
    signal,
    step,
    under_way,
    undo,
    value,
    waiting,
)  # fmt: skip

pytestmark = EVERYWHERE

COUNT = 12
"""Of pairs in a batch."""
PLAIN = ["first", "again", "third"]
"""What the one statement of Postgres writes."""
USUAL = [*PLAIN, "undoable", "open", "branch"]
ANY = [*USUAL, "mail", "child", "try", "progress", "value"]
ENDS = ["fail", "wait", "retry", "undo"]
ENTRIES: dict[str, Callable[[Claimed], list[Entry]]] = {
    "first": lambda run: [step(run, 0, '"first"')],
    "undoable": lambda run: [step(run, 1, '"second"', undo="back")],
    "open": lambda run: [opened(run, 1, '"later"')],
    "again": lambda run: [step(run, 2, '"again"')],
    "third": lambda run: [step(run, 7, '"third"')],
    "branch": lambda run: [step(run, 4, branch="0")],
    "child": lambda run: [joint(run, 6, starts=[child_of(run, 6)], status="waiting", kind="child")],
    "try": lambda run: [failed_try(run, 3, retry_ms=100)],
    "progress": lambda run: [under_way(run, 3, "half"), under_way(run, 3)],
    "value": lambda run: [value(run, "k", "1"), value(run, "k", "2")],
    "end": lambda run: [completed(run)],
    "fail": lambda run: [failed(run, forget=[("", 0)])],
    "wait": lambda run: [waiting(run)],
    "retry": lambda run: [retried(run, 1000)],
    "undo": lambda run: [undo(run)],
}
TABLES = {
    "runs": "id", "steps": "run_id", "tries": "run_id", "progress": "run_id", "mailbox": "run_id",
    "run_values": "run_id",
}  # fmt: skip
DIFFERENT = {"id", "run_id", "seed", "token"}
"""Columns in which two runs that live alike are different."""
SET = re.compile("_at$|^held_due$|^place$|^mail$")
"""Of these it is compared whether there is a value."""
UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


async def through_the_flow(scene: Scene, *entries: Entry) -> FlushAnswer:
    """What a store writes that has no short way."""
    batch = Batch()
    for entry in entries:
        batch.claims[entry.run_id] = entry.claim
        batch.add(entry)
    if isinstance(scene.store, PostgresStore):
        return await scene.store._flusher._flush_mixed(scene.worker, batch)
    assert isinstance(scene.store, SqliteStore)
    return await scene.store._drive(flush, scene.worker, batch, lambda server: None)


async def pairs(scene: Scene) -> list[tuple[Claimed, Claimed]]:
    """Two runs each, in the same claim."""
    await scene.start_many(2 * COUNT)
    runs = await scene.claim(2 * COUNT)
    return list(zip(runs[::2], runs[1::2], strict=True))


async def brought(scene: Scene, run: Claimed, words: list[str]) -> list[Entry]:
    """What a run brings in one batch."""
    made: list[Entry] = []
    for word in words:
        if word == "mail":
            mail = signal(run.id)
            await scene.store.send(mail)
            made.append(joint(run, 5, takes=[mail.id], kind="signal"))
        else:
            made += ENTRIES[word](run)
    return made


async def spoil(scene: Scene, run: Claimed, how: str) -> None:
    """What may have come between: an earlier flush whose reply was lost, a loss, a stranger's record, a wish."""
    if how == "repeated":
        await scene.flush(step(run, 2, '"again"'))
    elif how == "lost":
        await scene.store.give_back(scene.worker, [(run.id, run.claim)])
    elif how == "foreign":
        await scene.flush(step(run, 0, '"first"'))
        await scene.rows.fetch("UPDATE [steps] SET claim = 99 WHERE run_id = ?", run.id)
    elif how == "to be cancelled":
        await scene.store.cancel(run.id)
    elif how == "to be paused":
        await scene.store.pause(run.id)


async def columns(scene: Scene, table: str) -> list[str]:
    if isinstance(scene.store, SqliteStore):
        rows = await scene.rows.fetch(f"SELECT name FROM pragma_table_info('stepfast_{table}')")
    else:
        known = "information_schema.columns WHERE table_schema = 'stepfast' AND table_name = ?"
        rows = await scene.rows.fetch(f"SELECT column_name::text FROM {known}", table)
    return sorted(name for (name,) in rows if name not in DIFFERENT)


async def stored(scene: Scene, run: Claimed) -> dict[str, list[Any]]:
    """All that is on record of a run and its children, but for when and where."""
    found = {}
    for table, key in [*TABLES.items(), ("runs", "parent_id")]:
        names = await columns(scene, table)
        rows = await scene.rows.fetch(f"SELECT {', '.join(names)} FROM [{table}] WHERE {key} = ?", run.id)
        plain = [[_plain(name, value) for name, value in zip(names, row, strict=True)] for row in rows]
        found[f"{table} {key}"] = sorted(plain, key=repr)
    return found


def _plain(name: str, value: Any) -> Any:
    return value is not None if SET.search(name) else UUID.sub("id", str(value))


@only_on(*ON_POSTGRES, *ON_SQLITE)
@pytest.mark.parametrize("freight", ["plain", "usual", "any"])
@pytest.mark.parametrize("seed", range(3))
async def test_the_short_way_comes_to_what_the_flow_comes_to(
    scene: Scene, seed: int, freight: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_flushing, "_FEW", 4 if seed else 2 * COUNT)  # both ways of looking runs up
    random = Random(f"{seed} {freight}")
    words = {"plain": PLAIN, "usual": USUAL, "any": ANY}[freight]
    ends = ["", "", "end", "end", *(ENDS if freight == "any" else ())]
    spoils = ["", "", "to be cancelled", "to be paused"]
    if freight != "plain":
        spoils += ["repeated", "lost", "foreign"]
    both, short, flow = await pairs(scene), list[Entry](), list[Entry]()
    for pair in both:
        how, end = random.choice(spoils), random.choice(ends)
        life = [*random.sample(words, random.randint(1, 3)), *([end] if end else [])]
        for run, entries in zip(pair, (short, flow), strict=True):
            made = await brought(scene, run, life)
            await spoil(scene, run, how)
            entries += made
    with short_ways(scene, monkeypatch) as taken:
        said = [await scene.flush(*short)]
    assert taken or (freight != "plain" and isinstance(scene.store, PostgresStore))
    said.append(await through_the_flow(scene, *flow))
    for one, twin in both:
        assert await stored(scene, one) == await stored(scene, twin)
        for name in ("lost", "busy", "barred", "vanished"):
            assert (one.id in getattr(said[0], name)) == (twin.id in getattr(said[1], name)), name
        assert said[0].asked.get(one.id) == said[1].asked.get(twin.id)
    assert said[0].undelivered == said[1].undelivered
    for entries, answer in ((short, said[0]), (flow, said[1])):
        await _tells_the_times_of_records(scene, entries, answer, anew=freight == "any")


@contextmanager
def short_ways(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FlushAnswer]]:
    """What is written the short way meanwhile."""
    taken: list[FlushAnswer] = []
    with monkeypatch.context() as patched:
        if isinstance(scene.store, PostgresStore):
            usual = scene.store._flusher._flush_usual

            async def counted(*given: Any) -> FlushAnswer | None:
                answer = await usual(*given)
                taken.extend([] if answer is None else [answer])
                return answer

            patched.setattr(scene.store._flusher, "_flush_usual", counted)
        else:
            short = sqlite_flushing._flush_short

            def told(*given: Any) -> FlushAnswer:
                taken.append(short(*given))
                return taken[-1]

            patched.setattr(sqlite_flushing, "_flush_short", told)
        yield taken


async def _tells_the_times_of_records(scene: Scene, entries: list[Entry], answer: FlushAnswer, anew: bool) -> None:
    """Whoever waits for an outcome is told the time that a replay finds, also if an earlier flush wrote it."""
    for entry in entries:
        step = entry.step if isinstance(entry, StepWith) else entry
        if not isinstance(step, StepDone) or step.status == "waiting" or entry.run_id in answer.lost | answer.barred:
            continue
        where = "run_id = ? AND branch = ? AND position = ? AND status <> 'waiting'"
        address = (step.run_id, step.branch, step.position)
        rows = await scene.rows.fetch(f"SELECT completed_at FROM [steps] WHERE {where}", *address)
        assert rows == [(answer.time_of(entry),)] or (anew and rows == [])  # an end may have it made anew
