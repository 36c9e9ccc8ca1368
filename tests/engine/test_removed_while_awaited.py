"""A result that is waited for while its run is removed: RunNotFound, also beside others who wait in the process."""

from __future__ import annotations

import asyncio

import pytest

from stepfast import RunNotFound, Stepfast, results
from tests.support.engine import PATIENCE, eventually

pytestmark = pytest.mark.enough_on("sqlite")


async def test_a_run_that_was_removed_is_not_found_beside_other_waiters(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "_GONE_AFTER", 0.02)
    monkeypatch.setattr(results, "_GONE_EVERY", 60.0)

    @app.task
    async def job() -> None:
        pass

    waited_for, quick, removed = await app.start(job, delay=3600), await app.start(job), await app.start(job)
    watching = (await app._connect()).watcher
    other = asyncio.create_task(waited_for.result())
    await eventually(lambda: _looked(watching, waited_for.id))
    await app.drain()
    await quick.delete()
    await removed.delete()
    with pytest.raises(RunNotFound):
        await quick.result(timeout=0.05)  # at its timeout, if not before
    with pytest.raises(RunNotFound):
        async with asyncio.timeout(PATIENCE):
            await removed.result()
    other.cancel()
    await asyncio.wait([other])
    assert watching._gone_at == {}


async def _looked(watching: results.Watcher, run_id: str) -> bool:
    """Whether it was looked for the run: the next time is far away."""
    return watching._gone_at.get(run_id, 0.0) > asyncio.get_running_loop().time() + 30
