"""`show` says why a run is not moving: one case for each reason, brought about in the database or by running code."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepfast import Stepfast
from stepfast.model.ids import child_id
from tests.cli.conftest import HARBOUR, Shop, Verbs
from tests.store.scene import MINUTE, Scene, child_of, failed, joint, move, under_way
from tests.support.snapshots import Snapshot

pytestmark = pytest.mark.enough_on("sqlite")


def after(stepfast: Verbs, verb: str, run_id: str) -> str:
    stepfast(verb, run_id)
    return run_id


CASES: dict[str, Callable[..., Any]] = {
    "no_worker_at_all": lambda shop, _: shop.start("nothing"),
    "delayed": lambda shop, _: shop.start("nothing", delay=7200),
    "between_two_attempts": lambda shop, _: shop.started("later", "no luck", module="shop"),
    "between_two_tries_of_a_step": lambda shop, _: shop.started("stubborn", module="shop"),
    "waiting_for_a_signal": lambda shop, _: shop.started("approval"),
    "waiting_for_a_signal_without_a_timeout": lambda shop, _: shop.started("saga", "wait"),
    "waiting_for_a_signal_until_the_deadline": lambda shop, _: shop.started("saga", "wait", deadline=3600),
    "asleep": lambda shop, _: shop.started("nap"),
    "waiting_for_a_check": lambda shop, _: shop.started("tide"),
    "waiting_for_a_child": lambda shop, _: shop.started("convoy"),
    "continued_as_another": lambda shop, _: f"{shop.started('voyage', 1)} --this",
    "undone": lambda shop, _: shop.started("saga", "fail"),
    "cancelled": lambda shop, stepfast: after(stepfast, "cancel", shop.started("nap")),
    "paused": lambda shop, stepfast: after(stepfast, "pause", shop.start("nothing")),
    "paused_while_it_waits": lambda shop, stepfast: after(stepfast, "pause", shop.started("approval", deadline=7200)),
    "about_to_be_undone": lambda shop, stepfast: after(stepfast, "cancel", shop.started("saga", "wait")),
}
"""What brings a run about, and gives its id; a coroutine function does it in the database, within a scene."""


def case(make: Callable[..., Any]) -> Callable[..., Any]:
    CASES[make.__name__] = make
    return make


@pytest.mark.parametrize("name", CASES)
def test_why(name: str, stepfast: Verbs, shop: Shop, snapshot: Snapshot) -> None:
    make = CASES[name]
    run_id = shop.play(make) if inspect.iscoroutinefunction(make) else make(shop, stepfast)
    sentence = str(stepfast.json("show", *run_id.split())["why"])
    assert sentence[:15] in stepfast("show", *run_id.split()).stdout
    assert "  " not in sentence and sentence.endswith(".")
    snapshot(re.sub(r"(?<=undo 'free': try )\d", "N", sentence))


async def dead_letter(scene: Scene, losses: int) -> str:
    scene.worker = await scene.add_worker()
    run_id = await scene.start("order")
    for _ in range(losses):
        await scene.lose(run_id)
    return run_id


# -- ready


@case
async def no_worker_knows_the_workflow(scene: Scene) -> str:
    await scene.add_worker(host="harbour", pid=7, workflows={"mail": "v1", "bill": "v1"})
    return await scene.start("order")


@case
async def no_worker_serves_the_queue(scene: Scene) -> str:
    await scene.add_worker(host="harbour", pid=7, queues=["slow", "cheap"])
    return await scene.start("order", queue="vip")


@case
async def the_only_worker_stops(scene: Scene) -> str:
    await scene.store.worker_state(await scene.add_worker(), "stopping")
    return await scene.start("order")


@case
async def every_worker_is_full(scene: Scene) -> str:
    worker = await scene.add_worker(host="harbour", pid=7)
    await scene.rows.fetch("UPDATE [workers] SET running = 10 WHERE id = ?", worker)
    return await scene.start("order")


@case
async def about_to_be_claimed(scene: Scene) -> str:
    await scene.add_worker(host="harbour", pid=7)
    return await scene.start("order", expires_ms=MINUTE)


@case
async def a_suspect(scene: Scene) -> str:
    return await dead_letter(scene, 3)


# -- waiting


@case
async def waiting_for_a_signal_whose_name_is_quoted_for_a_shell(scene: Scene) -> str:
    scene.worker = await scene.add_worker()
    run = await scene.running()
    await scene.flush(move(run, "waiting", waiting_for="signal:it's; rm", wakes=run.wakes))
    return run.id


@case
def asleep_after_its_time(shop: Shop, _: Verbs) -> str:
    run_id = shop.started("nap")
    shop.play(lambda scene: scene.rows.make_due(run_id))
    return run_id


@case
async def waiting_for_many_children(scene: Scene) -> str:
    scene.worker = await scene.add_worker()
    parent = await scene.running()
    starts = []
    for position in range(5):
        child = child_of(parent, position)
        child.id = child_id(parent.id, "", position)
        starts.append(joint(parent, position, kind="start", starts=[child]))
    await scene.flush(*starts, move(parent, "waiting", waiting_for="child", wakes=parent.wakes, awaits=5))
    return parent.id


# -- executed by a worker


async def owned(scene: Scene) -> str:
    scene.worker = await scene.add_worker(host="harbour", pid=7)
    run = await scene.running()
    await scene.flush(under_way(run, name="charge", since_ms=MINUTE))
    return run.id


@case
async def running(scene: Scene) -> str:
    return await owned(scene)


@case
async def running_and_asked_to_cancel(scene: Scene) -> str:
    run_id = await owned(scene)
    await scene.rows.set(run_id, "asked", "cancel")
    return run_id


@case
async def running_on_a_worker_that_stops(scene: Scene) -> str:
    run_id = await owned(scene)
    await scene.store.worker_state(scene.worker, "stopping")
    return run_id


@case
async def owned_by_a_dead_worker(scene: Scene) -> str:
    run_id = await owned(scene)
    await scene.rows.silence(scene.worker)
    return run_id


@case
async def owned_by_a_dead_worker_while_another_lives(scene: Scene) -> str:
    run_id = await owned_by_a_dead_worker(scene)
    await scene.add_worker()
    return str(run_id)


@case
async def owned_by_a_worker_that_is_not_registered(scene: Scene) -> str:
    run_id = await owned(scene)
    await scene.rows.fetch("DELETE FROM [workers] WHERE id = ?", scene.worker)
    return run_id


# -- ended


def ended(reason: str) -> None:
    async def make(scene: Scene) -> str:
        scene.worker = await scene.add_worker()
        run = await scene.running()
        await scene.flush(failed(run, reason=reason, error='{"type":"ValueError","message":"no luck"}'))
        return run.id

    CASES[f"failed_by_{reason}"] = make


for _reason in ("code", "timeout", "deadline"):
    ended(_reason)


@case
async def a_dead_letter(scene: Scene) -> str:
    return await dead_letter(scene, 5)


@case
async def past_its_expiry(scene: Scene) -> str:
    run_id = await scene.start("order", expires_ms=MINUTE)
    for column in ("visible_at", "expires_at"):
        await scene.rows.shift(run_id, column, -2 * MINUTE)
    return run_id


@case
async def expired(scene: Scene) -> str:
    run_id = await past_its_expiry(scene)
    await scene.store.promote(10)
    return str(run_id)


# -- undoing


@case
def between_two_tries_of_an_undo(shop: Shop, _: Verbs) -> str:
    Path("jammed").touch()
    return shop.started("saga", "fail")


@case
async def being_undone_by_a_worker(scene: Scene) -> str:
    scene.worker = await scene.add_worker(host="harbour", pid=7)
    await scene.undoing()
    [run] = await scene.claim()
    await scene.flush(under_way(run, branch="~undo", name="refund", since_ms=MINUTE))
    return run.id


@case
def an_undo_that_failed(shop: Shop, _: Verbs) -> str:
    shop.write("jam.py", HARBOUR.replace("Settings(inline_wait=0)", "Settings(inline_wait=0, undo_retries=0)"))
    Path("jammed").touch()
    return shop.started("saga", "fail", module="jam")


# -- code that changed


@case
def code_that_changed_under_a_run(shop: Shop, _: Verbs) -> str:
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
    run_id = shop.started("moving", module="one")

    async def again(app: Stepfast) -> None:
        await app.get(run_id).retry()
        await app.drain()

    shop.call(again, "two")
    return run_id
