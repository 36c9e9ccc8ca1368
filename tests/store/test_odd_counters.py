"""Counters at the most that the tables hold: no statement that moves other runs too is refused because of them (rule
59)."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

import pytest

from stepfast.model.queue_config import Rate
from stepfast.model.stored import MOST_COUNTED
from tests.store.conftest import only_on
from tests.store.scene import Scene, signal
from tests.store.test_limits import limit, take

LARGEST = 2_000_000_000
"""What the tables on Postgres allow at most; SQLite's take 64 bits."""


def most(scene: Scene) -> int:
    return 2**63 - 1 if scene.store.dialect == "sqlite" else LARGEST


async def claims(scene: Scene, odd: str, other: str) -> None:
    taken = {run.id: run.claim for run in await scene.claim()}
    assert taken[other] == 1 and taken[odd] in (1, MOST_COUNTED)


async def is_reaped(scene: Scene, odd: str, other: str) -> None:
    victim = await scene.add_worker()
    for run_id in (odd, other):
        await scene.rows.set(run_id, "worker", victim)
        await scene.rows.set(run_id, "place", None)
    await scene.bury(victim)
    assert (await scene.info(other)).losses == 1
    assert (await scene.info(odd)).worker is None


async def hears(scene: Scene, odd: str, other: str) -> None:
    for run_id in (odd, other):
        await scene.post(signal(run_id))
    assert (await scene.store.deliver(100)).moved == 2
    assert await scene.rows.get(other, "wakes") == 1


async def hears_at_once(scene: Scene, odd: str, other: str) -> None:
    assert (await scene.store.send(signal(odd))).done


COUNTERS = ("claim", "losses", "unrecorded_losses", "wakes", "ends", "attempt", "pending", "met")


@pytest.mark.parametrize(
    ("column", "what"),
    [
        (column, what)
        for column in COUNTERS
        for what in (claims, is_reaped, hears, hears_at_once)
        if (column, what) != ("losses", claims)  # a suspect is claimed apart: see below
    ],
)
async def test_a_counter_that_is_full_keeps_no_other_run(
    scene: Scene, column: str, what: Callable[[Scene, str, str], Awaitable[None]]
) -> None:
    odd, other = await scene.start_many(2)
    await scene.rows.set(odd, column, most(scene))
    await what(scene, odd, other)


async def test_a_suspect_of_which_a_counter_is_full_is_claimed(scene: Scene) -> None:
    odd = await scene.start()
    await scene.rows.set(odd, "losses", most(scene))
    await scene.rows.set(odd, "claim", most(scene))
    assert [run.claim for run in await scene.suspect()] == [1]


async def test_each_claim_of_a_run_has_another_number_also_where_the_counter_was_full(scene: Scene) -> None:
    run = await scene.start()
    await scene.rows.set(run, "claim", MOST_COUNTED - 1)
    numbers = []
    for _ in range(3):
        [claimed] = await scene.claim()
        numbers.append(claimed.claim)
        await scene.store.give_back(scene.worker, [(run, claimed.claim)])
    assert numbers == [MOST_COUNTED, 1, 2]


async def test_a_full_count_of_starts_keeps_no_queue_from_its_claims(scene: Scene) -> None:
    first = await scene.start()
    await limit(scene, rate=Rate(3, per=60))
    now = (await scene.info(first)).now_ms
    for at in (now - 1000, now - 1001):
        await scene.rows.fetch("INSERT INTO [queue_starts] VALUES (?, '', ?, ?)", "order", at, most(scene))
    assert await take(scene, 1) == []  # the window is full
    await scene.rows.fetch("UPDATE [queue_starts] SET at = at - 120000")
    assert [run.id for run in await take(scene, 1)] == [first]


@only_on("postgres")
async def test_every_number_of_every_table_is_bounded_or_left_out_on_purpose(scene: Scene) -> None:
    numbers = await scene.rows.fetch(
        "SELECT c.relname::text, a.attname::text FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid "
        "WHERE c.relnamespace = ?::text::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped "
        "AND a.atttypid IN ('integer'::regtype, 'bigint'::regtype)",
        scene.rows._namespace,
    )
    checks = dict(
        await scene.rows.fetch(
            "SELECT c.conrelid::regclass::text, string_agg(pg_get_constraintdef(c.oid), ' ') FROM pg_constraint c "
            "WHERE c.contype = 'c' AND c.connamespace = ?::text::regnamespace GROUP BY 1",
            scene.rows._namespace,
        )
    )
    bounded = {table.rpartition(".")[2]: set(re.findall(r"\w+", text)) for table, text in checks.items()}
    free = {f"{table}.{column}" for table, column in numbers if column not in bounded.get(table, ())}
    assert free == {"runs.priority", "runs.token", "runs.parent_position", "workers.pid", "past_workers.pid"}
