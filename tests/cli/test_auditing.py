"""`audit`: who did what by the console, for people and for scripts."""

from __future__ import annotations

import pytest

from stepfast import Stepfast
from stepfast.monitoring.audit import audited, deed
from tests.cli.conftest import Shop, Verbs

pytestmark = pytest.mark.enough_on("sqlite")


def test_what_was_done(stepfast: Verbs, shop: Shop) -> None:
    stepfast("migrate")
    assert "nobody has done anything" in stepfast("audit").stderr

    async def pause(app: Stepfast) -> None:
        for queue in ("mail", "hold"):
            await audited(app, deed("ada", "queue.pause", queue, "192.0.2.7"), lambda: app.pause_queue(queue))  # noqa: B023

    shop.call(pause)
    newest, oldest = stepfast.json("audit")
    assert (newest["which"], oldest["which"], oldest["who"], oldest["outcome"]) == ("hold", "mail", "ada", "done")
    assert [line["which"] for line in stepfast.json("audit", "mail")] == ["mail"]
    assert [line["which"] for line in stepfast.json("audit", "--before", newest["id"])] == ["mail"]
    told = stepfast("audit", "--limit", "1")
    assert "queue.pause" in told.stdout and "192.0.2.7" in told.stdout
    assert f"--before {newest['id']}" in told.stderr
    assert "not a run id" in stepfast.error("audit", "--before", "x", code=2)
