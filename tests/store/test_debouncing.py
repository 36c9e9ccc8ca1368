"""Debounced starts in the store: one run for a key until it is claimed, whoever comes at the same time (rule 35)."""

from __future__ import annotations

import asyncio

from stepfast.model.transitions.start import Debounce
from stepfast.store import Store
from tests.store.scene import MINUTE, Scene, completed, new_run

SOON = Debounce(MINUTE, 10 * MINUTE)


async def start(store: Store, input: str = "{}", key: str = "doc", debounce: Debounce = SOON, **shape: object) -> str:
    done = await store.start_debounced(new_run("order", key=key, input=input, **shape), debounce)
    return done.run_id


async def test_further_starts_replace_the_input_and_put_the_run_off(scene: Scene) -> None:
    first = await start(scene.store, '"a"', tags=("x",))
    await scene.rows.shift(first, "visible_at", -30_000)
    before = await scene.rows.get(first, "visible_at")
    assert await start(scene.store, '"b"') == first
    row = await scene.store.run(first)
    assert row is not None
    assert (row.input, row.key, row.tags, row.status, row.ready) == ('"b"', "doc", ["x"], "queued", False)
    assert row.visible_at is not None and row.visible_at > before
    assert [found.id for found in await scene.store.runs(key="doc")] == [first]
    assert [found.id for found in await scene.store.runs(tag="x")] == [first]
    assert await start(scene.store, '"c"', key="other") != first


async def test_it_is_put_off_until_the_maximum(scene: Scene) -> None:
    first = await start(scene.store)
    for column in ("created_at", "visible_at"):
        await scene.rows.shift(first, column, -9 * MINUTE - 30_000)
    await scene.store.promote(10)
    await start(scene.store, '"b"')
    row = await scene.store.run(first)
    assert row is not None and not row.ready and row.visible_at == row.created_at + 10 * MINUTE
    await scene.rows.shift(first, "created_at", -MINUTE)
    done = await scene.store.start_debounced(new_run("order", key="doc", input='"c"'), SOON)
    assert done.run_id == first and done.lane is not None
    [claimed] = await scene.claim()
    assert (claimed.id, claimed.input) == (first, '"c"')


async def test_the_key_is_free_when_the_run_is_claimed(scene: Scene) -> None:
    first = await start(scene.store)
    await scene.rows.make_due(first)
    await scene.store.promote(10)
    [claimed] = await scene.claim()
    second = await start(scene.store, '"b"')
    assert second != first
    row = await scene.store.run(first)
    assert row is not None and (row.input, row.key) == ("{}", "doc")
    await scene.flush(completed(claimed))
    assert await start(scene.store) == second


async def test_the_key_is_free_when_the_run_ends_unclaimed(scene: Scene) -> None:
    first = await start(scene.store)
    await scene.store.cancel(first)
    assert await start(scene.store) != first


async def test_a_key_of_a_debounced_start_is_not_that_of_another(scene: Scene) -> None:
    keyed = await scene.start(key="doc")
    assert await start(scene.store) != keyed
    assert await scene.start(key="doc") == keyed


async def test_a_call_that_is_repeated_because_its_reply_was_lost_starts_no_other(scene: Scene) -> None:
    """Rule 7."""
    run = new_run("order", key="doc")
    assert (await scene.store.start_debounced(run, SOON)).run_id == run.id
    assert (await scene.store.start_debounced(run, SOON)).run_id == run.id
    await scene.rows.make_due(run.id)
    await scene.store.promote(10)
    await scene.claim()
    assert (await scene.store.start_debounced(run, SOON)).run_id == run.id
    assert len(await scene.store.runs()) == 1


async def test_eight_starters_and_a_claimer(scene: Scene, twin: Store) -> None:
    """No start is lost: each input that was accepted is that of a run, or was replaced before the run was claimed; and
    never do two runs of the key wait."""
    quick, stores, seen = Debounce(1, 2), [scene.store, twin] * 4, list[str]()

    async def starter(number: int) -> None:
        for turn in range(6):
            seen.append(await start(stores[number], f"[{number},{turn}]", debounce=quick))

    async def claimer() -> dict[str, str]:
        claimed = dict[str, str]()
        while not started.done() or await _waiting(scene):
            await scene.store.promote(10)
            for run in await scene.claim():
                claimed[run.id] = run.input
        return claimed

    started = asyncio.gather(*(starter(number) for number in range(8)))
    claimed = await asyncio.wait_for(claimer(), 30)
    await started
    assert set(seen) == set(claimed)
    assert len(set(claimed.values())) == len(claimed), "an input was executed twice"
    last = {f"[{number},5]" for number in range(8)}
    assert last & set(claimed.values()), "whoever came last of all was executed"


async def _waiting(scene: Scene) -> bool:
    [(count,)] = await scene.rows.fetch("SELECT count(*) FROM [runs] WHERE started_at IS NULL")
    return bool(count)
