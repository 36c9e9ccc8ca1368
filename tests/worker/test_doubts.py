"""Doubts come with a broken connection, and go with what they are about."""

from __future__ import annotations

from typing import Any

from stepfast import Context, Stepfast
from stepfast.worker.clockwork import REAL
from stepfast.worker.doubts import Doubts
from tests.support.engine import Gate, eventually


class Memory:
    """A run that believes so much of itself to be stored."""

    def believed(self) -> int:
        return 1


def test_what_is_not_held_any_more_is_not_doubted_for_ever() -> None:
    held: dict[str, Any] = {"kept": Memory(), "lost": Memory(), "claimed anew": Memory()}
    doubts = Doubts(REAL, lambda: held)
    doubts.broke()
    del held["lost"]
    held["claimed anew"] = Memory()  # what was doubted of the claim before says nothing of this one
    doubts.forget_unheld()
    assert doubts.open == {"kept": held["kept"]}


async def test_a_doubted_run_that_is_lost_leaves_nothing_behind() -> None:
    """Nothing more is written of it, so no flush would ever end the doubt."""
    app, gate = Stepfast("sqlite://"), Gate()

    @app.workflow
    async def work(ctx: Context) -> None:
        await gate.passing()

    run = await app.start(work)
    async with app, app.worker(poll=0.05) as worker:
        await eventually(lambda: gate.arrivals == 1)
        worker.duties.claimer.stopped = True  # it is not to come back here, which would end the doubt
        worker.duties._connection_broke()
        assert run.id in worker.duties.doubts.open
        worker.duties.executor.lose(run.id)
        await eventually(lambda: not worker.duties.doubts.open)
