"""Claims: who gets what, in which order, and with which history."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepfast.model.records import Claimed, Lane, StepRecord
from stepfast.settings import Settings
from stepfast.store import Store
from stepfast.store.flows.claims import LastTokens
from tests.store.conftest import SHARED, Stores, only_on
from tests.store.scene import MINUTE, VERSIONS, Scene, failed_try, new_run, retried, step, waiting


async def test_a_claim_takes_the_oldest_and_makes_it_ones_own(scene: Scene) -> None:
    first = await scene.start(input="1")
    await scene.start(input="2")
    [claimed] = await scene.claim(1)
    assert (claimed.id, claimed.input, claimed.attempt, claimed.claim, claimed.losses) == (first, "1", 1, 1, 0)
    assert (claimed.workflow, claimed.queue, claimed.priority) == ("order", "order", 0)
    row = await scene.info(first)
    assert (row.status, row.attempt, row.worker, row.claim, row.ready) == ("running", 1, scene.worker, 1, False)
    assert row.started_at == claimed.started_at
    assert row.visible_at is None


async def test_nothing_is_handed_out_of_an_empty_queue_or_twice(scene: Scene) -> None:
    lanes = [Lane("order", "order", 0), Lane("mail", "mail", 0)]
    for some in (lanes[:1], lanes):
        assert await scene.claim(lanes=some) == []
    assert await scene.suspect() == []
    run = await scene.running()
    assert await scene.lanes() == []
    for some in (lanes[:1], lanes):
        assert await scene.claim(lanes=some) == []
    assert (await scene.info(run.id)).claim == 1


async def test_nothing_is_handed_out_before_its_time(scene: Scene) -> None:
    run_id = await scene.start(delay_ms=MINUTE)
    lane = Lane("order", "order", 0)
    assert (await scene.store.promote(10)).moved == 0
    assert await scene.claim(lanes=[lane]) == []
    await scene.rows.shift(run_id, "visible_at", -2 * MINUTE)
    assert (await scene.store.promote(10)).lanes == {lane}
    assert [run.id for run in await scene.claim(lanes=[lane])] == [run_id]


async def test_higher_priority_goes_first_then_age(scene: Scene) -> None:
    """Over several lanes, queues and workflows."""
    expected: list[tuple[int, int, str]] = []
    for priority, workflow, queue in [(0, "order", "a"), (5, "mail", "b"), (-5, "mail", "b"), (5, "order", "a")] * 2:
        expected.append((-priority, len(expected), await scene.start(workflow, queue=queue, priority=priority)))
    for _, place, run_id in expected:
        await scene.rows.set(run_id, "place", place)
    ids = [run_id for _, _, run_id in sorted(expected)]
    taken = [run.id for run in await scene.claim(3)]
    assert taken == ids[:3]
    taken += [run.id for run in await scene.claim(100)]
    assert taken == ids


@pytest.mark.parametrize("lanes", [1, 3])
async def test_no_claim_takes_more_than_its_limit(scene: Scene, lanes: int) -> None:
    for n in range(lanes):
        await scene.start_many(20, queue=f"q{n}")
    assert len(await scene.claim(7)) == 7
    assert len(await scene.rows.fetch("SELECT id FROM [runs] WHERE status = 'running'")) == 7


async def test_each_run_is_claimed_exactly_once_under_concurrency(scene: Scene, twin: Store) -> None:
    ids = set()
    for queue in ("a", "b", "c"):
        ids |= set(await scene.start_many(40, queue=queue))
    lanes = [(lane, 0) for lane in await scene.lanes()]
    workers = [await scene.add_worker() for _ in range(4)]

    async def take(store: Store, worker: str, token: int) -> list[str]:
        some = lanes if token % 2 else lanes[:1]
        return [run.id for run in await store.claim(worker, token, some, VERSIONS, 10)]

    claims = [
        take(store, worker, token)
        for token in range(1, 15)
        for store, worker in zip((scene.store, twin) * 2, workers, strict=True)
    ]
    taken = [run_id for answer in await asyncio.gather(*claims) for run_id in answer]
    assert len(taken) == len(set(taken))
    while rest := await scene.claim(50):
        taken += [run.id for run in rest]
    assert sorted(taken) == sorted(ids)


async def test_every_claim_has_a_new_number(scene: Scene, run: Claimed) -> None:
    """Rule 1."""
    second = await scene.again(run)
    third = await scene.again(second)
    assert [run.claim, second.claim, third.claim] == [1, 2, 3]
    assert [run.attempt, second.attempt, third.attempt] == [1, 1, 1]
    await scene.flush(retried(third))
    [fourth] = await scene.claim()
    assert (fourth.claim, fourth.attempt) == (4, 2)


# -- a reply that was lost (rule 2) ------------------------------------------------------------------------


async def test_the_same_token_gives_what_the_first_call_took(scene: Scene) -> None:
    ids = await scene.start_many(5)
    lanes = await scene.lanes()
    first = await scene.claim(3, token=7, lanes=lanes)
    again = await scene.claim(3, token=7, lanes=lanes)
    assert [run.id for run in first] == ids[:3]
    assert {(run.id, run.claim, run.input) for run in again} == {(run.id, run.claim, run.input) for run in first}
    assert {run.id for run in await scene.claim(3, token=8, lanes=lanes)} == set(ids[3:])


async def test_the_token_of_another_worker_means_nothing(scene: Scene) -> None:
    """Nor does its claim in between: workers of one application share the store."""
    await scene.start_many(4)
    other, lanes = await scene.add_worker(), await scene.lanes()
    mine = {run.id for run in await scene.claim(2, token=7, lanes=lanes)}
    assert not mine & {run.id for run in await scene.claim(1, token=7, lanes=lanes, worker=other)}
    await scene.claim(1, token=9, lanes=lanes, worker=other)
    assert {run.id for run in await scene.claim(2, token=7, lanes=lanes)} == mine


def test_the_last_claims_of_so_many_workers_are_remembered() -> None:
    last = LastTokens()
    for number in range(1000):
        assert not last.is_repeated(f"worker {number}", 7)
    assert last.is_repeated("worker 999", 7) and not last.is_repeated("worker 999", 8)
    assert len(last._tokens) == 100


@pytest.mark.parametrize("patience", range(8))
async def test_a_claim_cut_off_at_any_moment_is_made_good_by_asking_again(scene: Scene, patience: int) -> None:
    """What the database says a worker holds is what the repeated claim returned: no run is held unknown."""
    await scene.start_many(6)
    lanes = await scene.lanes()
    cut_off = asyncio.create_task(scene.claim(3, token=7, lanes=lanes))
    for _ in range(patience):
        await asyncio.sleep(0)
    cut_off.cancel()
    await asyncio.gather(cut_off, return_exceptions=True)
    claimed = await scene.claim(3, token=7, lanes=lanes)
    held = (await asyncio.to_thread(scene.beat)).held
    assert {(run.id, run.claim) for run in claimed} == {(run.id, run.claim) for run in held}
    assert len(held) == 3


async def test_a_suspect_claimed_with_the_same_token_is_the_same_one(scene: Scene) -> None:
    for _ in range(2):
        await scene.rows.set(await scene.start(), "losses", 2)
    [first] = await scene.suspect(token=7)
    [again] = await scene.suspect(token=7)
    assert (again.id, again.claim) == (first.id, first.claim)


# -- lanes (rule 32) ---------------------------------------------------------------------------------------


async def test_lanes_are_told_for_known_workflows_only(scene: Scene) -> None:
    await scene.start("order", queue="a")
    await scene.start("order", queue="a", priority=3)
    await scene.start("mail", queue="a")
    await scene.start("order", queue="b")
    await scene.start_many(50, "unknown", queue="a")
    assert set(await scene.lanes()) == {
        Lane("a", "order", 0), Lane("a", "order", 3), Lane("a", "mail", 0), Lane("b", "order", 0),
    }  # fmt: skip
    assert set(await scene.lanes(["mail"])) == {Lane("a", "mail", 0)}
    assert (await scene.store.tick(scene.worker, ["order"], False)).lanes == []


async def test_two_hundred_queues_are_served_in_order_of_age(scene: Scene) -> None:
    runs = [new_run(queue=f"q{n:03}") for n in range(200)]
    await scene.store.start(runs + [new_run("unknown", queue=f"q{n:03}") for n in range(200)])
    runs = runs[::-1]
    for place, run in enumerate(runs):
        await scene.rows.set(run.id, "place", place)
    assert len(await scene.lanes()) == 200
    first = [run.id for run in await scene.claim(50)]
    rest = [run.id for run in await scene.claim(500)]
    assert first == [run.id for run in runs[:50]]
    assert first + rest == [run.id for run in runs]
    assert await scene.lanes() == []


async def test_a_claim_takes_from_its_lanes_only(scene: Scene) -> None:
    await scene.start(queue="a")
    wanted = await scene.start(queue="b")
    await scene.start(queue="b", priority=1)
    await scene.start("mail", queue="b")
    assert [run.id for run in await scene.claim(lanes=[Lane("b", "order", 0)])] == [wanted]


# -- expiry and deadline at the claim -----------------------------------------------------------------


@pytest.mark.parametrize("others", [[], [Lane("mail", "mail", 0)]])
@pytest.mark.parametrize("limit", ["expires", "deadline"])
async def test_what_is_too_late_is_not_handed_out_even_before_a_sweep(
    scene: Scene, limit: str, others: list[Lane]
) -> None:
    shape: dict[str, Any] = {f"{limit}_ms": MINUTE}
    run_id = await scene.start(**shape)
    lanes = [Lane("order", "order", 0), *others]
    await scene.rows.shift(run_id, f"{limit}_at", -2 * MINUTE)
    assert await scene.claim(lanes=lanes) == []
    await scene.rows.shift(run_id, f"{limit}_at", 2 * MINUTE)
    assert [run.id for run in await scene.claim(lanes=lanes)] == [run_id]


# -- history (rule 33) -------------------------------------------------------------------------------------


async def test_a_first_claim_brings_no_history(run: Claimed) -> None:
    assert (run.records, run.tries, run.complete) == ([], {}, True)


async def test_a_later_claim_brings_the_records_in_order(scene: Scene, run: Claimed) -> None:
    await scene.flush(
        step(run, 1, "2", seq=5, name="b", duration_ms=30, line="a.py:3", attempts=2, arguments="[1]"),
        step(run, 0, "1", branch="1.0", status="failed", error='{"type":"E"}'),
        step(run, 0, None, name="a"),
    )
    again = await scene.again(run)
    assert again.complete
    assert [(r.branch, r.position, r.output) for r in again.records] == [("", 0, None), ("", 1, "2"), ("1.0", 0, "1")]
    second = again.records[1]
    assert second == StepRecord(
        "", 1, 5, "b", "step", "completed", "2", None, "[1]", 2, second.completed_at - 30, second.completed_at,
        "a.py:3", 1,
    )  # fmt: skip
    assert (again.records[2].status, again.records[2].error) == ("failed", '{"type":"E"}')


async def test_empty_outputs_come_back_as_they_were(scene: Scene, run: Claimed) -> None:
    outputs = ["null", "false", "0", '""', None]
    await scene.flush(*(step(run, n, output) for n, output in enumerate(outputs)))
    again = await scene.again(run)
    assert [record.output for record in again.records] == outputs
    assert [record.output for record in await scene.store.steps(run.id)] == outputs


async def test_a_long_history_comes_in_pages(scene: Scene, run: Claimed) -> None:
    await scene.flush(*(step(run, n, str(n), branch=branch) for branch in ("", "1.2") for n in range(100)))
    again = await scene.again(run)
    assert not again.complete
    assert [(r.branch, r.position) for r in again.records] == [("", n) for n in range(64)]
    pages, last = list(again.records), again.records[-1]
    while page := await scene.store.steps(run.id, (last.branch, last.position), 50):
        assert len(page) <= 50
        pages += page
        last = page[-1]
    assert [(r.branch, r.position, r.output) for r in pages] == [
        (branch, n, str(n)) for branch in ("", "1.2") for n in range(100)
    ]


async def test_a_large_history_is_bounded_by_its_size_too(stores: Stores, store: Store) -> None:
    scene = await stores.scene(await stores.open(settings=Settings(history_bytes=10_000)) if stores.shared else store)
    size = 4_000 if stores.shared else 100_000
    run = await scene.running()
    await scene.flush(*(step(run, n, '"' + "x" * size + '"') for n in range(10)))
    again = await scene.again(run)
    assert not again.complete
    assert 1 <= len(again.records) <= 4
    assert len(await scene.store.steps(run.id)) == 10


BORDERS: list[tuple[int, list[tuple[list[str | None], int, bool]]]] = [
    (3, [(["1"] * 2, 2, True), (["1"] * 3, 3, True), (["1"] * 4, 3, False), (["1" * 11, "2", "3"], 1, False)]),
    (1, [(["1"], 1, True), (["1"] * 2, 1, False)]),
    (
        9,
        [
            (["12345"] * 2, 2, True),  # as many bytes as there may be, and no record after them
            (["12345"] * 3, 3, True),  # the last begins within the bound
            (["12345"] * 4, 3, False),
            (["1" * 11], 1, True),
            (["1" * 11, None], 1, False),  # though it would bring no byte more
            ([None] * 9, 9, True),
            ([None] * 10, 9, False),
            (['"äöü"', "12", "3"], 3, True),  # bytes are counted: 8, 10, 11
            (['"äöü"', "123", "4"], 2, False),
            (['"\U0001f600\U0001f600"', "1"], 2, True),
            (['"\U0001f600\U0001f600"', "1", "2"], 2, False),
        ],
    ),
]
"""Of so many records at most, and of ten bytes: outputs, how many of them come along, and whether they are all."""


@only_on(*SHARED)
@pytest.mark.parametrize(("most", "cases"), BORDERS)
async def test_a_history_is_known_to_be_whole_exactly_if_it_is(
    stores: Stores, store: Store, most: int, cases: list[tuple[list[str | None], int, bool]]
) -> None:
    """All of them by one claim, and each by its own."""
    scene = await stores.scene(await stores.open(settings=Settings(history_records=most, history_bytes=10)))
    await scene.start_many(len(cases))
    runs = await scene.claim(100)
    expected = {}
    for run, (outputs, brought, complete) in zip(runs, cases, strict=True):
        await scene.flush(*(step(run, n, output) for n, output in enumerate(outputs)))
        expected[run.id] = (outputs[:brought], complete)
    for limit in (100, 1):
        await scene.store.give_back(scene.worker, [(run.id, run.claim) for run in runs])
        runs = [run for _ in range(len(cases) if limit == 1 else 1) for run in await scene.claim(limit)]
        assert {run.id: ([record.output for record in run.records], run.complete) for run in runs} == expected


async def test_histories_of_several_runs_are_kept_apart(scene: Scene) -> None:
    await scene.start_many(3)
    runs = await scene.claim()
    await scene.flush(*(step(run, n, f'"{run.id} {n}"') for run in runs for n in range(3)))
    await scene.store.give_back(scene.worker, [(run.id, run.claim) for run in runs])
    for again in await scene.claim():
        assert [record.output for record in again.records] == [f'"{again.id} {n}"' for n in range(3)]


class Forgetful(dict[str, int]):
    """A memory that has forgotten an entry when it is asked for it a second time."""

    def get(self, key: str, default: Any = None) -> Any:
        return self.pop(key, default)


@pytest.mark.parametrize("memory", [dict, Forgetful])
async def test_a_remembered_history_that_is_not_brought_is_never_taken_for_an_empty_one(
    scene: Scene, memory: type[dict[str, int]]
) -> None:
    """The worker may forget it while the histories of others are read: its steps would be called again."""
    await scene.start_many(2)
    known, unknown = await scene.claim()
    await scene.flush(step(known, 0), step(unknown, 0))
    await scene.store.give_back(scene.worker, [(run.id, run.claim) for run in (known, unknown)])
    again = {run.id: run for run in await scene.claim(remembered=memory({known.id: known.claim}))}
    assert (again[known.id].records, again[known.id].complete) == ([], False)
    assert ([record.position for record in again[unknown.id].records], again[unknown.id].complete) == ([0], True)


async def test_tries_of_the_present_attempt_come_along_and_older_ones_do_not(scene: Scene, run: Claimed) -> None:
    await scene.flush(failed_try(run, 0, 1), failed_try(run, 0, 2), failed_try(run, -1, 1), waiting(run))
    await scene.rows.shift(run.id, "visible_at", -2 * MINUTE)
    await scene.store.promote(10)
    [again] = await scene.claim()
    assert again.tries == {("", 0): (2, 0)}
    await scene.flush(retried(again))
    [third] = await scene.claim()
    assert (third.attempt, third.tries) == (2, {})


async def test_a_claim_tells_which_code_had_the_run_last(scene: Scene) -> None:
    run_id = await scene.start(version="v0")
    [first] = await scene.claim(version="v1")
    assert first.last_version == "v0"
    assert (await scene.info(run_id)).version == "v1"
    await scene.store.give_back(scene.worker, [(first.id, first.claim)])
    await scene.start("mail", version="v0")
    assert {run.last_version for run in await scene.claim(version="v2")} == {"v1", "v0"}
    assert (await scene.info(run_id)).version == "v2"


# -- large inputs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("text", [998 * "x", 332 * "€" + "xx"], ids=["characters of one byte", "of three"])
@only_on(*SHARED)
async def test_a_claim_brings_no_more_than_so_many_bytes_at_once(
    stores: Stores, bare: Store, text: str, lanes: int
) -> None:
    await bare.migrate()
    scene = await stores.scene(await stores.open(settings=Settings(claim_bytes=2500)))
    large = f'"{text}"'
    for n in range(8):
        await scene.start("order" if n % lanes == 0 else "mail", input=large)
    assert [len(await scene.claim(100)) for _ in range(4)] == [3, 3, 2, 0]


@only_on(*SHARED)
async def test_a_run_that_is_larger_than_a_claim_may_be_is_claimed_alone(stores: Stores, bare: Store) -> None:
    await bare.migrate()
    scene = await stores.scene(await stores.open(settings=Settings(claim_bytes=10)))
    for _ in range(2):
        await scene.start(input='"' + 100 * "x" + '"')
    assert [len(await scene.claim(100)) for _ in range(3)] == [1, 1, 0]
