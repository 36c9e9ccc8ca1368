"""`show` says why a run is not moving: one test per reason, each brought about in the database."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from stepfast import Stepfast
from stepfast.model.ids import child_id
from tests.cli.conftest import HARBOUR, Shop, Verbs
from tests.store.scene import MINUTE, Scene, child_of, failed, joint, move, under_way

pytestmark = pytest.mark.enough_on("sqlite")


@pytest.fixture
def why(stepfast: Verbs, shop: Shop) -> Callable[..., str]:
    """Play a scene that gives a run's id; what `show` says of it."""

    def ask(scene: Callable[[Scene], Awaitable[str]] | str) -> str:
        run_id = scene if isinstance(scene, str) else shop.play(scene)
        sentence = str(stepfast.json("show", run_id)["why"])
        assert sentence[:15] in stepfast("show", run_id).stdout
        assert "  " not in sentence and sentence.endswith(".")
        return sentence

    return ask


# -- ready


def test_no_worker_at_all(why: Callable[..., str], shop: Shop) -> None:
    assert why(shop.start("nothing")) == (
        "It is ready to be claimed, but there is no live worker: start one with `stepfast worker module:app`."
    )


def test_no_worker_knows_the_workflow(why: Callable[..., str]) -> None:
    async def scene(scene: Scene) -> str:
        await scene.add_worker(host="harbour", pid=7, workflows={"mail": "v1", "bill": "v1"})
        return await scene.start("order")

    assert why(scene).endswith("no live worker knows workflow 'order'. Live are harbour:7 (bill, mail).")


def test_no_worker_serves_the_queue(why: Callable[..., str]) -> None:
    async def scene(scene: Scene) -> str:
        await scene.add_worker(host="harbour", pid=7, queues=["slow", "cheap"])
        return await scene.start("order", queue="vip")

    assert why(scene).endswith(
        "no live worker serves queue 'vip'. Those that know workflow 'order' are harbour:7 (queues: slow, cheap)."
    )


def test_workers_that_stop_take_nothing(why: Callable[..., str]) -> None:
    async def scene(scene: Scene) -> str:
        await scene.store.worker_state(await scene.add_worker(), "stopping")
        return await scene.start("order")

    assert "there is no live worker" in why(scene)


def test_every_worker_is_full(why: Callable[..., str]) -> None:
    async def scene(scene: Scene) -> str:
        worker = await scene.add_worker(host="harbour", pid=7)
        await scene.rows.fetch("UPDATE [workers] SET running = 10 WHERE id = ?", worker)
        return await scene.start("order")

    assert why(scene).endswith("every worker that serves it is full: harbour:7 (10 of 10 busy).")


def test_about_to_be_taken(why: Callable[..., str]) -> None:
    async def scene(scene: Scene) -> str:
        await scene.add_worker(host="harbour", pid=7)
        return await scene.start("order", expires_ms=MINUTE)

    sentence = why(scene)
    assert "it will be taken by one of harbour:7 (0 of 10 busy)" in sentence
    assert "It expires in" in sentence


def test_a_suspect(why: Callable[..., str]) -> None:
    async def scene(scene: Scene) -> str:
        scene.worker = await scene.add_worker()
        run_id = await scene.start("order")
        for _ in range(3):
            await scene.lose(run_id)
        return run_id

    assert why(scene).startswith("It is a suspect: 3 workers died while executing it. Such runs are tried apart")


# -- not yet due


def test_put_off(why: Callable[..., str], shop: Shop) -> None:
    sentence = why(shop.start("nothing", delay=7200))
    assert sentence.startswith("It is queued: its start was put off; it is due in 1 h 59 min (at ") or "2 h" in sentence
    assert "But there is no live worker" in sentence


def test_between_two_attempts(why: Callable[..., str], shop: Shop) -> None:
    run_id = shop.start("later", "no luck")
    shop.drain()
    assert why(run_id).startswith("It is queued: attempt 1 failed with ValueError: no luck; attempt 2 is due in ")


def test_between_two_tries_of_a_step(why: Callable[..., str], shop: Shop) -> None:
    run_id = shop.start("stubborn")
    shop.drain()
    assert why(run_id).startswith(
        "It waits to retry step 'knock': try 1 failed with ConnectionError: nobody opens; the next try is due in "
    )


# -- waiting

NOBODY_WORKS = " But there is no live worker: start one with `stepfast worker module:app`."


def test_waiting_for_a_signal(why: Callable[..., str], shop: Shop) -> None:
    run_id = shop.started("approval")
    sentence = why(run_id)
    assert sentence.startswith("It waits for signal 'approved', at the latest until ")
    assert sentence.endswith(f"); `stepfast signal {run_id} approved JSON` sends it.{NOBODY_WORKS}")


def test_waiting_for_a_signal_without_an_end(why: Callable[..., str], shop: Shop) -> None:
    run_id = shop.started("saga", "wait")
    assert why(run_id).startswith(f"It waits for signal 'sail'; `stepfast signal {run_id} sail JSON` sends it.")


def test_waiting_for_a_signal_until_the_deadline(why: Callable[..., str], shop: Shop) -> None:
    assert ", its deadline); `stepfast signal" in why(shop.started("saga", "wait", deadline=3600))


def test_the_name_of_a_signal_is_safe_to_paste(why: Callable[..., str]) -> None:
    async def scene(scene: Scene) -> str:
        scene.worker = await scene.add_worker()
        run = await scene.running()
        await scene.flush(move(run, "waiting", waiting_for="signal:it's; rm", wakes=run.wakes))
        return run.id

    assert """ 'it'"'"'s; rm' JSON` sends it.""" in why(scene)


def test_asleep(why: Callable[..., str], shop: Shop) -> None:
    assert why(shop.started("nap")).startswith("It sleeps; it wakes in ")


def test_a_sleep_that_is_over(why: Callable[..., str], shop: Shop) -> None:
    run_id = shop.started("nap")
    shop.play(lambda scene: scene.rows.make_due(run_id))
    assert why(run_id).startswith("It sleeps; it wakes now (at ")


def test_waiting_for_a_check(why: Callable[..., str], shop: Shop) -> None:
    run_id = shop.started("tide")
    sentence = why(run_id)
    assert sentence.startswith("It waits until check 'is_high' becomes true, and checks again in ")
    assert f"`stepfast resume {run_id}` makes it check at once." in sentence


def test_waiting_for_a_child(why: Callable[..., str], stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.started("convoy")
    [child] = stepfast.json("show", run_id)["children"]
    assert why(run_id) == f"It waits for its child 'approval' (run {child}, waiting).{NOBODY_WORKS}"


def test_waiting_for_many_children(why: Callable[..., str], shop: Shop) -> None:
    async def scene(scene: Scene) -> str:
        scene.worker = await scene.add_worker()
        parent = await scene.running()
        starts = []
        for position in range(5):
            child = child_of(parent, position)
            child.id = child_id(parent.id, "", position)
            starts.append(joint(parent, position, kind="start", starts=[child]))
        await scene.flush(*starts, move(parent, "waiting", waiting_for="child", wakes=parent.wakes, awaits=5))
        return parent.id

    sentence = why(scene)
    assert sentence.startswith("It waits for its children 'mail' (run ")
    assert sentence.endswith(", queued) and 2 more.")
    assert sentence.count("(run ") == 3


# -- in a worker's hands


async def owned(scene: Scene) -> tuple[str, str]:
    scene.worker = await scene.add_worker(host="harbour", pid=7)
    run = await scene.running()
    await scene.flush(under_way(run, name="charge", since_ms=MINUTE))
    return run.id, scene.worker


def test_running(why: Callable[..., str]) -> None:
    async def scene(scene: Scene) -> str:
        return (await owned(scene))[0]

    sentence = why(scene)
    assert sentence.startswith("It runs on harbour:7, executing 'charge' for 1 min")
    assert "the last heartbeat was" in sentence


def test_asked_to_stop(why: Callable[..., str]) -> None:
    async def scene(scene: Scene) -> str:
        run_id, _ = await owned(scene)
        await scene.rows.set(run_id, "asked", "cancel")
        return run_id

    assert why(scene).endswith("It was asked to cancel: it will be ended after the step that is being executed.")


def test_running_on_a_worker_that_stops(why: Callable[..., str]) -> None:
    async def scene(scene: Scene) -> str:
        run_id, worker = await owned(scene)
        await scene.store.worker_state(worker, "stopping")
        return run_id

    assert "That worker is stopping" in why(scene)


def test_owned_by_a_dead_worker(why: Callable[..., str], shop: Shop) -> None:
    async def scene(scene: Scene) -> str:
        run_id, worker = await owned(scene)
        await scene.rows.silence(worker)
        return run_id

    sentence = why(scene)
    assert sentence.startswith("Its worker harbour:7 is dead: silent for ")
    assert "with a lease of 30 s; it will be queued again once there is a live worker" in sentence


def test_owned_by_a_dead_worker_while_another_lives(why: Callable[..., str]) -> None:
    async def scene(scene: Scene) -> str:
        run_id, worker = await owned(scene)
        await scene.rows.silence(worker)
        await scene.add_worker()
        return run_id

    assert "a live worker queues it again within seconds" in why(scene)


def test_owned_by_nobody_known(why: Callable[..., str]) -> None:
    async def scene(scene: Scene) -> str:
        run_id, worker = await owned(scene)
        await scene.rows.fetch("DELETE FROM [workers] WHERE id = ?", worker)
        return run_id

    assert "is not registered any more" in why(scene)


# -- ended


def ended(reason: str, error: str = '{"type":"ValueError","message":"no luck"}') -> Callable[[Scene], Awaitable[str]]:
    async def scene(scene: Scene) -> str:
        scene.worker = await scene.add_worker()
        run = await scene.running()
        await scene.flush(failed(run, reason=reason, error=error))
        return run.id

    return scene


def test_failed_by_the_code(why: Callable[..., str]) -> None:
    sentence = why(ended("code"))
    assert sentence.startswith("It failed with ValueError: no luck (")
    assert "`stepfast retry" in sentence and sentence.endswith("its recorded steps are kept.")


def test_failed_by_timeout_and_deadline(why: Callable[..., str]) -> None:
    assert why(ended("timeout")).startswith("Its last attempt took longer than its timeout")
    assert why(ended("deadline")).startswith("It did not end before its deadline")


def test_a_dead_letter(why: Callable[..., str]) -> None:
    async def scene(scene: Scene) -> str:
        scene.worker = await scene.add_worker()
        run_id = await scene.start("order")
        for _ in range(5):
            await scene.lose(run_id)
        return run_id

    sentence = why(scene)
    assert sentence.startswith("It is a dead letter: 5 workers died while executing it")
    assert "then `stepfast retry" in sentence


def test_expired(why: Callable[..., str]) -> None:
    async def scene(scene: Scene) -> str:
        run_id = await scene.start("order", expires_ms=MINUTE)
        for column in ("visible_at", "expires_at"):
            await scene.rows.shift(run_id, column, -2 * MINUTE)
        await scene.store.promote(10)
        return run_id

    assert why(scene).startswith("No worker picked it up in time, so it expired")


def test_expired_but_nobody_has_looked_yet(why: Callable[..., str]) -> None:
    async def scene(scene: Scene) -> str:
        run_id = await scene.start("order", expires_ms=MINUTE)
        for column in ("visible_at", "expires_at"):
            await scene.rows.shift(run_id, column, -2 * MINUTE)
        return run_id

    assert "will be ended by a live worker within seconds" in why(scene)


def test_cancelled(why: Callable[..., str], stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.started("nap")
    stepfast("cancel", run_id)
    assert why(run_id).startswith("It was cancelled ")
    assert f"`stepfast retry {run_id}` queues it again." in why(run_id)


def test_gone_on_as_another(why: Callable[..., str], stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.started("voyage", 1)
    assert why(run_id).startswith(f"It went on as run {stepfast.json('show', run_id)['output']} ")


# -- held


def test_held(why: Callable[..., str], stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.start("nothing")
    stepfast("pause", run_id)
    assert why(run_id) == f"An operator paused it; `stepfast resume {run_id}` lets it go on."


def test_held_while_it_waits(why: Callable[..., str], stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.started("approval", deadline=7200)
    stepfast("pause", run_id)
    sentence = why(run_id)
    assert "Meanwhile it waits for signal 'approved': what comes is kept for it." in sentence
    assert "Its deadline counts all the same: in " in sentence


# -- undoing


def test_about_to_be_undone(why: Callable[..., str], stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.started("saga", "wait")
    stepfast("cancel", run_id)
    sentence = why(run_id)
    assert sentence.startswith("It was cancelled, and its completed steps are being undone: 0 of 2 so far. It is ready")
    assert sentence.endswith(NOBODY_WORKS.replace(" But", "but"))


def test_an_undo_that_is_to_be_tried_again(why: Callable[..., str], shop: Shop) -> None:
    Path("jammed").touch()
    sentence = why(shop.started("saga", "fail"))
    assert re.match(
        "It failed with ValueError: storm, and its completed steps are being undone: 0 of 2 so far. It waits to retry "
        r"undo 'free': try \d failed with ConnectionError: pilot does not answer; the next try is due ",
        sentence,
    )


def test_being_undone_by_a_worker(why: Callable[..., str]) -> None:
    async def scene(scene: Scene) -> str:
        scene.worker = await scene.add_worker(host="harbour", pid=7)
        await scene.undoing()
        [run] = await scene.claim()
        await scene.flush(under_way(run, branch="~undo", name="refund", since_ms=MINUTE))
        return run.id

    assert "undone: 0 of 1 so far. It runs on harbour:7, executing 'refund' for 1 min" in why(scene)


def test_undone(why: Callable[..., str], shop: Shop) -> None:
    run_id = shop.started("saga", "fail")
    sentence = why(run_id)
    assert sentence.startswith("It failed with ValueError: storm, and its completed steps were undone (")
    assert sentence.endswith(f"`stepfast retry --from-start {run_id}` starts a new run with the same input.")


def test_an_undo_that_failed(why: Callable[..., str], shop: Shop) -> None:
    shop.write("jam.py", HARBOUR.replace("Settings(inline_wait=0)", "Settings(inline_wait=0, undo_retries=0)"))
    Path("jammed").touch()
    run_id = shop.started("saga", "fail", module="jam")
    sentence = why(run_id)
    assert sentence.startswith("Its completed steps were to be undone, but that failed: CompensationFailed: undo ")
    assert f"Undo them by hand, then `stepfast retry --from-start {run_id}`" in sentence


# -- code that changed


def test_code_that_changed_under_a_run(why: Callable[..., str], shop: Shop) -> None:
    """For real: a run recorded by one version of the code, retried with another."""
    one = """
from stepfast import Context, Stepfast
app = Stepfast()
@app.workflow(name="moving", max_attempts=1)
async def moving(ctx: Context) -> None:
    await ctx.step("first", lambda: 1)
    raise ValueError("not yet")
"""
    shop.write("one.py", one)
    shop.write("two.py", one.replace('"first"', '"another"'))

    async def start(app: Stepfast) -> Any:
        return (await app.start("moving")).id

    async def again(app: Stepfast) -> None:
        await app.get(run_id).retry()
        await app.drain()

    run_id = shop.call(start, "one")
    shop.drain("one")
    shop.call(again, "two")
    sentence = why(run_id)
    assert sentence.startswith("The code makes other calls than are recorded of this run:")
    assert "'first'" in sentence and "'another'" in sentence
    assert f"then `stepfast retry {run_id}`." in sentence
