"""What a worker's log says at its start: where the runs are kept, and who else has code of the same name."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from stepfast import Context, Stepfast
from stepfast.model.records import WorkerInfo
from stepfast.model.urls import parse_url
from stepfast.runtime import all_namesakes, database_shown, namesakes
from tests.engine.conftest import MakeApp
from tests.support.workflows import task

pytestmark = pytest.mark.enough_on("sqlite")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_worker_says_on_which_database_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("STEPFAST_URL", "sqlite:///named.db")
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.INFO, "stepfast"):
        async with Stepfast() as app, app.worker():
            pass
    assert f"works on the SQLite file {tmp_path / 'named.db'}, namespace 'stepfast'" in caplog.text
    assert not warnings(caplog)


@pytest.mark.parametrize("way", ["worker", "drain"])
async def test_a_database_that_nobody_named_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    monkeypatch.delenv("STEPFAST_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    async with Stepfast() as app:
        if way == "drain":
            await app.drain()
        else:
            async with app.worker():
                pass
    assert len(warnings(caplog)) == 1
    assert "STEPFAST_URL" in caplog.text and str(tmp_path / "stepfast.db") in caplog.text


def test_the_password_of_the_database_is_not_in_the_log() -> None:
    assert database_shown(parse_url("postgresql://ada:secret@db/shop")) == "postgresql://ada:***@db/shop"


def a_service(make_app: MakeApp, module: str, source: str) -> Stepfast:
    """An application whose one workflow is from a module of that name."""
    app = make_app()
    space: dict[str, Any] = {"__name__": module, "app": app, "Context": Context}
    exec(f"async def send(ctx: Context, what: str) -> str:\n    return {source}", space)
    app.workflow(space["send"])
    return app


async def test_two_services_with_one_name_for_different_code_are_told(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    bills, mails = a_service(make_app, "bills", "'bill'"), a_service(make_app, "mails.letters", "'mail' + what")
    async with bills.worker():
        assert not warnings(caplog)
        async with mails.worker():
            found = all_namesakes(await (await mails.store()).workers())
    told = "\n".join(warnings(caplog))
    assert "'send'" in told and "mails.letters" in told and "bills" in told and "namespace" in told
    assert [(n.workflow, {n.module, n.other}) for n in found] == [("send", {"bills", "mails.letters"})]


@pytest.mark.parametrize(
    ("module", "version", "differ"),
    [
        ("shop.orders", "v2", False),
        ("orders", "v2", False),
        ("", "v2", False),
        ("bills", "v1", False),
        ("bills", "v2", True),
        ("reorders", "v2", True),
    ],
)
def test_the_same_module_or_the_same_code_is_no_other_service(module: str, version: str, differ: bool) -> None:
    other = WorkerInfo("1", "host", 1, None, {"send": version}, 1, 1, modules={"send": module})
    assert bool(namesakes({"send": "orders"}, {"send": "v1"}, [other])) is differ


async def test_a_worker_warns_of_a_queue_that_no_workflow_uses(caplog: pytest.LogCaptureFixture) -> None:
    """The start line lists what the worker serves, and dags by their steps."""
    async with Stepfast("sqlite://") as app:
        app.queue("limited", concurrency=1)
        task(app, "send", returns=None, queue="mail")
        task(app, "other", returns=None)
        dag = app.dag("graph", queue="gpu")

        @dag.step
        async def train(ctx: Context) -> None: ...

        with caplog.at_level(logging.INFO, "stepfast"):
            async with app.worker(queues=["mial", "gpu", "limited"]):
                pass
            async with app.worker(queues=["mail"]):
                pass
    [warning] = [text for text in warnings(caplog) if "queue" in text]
    assert warning.startswith("queue 'mial' is the queue of no workflow here")
    assert warning.endswith("; did you mean 'mail'?")
    started = [record.getMessage() for record in caplog.records if " started: " in record.getMessage()]
    assert [line.rpartition(": ")[2] for line in started] == ["graph", "send"]
