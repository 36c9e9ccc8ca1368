"""The reference pages are complete: every setting, error, status, public name, table and column is there."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable

import pytest
from tools import settings_table

import stepfast
from bench.engines import ENGINES
from bench.scenarios import SCENARIOS
from stepfast import errors
from stepfast.info import Activity, ErrorInfo, RunInfo, StepInfo
from stepfast.model import status
from stepfast.run import Run
from stepfast.settings import Settings
from stepfast.store.dialects import POSTGRES, SQLITE, Dialect
from stepfast.store.sql import load_migrations
from stepfast.sync import SyncApp, SyncRun
from tests.docs.pages import ROOT

REFERENCE = ROOT / "docs" / "reference"


def words(page: str) -> set[str]:
    """Every name that a page writes as code."""
    text = re.sub(r"^ *```.*?^ *```", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    spans = re.findall(r"`([^`]+)`", text)
    return {word for span in spans for word in re.findall(r"\w+", span)}


def test_the_table_of_settings_is_the_one_in_the_code() -> None:
    page = (REFERENCE / "settings.md").read_text()
    assert page == settings_table.filled(page), "run: python tools/settings_table.py --write"


def test_every_setting_says_its_reason() -> None:
    reasons = settings_table.comments()
    missing = [field.name for field in dataclasses.fields(Settings) if not reasons.get(field.name)]
    assert not missing


UNITS = {"": 1, "s": 1, "days": 86_400, "kB": 1024, "MB": 1024**2, "%": 0.01}


def test_the_page_of_limits_says_what_the_settings_do() -> None:
    page = (REFERENCE / "limits-and-refusals.md").read_text()
    said = re.findall(r"(\d[\d ]*?) ?(s|days|kB|MB|%|) \(`(\w+)`\)", page)
    wrong = [
        name for number, unit, name in said if int(number.replace(" ", "")) * UNITS[unit] != getattr(Settings(), name)
    ]
    assert not wrong
    bounds = {field.name for field in dataclasses.fields(Settings) if field.name.startswith("max_")}
    assert bounds <= {name for _, _, name in said}


def test_every_error_is_listed() -> None:
    known = {
        name for name, value in vars(errors).items() if inspect.isclass(value) and value.__module__ == errors.__name__
    }
    assert known <= words("docs/reference/errors.md"), known - words("docs/reference/errors.md")


def test_errors_outside_the_public_names_are_marked() -> None:
    page = (REFERENCE / "errors.md").read_text()
    for line in re.findall(r"^\| `(\w+)` \|(.+)$", page, re.MULTILINE):
        name, text = line
        if hasattr(errors, name):
            assert (name in stepfast.__all__) != ("in `stepfast.errors`" in text), name


def test_every_status_and_reason_is_listed() -> None:
    page = (REFERENCE / "statuses.md").read_text()
    reasons = [value for name, value in vars(status).items() if name.startswith(("REASON_", "WAITING_"))]
    missing = [word for word in (*status.RUN_STATUSES, *reasons) if f"`{word}`" not in page]
    assert not missing


def test_every_public_name_is_listed() -> None:
    known = words("docs/reference/python.md") | words("docs/reference/errors.md")
    assert set(stepfast.__all__) <= known, set(stepfast.__all__) - known


@pytest.mark.parametrize(
    "kind",
    [stepfast.Stepfast, Run, stepfast.Context, stepfast.SyncContext, stepfast.DagContext, stepfast.DagSyncContext,
     RunInfo, StepInfo, Activity, ErrorInfo],
)  # fmt: skip
def test_every_public_member_is_listed(kind: type) -> None:
    members = {name for name in dir(kind) if not name.startswith("_")} - {"add_note", "with_traceback"}
    members |= {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    known = words("docs/reference/python.md")
    assert members <= known, f"{kind.__name__}: {sorted(members - known)}"


@pytest.mark.parametrize("function", [stepfast.Stepfast.__init__, stepfast.Stepfast.runs, stepfast.Stepfast.worker])
def test_every_parameter_is_listed(function: Callable[..., object]) -> None:
    parameters = {
        name
        for parameter in inspect.signature(function, eval_str=True).parameters.values()
        for name in (
            typing.get_type_hints(typing.get_args(parameter.annotation)[0])
            if parameter.kind is inspect.Parameter.VAR_KEYWORD
            else [parameter.name]
        )
    } - {"self"}
    known = words("docs/reference/python.md")
    assert parameters <= known, sorted(parameters - known)


def test_the_verbs_without_await_are_listed() -> None:
    known = words("docs/how-to/embed-a-worker.md")
    members = {name for kind in (SyncApp, SyncRun) for name in dir(kind) if not name.startswith("_")}
    members -= {"call", "forked", "stopped"}  # for the rest of the package
    assert members <= known, members - known


def test_every_engine_and_measure_of_the_benchmark_is_told() -> None:
    assert {*ENGINES, *SCENARIOS} <= words("bench/README.md"), {*ENGINES, *SCENARIOS} - words("bench/README.md")


# -- the schema -----------------------------------------------------------------------------------------------------


def sections() -> dict[str, set[str]]:
    """The names in each `### table` section of the schema page."""
    parts = re.split(r"^### `(\w+)`\n", (ROOT / "docs" / "schema.md").read_text(), flags=re.MULTILINE)
    found = {}
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        spans = re.findall(r"`([^`\n]+)`", re.split(r"^## ", text, flags=re.MULTILINE)[0])
        found[name] = {word for span in spans for word in re.findall(r"\w+", span)}
    return found


def schema(dialect: Dialect) -> str:
    text = "\n".join(text for _, _, text in load_migrations(dialect))
    return re.sub(r"--[^\n]*", "", text).replace("{schema}.", "").replace("{prefix}", "")


ONLY_ON_POSTGRES = {"turns"}


@pytest.mark.parametrize("dialect", [POSTGRES, SQLITE], ids=lambda dialect: dialect.name)
def test_every_table_and_column_is_described(dialect: Dialect) -> None:
    described = sections()
    tables = re.findall(r"CREATE TABLE (\w+) \((.*?)\n\)", schema(dialect), re.DOTALL)
    assert {name for name, _ in tables} == set(described) - (ONLY_ON_POSTGRES if dialect is SQLITE else set())
    for name, body in tables:
        columns = set(re.findall(r"^ {4}([a-z_]+) ", body, re.MULTILINE))
        assert columns <= described[name], f"{name}: {sorted(columns - described[name])}"


@pytest.mark.parametrize("dialect", [POSTGRES, SQLITE], ids=lambda dialect: dialect.name)
def test_every_view_and_index_is_named(dialect: Dialect) -> None:
    names = re.findall(r"CREATE (?:UNIQUE )?(?:VIEW|INDEX) (\w+)", schema(dialect))
    known = words("docs/schema.md")
    assert set(names) <= known, set(names) - known
