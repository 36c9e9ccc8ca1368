"""Every call of the face, cancelled at every moment, with and without a network that breaks or falls silent just then
(rule 47).

Such a call ends as cancelled. What it asked for was done as a whole or not at all, the application works on, every run
comes to its end, and nothing is left. `make test` tries a small share, always the same; `make faults` tries all.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from stepfast import AppClosed, DatabaseUnavailable, Run, Stepfast
from tests.cancelling.trials import (
    CUT,
    MESSAGES,
    NOTHING,
    SILENCE,
    SOON,
    WAITS,
    Moment,
    Scene,
    no_task_left,
    patiently,
    scene_on,
    trial,
)
from tests.support.engine import eventually

Call = Callable[[Scene, Run[Any]], Coroutine[Any, Any, Any]]

OF_RUNS: dict[str, Call] = {
    "start": lambda s, run: s.app.start("wait"),
    "keyed start": lambda s, run: s.app.start("wait", key=s.name()),
    "start_many": lambda s, run: s.app.start_many("wait", [None] * 3, tags=[s.name()]),
    "start of a dag": lambda s, run: s.app.start("graph", tags=[s.name()]),
    "signal": lambda s, run: run.signal("hello", 1),
    "cancel": lambda s, run: run.cancel(),
    "pause": lambda s, run: run.pause(),
    "resume": lambda s, run: run.resume(),
    "retry": lambda s, run: run.retry(),
    "retry from the start": lambda s, run: run.retry(from_start=True),
    "result": lambda s, run: run.result(timeout=0.05),
    "ask": lambda s, run: run.ask("question", 1, timeout=0.05),
    "stream": lambda s, run: anext(run.stream("items", timeout=0.05)),
    "streams": lambda s, run: run.streams(),
    "reschedule": lambda s, run: run.reschedule(delay=0),
    "export": lambda s, run: run.export(),
    "delete": lambda s, run: run.delete(),
    "status": lambda s, run: run.status(),
    "info": lambda s, run: run.info(),
    "steps": lambda s, run: run.steps(),
    "activity": lambda s, run: run.activity(),
    "get": lambda s, run: run.get("x"),
    "values": lambda s, run: run.values(),
    "runs": lambda s, run: s.app.runs(),
    "find": lambda s, run: s.app.find("wait", key=s.name()),
    "queues": lambda s, run: s.app.queues(),
    "set_limits": lambda s, run: s.app.set_limits("other", concurrency=5),
    "put_schedule": lambda s, run: s.app.put_schedule("hourly", "quick", every=3600),
    "stats": lambda s, run: s.app.stats(),
    "prune": lambda s, run: s.app.prune(older_than=3600),
    "check": lambda s, run: s.app.check(limit=2),
    "migrate": lambda s, run: s.app.migrate(),
    "signal to a dag": lambda s, run: run.signal("ok", True),
    "cancel of a dag": lambda s, run: run.cancel(),
    "pause of a dag": lambda s, run: run.pause(),
}
"""Of a run that waits; of a dag run, where the name says so."""


async def first_use(scene: Scene, app: Stepfast) -> None:
    async with app:
        pass


async def enter(scene: Scene, app: Stepfast) -> None:
    """A worker comes, and leaves when the block ends."""
    async with app.worker():
        pass


async def drain(scene: Scene, app: Stepfast) -> None:
    await app.drain()


async def work(scene: Scene, app: Stepfast) -> None:
    """Until a signal comes, which comes as soon as somebody listens for it."""
    before = signal.getsignal(signal.SIGTERM)

    async def tell() -> None:
        await eventually(lambda: signal.getsignal(signal.SIGTERM) is not before)
        signal.raise_signal(signal.SIGTERM)

    telling = asyncio.create_task(tell())
    try:
        await app.work()
    finally:
        telling.cancel()


LIVES: dict[str, Callable[[Scene, Stepfast], Coroutine[Any, Any, Any]]] = {
    "open and close": first_use,
    "a worker": enter,
    "drain": drain,
    "work": work,
}
"""Of an application of its own, which is closed afterwards, and that is cancelled too. They have hundreds of moments;
the later ones are tried here and there."""


def moments(postgres: bool, number: int, times: int = 1) -> list[Moment]:
    """What can be done to a call at the n-th wait or message."""
    if not postgres:
        return [Moment(WAITS, number, NOTHING, times)]
    kinds = itertools.product((WAITS, MESSAGES), (NOTHING, CUT, SILENCE))
    return [Moment(counted, number, fault, times) for counted, fault in kinds]


async def try_call(scene: Scene, what: str, moment: Moment) -> bool:
    workflow = "graph" if what.endswith(("to a dag", "of a dag")) else "wait"
    run: Run[Any] = await patiently(lambda: scene.app.start(workflow))
    if what in ("retry", "retry from the start"):
        await patiently(run.cancel)
    before = asyncio.all_tasks()
    reached = await trial(scene, lambda: OF_RUNS[what](scene, run), moment)
    await no_task_left(before, f"{what} was cancelled")
    await whole(scene, what)
    assert await patiently(run.status)
    return reached


async def whole(scene: Scene, what: str) -> None:
    """What was started together is there together."""
    if what in ("start_many", "start of a dag"):
        found = await patiently(lambda: scene.app.runs(tag=f"n{scene.made}"))
        assert len(found) in ((0, 3) if what == "start_many" else (0, 1))
        for info in found:
            steps = await patiently(scene.app.get(info.id).steps)
            assert info.workflow != "graph" or len(steps) == 2


async def try_life(scene: Scene, what: str, moment: Moment) -> bool:
    app = scene.new_app()
    for _ in range(3):
        await patiently(lambda: scene.app.start("quick"))
    reached = await trial(scene, lambda: LIVES[what](scene, app), moment)
    if reached:
        await trial(scene, app.close, Moment(WAITS, 2, NOTHING))
    else:
        await app.close()
    return reached


async def try_stop(scene: Scene, _: str, moment: Moment) -> bool:
    """A worker is stopped that holds a run; whoever asks for it once more waits until it has left."""
    app = scene.new_app()
    async with app.worker() as worker:
        await patiently(lambda: app.start("wait"))
        await eventually(lambda: worker.running)
        reached = await trial(scene, worker.stop, moment)
    assert not worker.running
    await app.close()
    return reached


async def try_close(scene: Scene, _: str, moment: Moment) -> bool:
    """An application is closed in which somebody waits for a result, in this event loop and in that of ``app.sync``."""
    app = scene.new_app()
    run: Run[Any] = await patiently(lambda: app.start("wait"))
    waiting = [asyncio.create_task(run.result()), asyncio.create_task(_in_sync(app, run.id))]
    await eventually(lambda: app.sync._calls)
    reached = await trial(scene, app.close, moment)
    done, _pending = await asyncio.wait(waiting, timeout=SOON)
    assert done == set(waiting), "somebody waits on for an application that was closed"
    for task in waiting:
        assert isinstance(task.exception(), (AppClosed, DatabaseUnavailable)), task
    await app.close()
    return reached


async def _in_sync(app: Stepfast, run_id: str) -> Any:
    return await asyncio.to_thread(app.sync.get(run_id).result)


ALL = {
    **dict.fromkeys(OF_RUNS, try_call),
    **dict.fromkeys(LIVES, try_life),
    "stop": try_stop,
    "close": try_close,
}
SHARE = {"postgres": 40, "sqlite": 60}
"""Trials in `make test`."""


async def test_a_share_of_all_moments(url: str) -> None:
    postgres = url.startswith("postgres")
    chance = random.Random(7)
    async with scene_on(url) as scene:
        for _ in range(SHARE["postgres" if postgres else "sqlite"]):
            what = chance.choice(list(ALL))
            moment = chance.choice(moments(postgres, chance.randint(1, 6), chance.choice((1, 1, 2))))
            with labelled(what, moment):
                await ALL[what](scene, what, moment)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("what", ALL)
async def test_every_moment(url: str, what: str, times: int) -> None:
    postgres = url.startswith("postgres")
    async with scene_on(url) as scene:
        open_kinds = moments(postgres, 1, times)
        for number in [*range(1, 31), *range(31, 400, 7 if what in LIVES else 1)]:
            for moment in list(open_kinds):
                now = Moment(moment.counted, number, moment.fault, times)
                with labelled(what, now):
                    if not await ALL[what](scene, what, now):
                        open_kinds.remove(moment)  # it is over by then
            if not open_kinds:
                return


class labelled:
    """Says of a failure which trial it was."""

    def __init__(self, what: str, moment: Moment) -> None:
        self._label = f"{what}, cancelled at {moment}"

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            error.add_note(self._label)
