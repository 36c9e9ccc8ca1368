"""Times in and out, as people write and read them."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import typer

import stepfast
from stepfast.cli import command
from stepfast.cli.output import write_json, write_value
from stepfast.cli.worker import JsonLines, Lines
from stepfast.errors import ConfigurationError
from stepfast.model.cron import clock
from stepfast.model.graph import APPROVAL, STEP, DagStep
from stepfast.monitoring.text import ago, lasting, listed, parse_time, printable, retries_of, span

PACKAGE = Path(stepfast.__file__).parent


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90), ("0.5", 0.5), ("0", 0), ("90s", 90), ("500ms", 0.5), ("5m", 300), ("5 min", 300), ("2h", 7200),
        ("1d", 86400), ("1w", 604800), ("1h30m", 5400), ("1H", 3600), (" 1.5h ", 5400),
    ],
)  # fmt: skip
def test_spans(text: str, seconds: float) -> None:
    assert span(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "-5", "5x", "h", "1h30", "nan", "inf", "1e999"])
def test_what_is_no_span(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a time"):
        span(text)


def test_moments() -> None:
    assert parse_time("2030-01-31T09:30+01:00") == datetime(2030, 1, 31, 8, 30, tzinfo=UTC)
    assert parse_time("2030-01-31T09:30Z") == datetime(2030, 1, 31, 9, 30, tzinfo=UTC)
    assert parse_time("2030-01-31 09:30:00 UTC") == datetime(2030, 1, 31, 9, 30, tzinfo=UTC)
    assert parse_time("2030-01-31 09:30") == datetime(2030, 1, 31, 9, 30).astimezone()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"), (0.04, "40 ms"), (3.24, "3.2 s"), (3, "3 s"), (45.2, "45 s"), (59.6, "1 min"), (65, "1 min 5 s"),
        (600, "10 min"), (3725, "1 h 2 min"), (7200, "2 h"), (90000, "1 d 1 h"), (9000000, "104 d"), (-1, "0 ms"),
    ],
)  # fmt: skip
def test_how_long(seconds: float, text: str) -> None:
    assert lasting(seconds) == text


def test_a_time_is_shown_in_utc_wherever_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is shown can be typed."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        when = datetime(2030, 1, 31, 9, 30, tzinfo=timezone(timedelta(hours=1)))
        assert clock(when) == "2030-01-31 08:30:00 UTC"
        assert parse_time(clock(when)) == when
        record = logging.makeLogRecord({"msg": "so", "created": when.timestamp(), "msecs": 5})
        assert Lines("%(asctime)s %(message)s").format(record) == "2030-01-31 08:30:00.005Z so"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_no_other_place_formats_times_for_people() -> None:
    """One rule: ``model.ticks.clock``; the ticks of a schedule are in its own zone; a drawing names its zone once."""
    pattern = r"strftime|:%[YHm][-:}]|:%d |\.astimezone\(\)"
    found = [
        str(file.relative_to(PACKAGE))
        for folder in ("cli", "console", "monitoring", ".")
        for file in sorted((PACKAGE / folder).glob("*.py" if folder == "." else "**/*.py"))
        if re.search(pattern, file.read_text())
    ]
    assert found == ["monitoring/text.py"]


def test_how_long_ago() -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    assert ago(now - timedelta(seconds=3), now) == "3 s ago"
    assert ago(now + timedelta(seconds=12), now) == "in 12 s"


@pytest.mark.parametrize(
    ("kind", "retries", "text"),
    [
        (STEP, 0, "no retries"), (STEP, 1, "1 retry"), (STEP, 2, ""), (STEP, 3, "3 retries"), (STEP, None, ""),
        (APPROVAL, 0, ""),
    ],
)  # fmt: skip
def test_the_usual_retries_of_a_step_go_without_saying(kind: str, retries: int | None, text: str) -> None:
    assert retries_of(DagStep("a", kind=kind, retries=retries)) == text


def test_lists() -> None:
    assert [listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"]), listed([])] == [
        "a", "a and b", "a, b and c", "none",
    ]  # fmt: skip


CONTROLS = "".join(map(chr, [*range(32), *range(127, 160)]))


@pytest.mark.parametrize("write", [write_json, write_value])
def test_json_holds_nothing_that_a_terminal_obeys(
    write: Callable[[Any], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """And means what it meant."""
    write({"a": CONTROLS})
    text = capsys.readouterr().out
    assert not [each for each in text if each in CONTROLS and each != "\n"]
    assert json.loads(text) == {"a": CONTROLS}


def test_lines_hold_nothing_that_a_terminal_obeys() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "failed: %s", (f"{CONTROLS}\ud800",), None)
    line = Lines("%(message)s").format(record)
    assert not [each for each in line if each in CONTROLS and each not in "\t\n"]
    assert line.isprintable() or line == printable(line)
    line.encode()


def test_a_line_with_half_a_character_is_written_all_the_same() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "no %s", ("a\ud800b",), None)
    record.run_id = "r\udfff"
    line = json.loads(JsonLines().format(record))
    assert (line["message"], line["run_id"], line["level"]) == ("no a\\ud800b", "r\\udfff", "info")


def test_the_command_line_says_beside_the_option_what_is_no_time() -> None:
    with pytest.raises(typer.BadParameter, match="is not a time"):
        command.span("soon")
    with pytest.raises(typer.BadParameter, match="is not a time"):
        command.moment("soon")
    assert command.span("2h") == 7200
