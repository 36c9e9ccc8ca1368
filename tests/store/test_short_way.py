"""The short way of a flush, which each database has for its usual freight, comes to the same as the flow of them all.

Two runs live alike, step for step. What one of them brings goes the short way, what its twin brings goes through the
flow.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from stepfast.model.batches import Batch, FlushAnswer
from stepfast.model.records import Claimed, Entry
from stepfast.store.flows.flushing import flush
from stepfast.store.postgres import PostgresStore
from stepfast.store.sqlite import SqliteStore
from tests.store.conftest import EVERYWHERE
from tests.store.scene import Scene, completed, opened, step

pytestmark = EVERYWHERE

COUNT = 12
"""Of pairs in a batch."""
STEPS = "claim, branch, position, seq, name, kind, status, output, error, arguments, attempts, line, format, undo, mail"
RUNS = "status, reason, waiting_for, output, output_format, error, worker, token, asked, losses, claim, forget, awaits"


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


async def stored(scene: Scene, run: Claimed) -> tuple[list[Any], list[Any]]:
    """What is on record of a run, but for times."""
    steps = await scene.rows.fetch(f"SELECT {STEPS} FROM [steps] WHERE run_id = ? ORDER BY position", run.id)
    return steps, await scene.rows.fetch(f"SELECT {RUNS} FROM [runs] WHERE id = ?", run.id)


def life(random: Random, plain: bool) -> list[str]:
    """What a run brings in one batch; if it is plain, one statement of Postgres writes it."""
    words = ["first", "second", "again"] if plain else ["first", "second", "open", "again", "branch"]
    moves = random.sample(words, random.randint(1, 3))
    return [*moves, *(["end"] if random.random() < 0.5 else [])]


def entry(run: Claimed, word: str) -> Entry:
    """One move of a life."""
    if word == "end":
        return completed(run)
    if word == "open":
        return opened(run, 1, '"later"')
    if word == "branch":
        return step(run, 4, '"there"', branch="0")
    return step(run, {"first": 0, "second": 1, "again": 2}[word], f'"{word}"')


async def spoil(scene: Scene, run: Claimed, how: str) -> None:
    """What may have come between: an earlier flush whose reply was lost, a loss, a stranger's record, a wish."""
    if how == "repeated":
        await scene.flush(step(run, 2, '"again"'))
    elif how == "lost":
        await scene.store.give_back(scene.worker, [(run.id, run.claim)])
    elif how == "foreign":
        await scene.flush(step(run, 0, '"first"'))
        await scene.rows.fetch("UPDATE [steps] SET claim = 99 WHERE run_id = ?", run.id)
    elif how == "wished":
        await scene.store.cancel(run.id)


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "spoiled"])
@pytest.mark.parametrize("seed", range(3))
async def test_the_short_way_comes_to_what_the_flow_comes_to(scene: Scene, seed: int, plain: bool) -> None:
    random = Random(seed)
    spoils = ["", "", "wished"] if plain else ["", "", "repeated", "lost", "foreign", "wished"]
    both = await pairs(scene)
    short: list[Entry] = []
    flow: list[Entry] = []
    for pair in both:
        how, words = random.choice(spoils), life(random, plain)
        for run, entries in zip(pair, (short, flow), strict=True):
            await spoil(scene, run, how)
            entries += [entry(run, word) for word in words]
    said = await scene.flush(*short), await through_the_flow(scene, *flow)
    for one, other in both:
        assert await stored(scene, one) == await stored(scene, other)
        for name in ("lost", "busy", "barred", "vanished"):
            assert (one.id in getattr(said[0], name)) == (other.id in getattr(said[1], name)), name
        assert said[0].asked.get(one.id) == said[1].asked.get(other.id)
    assert said[0].undelivered == said[1].undelivered
