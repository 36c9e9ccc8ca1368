"""The ledger of the storms: what is appended is read, whoever was killed while he wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.judge.ledger import ANSWERS, SIGNALS, Ledger


def test_a_line_that_was_torn_does_not_spoil_the_next_one(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.append("acts", {"at": 1, "run": "a"})
    with (tmp_path / "acts").open("a") as file:
        file.write('{"at":2,"run":"b","needs":3,')  # up to the end of a page
    ledger.append("acts", {"at": 3, "run": "c"})
    with (tmp_path / "acts").open("a") as file:
        file.write('{"at":4,')  # and nobody after it
    assert [entry["run"] for entry in ledger.read("acts")] == ["a", "c"]
    ledger.close()


def test_what_is_no_entry_at_all_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "acts").write_text("nonsense\n")
    with pytest.raises(json.JSONDecodeError):
        Ledger(tmp_path).read("acts")


def test_a_signal_that_a_run_comes_to_again_was_sent_when_it_first_came_to_it(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for _ in range(2):
        ledger.sends("run", "echo", "same")
        ledger.signalled("same")
    lines = list(ledger.read(SIGNALS))
    [signal] = ledger.signals()
    assert len(lines) == 2
    assert (signal.at, signal.acknowledged) == (lines[0]["at"], next(iter(ledger.read(ANSWERS)))["at"])
    ledger.close()
