"""The vectors of the contract, and the worker in PHP that the documents show, hold here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from stepfast.engine.remote_step import remote_order
from stepfast.errors import ConfigurationError
from stepfast.model.remote_steps import RemoteStep, is_stale, read_error
from stepfast.remote import FatalError, Result, SqlTransport, Task
from stepfast.remote.protocol import (
    LONGEST,
    check_prefix,
    error_text,
    ids_of_step,
    no_handler,
    results_table,
    tasks_table,
)
from tests.remote.scene import quick_worker, results_of
from tests.remote.tables import TASK, Tables

CONTRACT = Path(__file__).parents[2] / "contract"


def vectors(name: str) -> Any:
    return json.loads((CONTRACT / "vectors" / f"{name}.json").read_text())


@pytest.mark.parametrize("case", vectors("groups"), ids=lambda case: case["group"])
def test_groups(case: dict[str, Any]) -> None:
    assert remote_order(case["name"], None, {"partition": case["partition"]}, 200).group == case["group"]


def step_of(run_id: str, seq: int) -> RemoteStep:
    return RemoteStep(
        run_id, seq, "id", "", 0, 1, 1, "echo", "echo", "durable", None, "sent", 1, 0, "{}", 0, None,
    )  # fmt: skip


def test_names() -> None:
    names = vectors("names")
    for case in names["step_ids"]:
        assert step_of(case["run_id"], case["seq"]).step_id == case["step_id"]
        assert ids_of_step(case["step_id"])["run_id"] == case["run_id"]
    for case in names["prefixes"]:
        assert (tasks_table(case["prefix"]), results_table(case["prefix"])) == (case["tasks"], case["results"])
    for prefix in names["refused_prefixes"]:
        with pytest.raises(ConfigurationError):
            check_prefix(prefix)
    assert names["longest"] == LONGEST


def test_errors() -> None:
    errors = vectors("errors")
    for case in errors["written"]:
        if case["raised"] == "FatalError":
            text = error_text(FatalError(case["message"], code=case["code"]))
        else:
            text = no_handler(case["message"])
        assert json.loads(text) == case["error"]
    for case in errors["read"]:
        assert read_error(json.dumps(case["error"]))[1] is case["retry"], case
    assert read_error(None)[1] and read_error("not JSON")[1]


@pytest.mark.parametrize("case", vectors("staleness"))
def test_staleness(case: dict[str, Any]) -> None:
    result = Result("r:0", "r", 0, case["status"], None, None, case["started_at"])
    assert is_stale(result, case["attempt"], case["dispatched_at"]) is case["stale"]


async def test_rows(url: str, tables: Tables) -> None:
    cases = vectors("rows")
    for case in cases:
        values = [case["task"][column] for column in TASK.split(", ")]
        await tables.fetch(f"INSERT INTO [tasks] ({TASK}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", *values)
    async with quick_worker(url):
        results = await results_of(tables, len(cases))
    for case in cases:
        result = results[case["task"]["step_id"]]
        assert result["status"] == ("failed" if "error" in case else "completed")
        assert (result["output"], result["error"]) == (case.get("output"), case.get("error"))


@pytest.mark.parametrize(("file", "url"), [("postgres.sql", "postgresql://u@h/d"), ("mysql.sql", "mysql://u@h/d")])
def test_the_tables_of_the_contract_are_those_that_are_made(file: str, url: str) -> None:
    assert (CONTRACT / file).read_text() == SqlTransport(url).script()


# -- the worker that the documents show


PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "remote-steps.md"
CLOCK, CLAIM, STAMP, DELETE, INSERT = re.findall(
    r"ask\('([A-Z][^']+)'", re.findall(r"```php\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
)


@pytest.mark.parametrize("url", ["mariadb"], indirect=True)
async def test_its_statements_serve_a_step(transport: SqlTransport, tables: Tables) -> None:
    await transport.dispatch([Task("run:0", "run", 0, "upper", "text", '"a"')])
    [(now,)] = await tables.fetch(CLOCK)
    [(step_id, run_id, seq, name, given, attempt)] = await tables.fetch(CLAIM, "text", now - 30000)
    assert (name, given, attempt) == ("upper", '"a"', 1)
    await tables.fetch(STAMP, "php-1", now, step_id)
    assert await tables.fetch(CLAIM, "text", now - 30000) == []
    await tables.fetch(DELETE, step_id, attempt, "php-2")
    assert await tables.tasks() == [step_id]
    await tables.fetch(DELETE, step_id, attempt, "php-1")
    assert await tables.tasks() == []
    for _ in range(2):  # a second result is passed over
        await tables.fetch(INSERT, step_id, run_id, seq, "completed", '"A"', None, now, now)
    [result] = await transport.results([step_id])
    assert (result.status, result.output, result.error, result.started_at) == ("completed", '"A"', None, now)
