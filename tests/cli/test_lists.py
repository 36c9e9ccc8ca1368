"""The table of runs on a terminal: inputs are shown as far as there is room."""

from __future__ import annotations

import os
import shutil
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from stepfast import RunInfo
from stepfast.cli import show
from stepfast.info import ErrorInfo

NOW = datetime(2026, 5, 1, tzinfo=UTC)


def run(**changes: Any) -> RunInfo:
    """A run as it is listed."""
    fields: dict[str, Any] = dict.fromkeys(RunInfo.__dataclass_fields__) | {
        "id": "0197a1b2-0000-7000-8000-000000000000", "workflow": "ship", "queue": "ship", "status": "completed",
        "attempt": 1, "tags": [], "left_out": (), "created_at": NOW, "read_at": NOW,
    }  # fmt: skip
    return RunInfo(**fields | changes)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The rows of the table, in place of the terminal."""
    rows: list[list[str]] = []
    monkeypatch.setattr(show, "write_table", lambda columns, found: rows.extend(found))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    return rows


@pytest.mark.parametrize(("width", "fits"), [(200, True), (70, False)])
def test_inputs_are_shown_where_there_is_room(
    shown: list[list[str]], monkeypatch: pytest.MonkeyPatch, width: int, fits: bool
) -> None:
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((width, 24)))
    show.write_runs([run(input={"order": "o-1"}), run(input={"order": "o-2"}, key="k")])
    assert [row[9] for row in shown] == (['{"order":"o-1"}', ""] if fits else ["", ""])


def test_an_input_too_large_for_a_list_is_said_to_be(shown: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((200, 24)))
    show.write_runs([run(left_out=("input",)), run(left_out=("output",))])
    assert [row[9] for row in shown] == ["(large)", ""]


def test_a_sealed_input_and_an_error_that_is_not_final_are_left_out(
    shown: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((200, 24)))
    error = ErrorInfo("ValueError", "no\nstock")
    sealed = {"type": "Sealed", "message": "stored through a codec; --app module:app shows it"}
    show.write_runs([run(input=sealed, status="failed", error=error), run(status="queued", error=error)])
    assert [row[9:] for row in shown] == [["", "ValueError: no stock"], ["", ""]]
