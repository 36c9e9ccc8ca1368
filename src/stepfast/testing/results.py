"""Waiting for results in a lab: not for ever, because nothing happens while its clock stands."""

from __future__ import annotations

from ..app import Stepfast
from ..errors import StepfastError
from ..model.rows import Outcome


class LabError(StepfastError):
    """Something in a lab does not come to rest, or never will."""


async def be_patient(app: Stepfast, patience: float) -> None:
    """Whoever waits for a run of this application without a timeout is told, in the end, what it waits for."""
    watcher = (await app._connect()).watcher
    wait = watcher.wait

    async def bounded(run_id: str, timeout: float | None) -> Outcome | None:
        outcome = await wait(run_id, patience if timeout is None else timeout)
        if outcome is not None or timeout is not None:
            return outcome
        info = await app.get(run_id).info()
        waits = "" if info.waiting_for is None else f" for {info.waiting_for}"
        raise LabError(
            f"run {run_id} has not ended within {patience:g} s of real time: it is {info.status}{waits}. The clock of "
            "a lab stands until it is moved (lab.advance), and nobody sends signals but the test"
        )

    watcher.wait = bounded  # type: ignore[method-assign]
