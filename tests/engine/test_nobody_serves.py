"""Waiting for the result of a run that nobody will take: said after a moment, and in the TimeoutError."""

from __future__ import annotations

import logging

import pytest

from stepfast import Stepfast, results
from tests.support.engine import Gate
from tests.support.workflows import task

pytestmark = pytest.mark.enough_on("sqlite")


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs for which somebody looked for workers."""
    seen: list[str] = []
    look = results.NoWorkerWarning._look

    async def counted(self: results.NoWorkerWarning, run_id: str) -> object:
        seen.append(run_id)
        return await look(self, run_id)

    monkeypatch.setattr(results.NoWorkerWarning, "_look", counted)
    monkeypatch.setattr(results, "SOON", 0.02)
    monkeypatch.setattr(results, "_AT_MOST_EVERY", 3600.0)
    return seen


async def test_a_timeout_says_that_nobody_will_take_the_run(app: Stepfast, looks: list[str]) -> None:
    ship = task(app, "ship", returns=None)
    run = await app.start(ship)
    with pytest.raises(TimeoutError, match=r"within 0\.01 s; it is queued; there is no live worker"):
        await run.result(timeout=0.01)
    assert looks == [run.id]


async def test_whoever_waits_is_told_once(app: Stepfast, looks: list[str], caplog: pytest.LogCaptureFixture) -> None:
    ship = task(app, "ship", returns=None)
    task(app, "other", returns=None)
    runs = await app.start_many(ship, [None] * 20)
    async with app.worker(queues=["other"]):
        for run in runs:
            with pytest.raises(TimeoutError, match="no live worker serves queue 'ship'"):
                await run.result(timeout=0.05)
    [line] = [record for record in caplog.records if "it is queued" in record.getMessage()]
    assert (line.run_id, line.workflow, line.attempt) == (runs[0].id, "ship", 0)  # type: ignore[attr-defined]
    assert line.getMessage().startswith(
        f"run {runs[0].id}: it is queued; no live worker serves queue 'ship': start one with `"
    )
    assert len(looks) == 1 + len(runs)  # one for the log, and one for each error


async def test_nothing_is_said_of_a_run_that_somebody_has(
    app: Stepfast, looks: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    ship = task(app, "ship", gate=gate, returns=None)
    run = await app.start(ship)
    async with app.worker():
        await gate.reached()
        with pytest.raises(TimeoutError, match="it continues, and result\\(\\) may be called again"):
            await run.result(timeout=0.05)
        gate.open()
        await run.result(timeout=20)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
