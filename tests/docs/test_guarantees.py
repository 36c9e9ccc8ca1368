"""Each promise names what tries to break it; what it names is there."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT

PAGE = (ROOT / "docs/guarantees.md").read_text()
PROMISES, EVIDENCE = PAGE.split("## What tries to break them")
_ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \| ([^|]*) \|$", re.MULTILINE)
STORMS, ROWS = (
    {row[0]: row for row in _ROW.findall(table)}
    for table in (EVIDENCE.split("| storm |")[1].split("\n\n")[0], EVIDENCE.split("| storm |")[0])
)


def test_every_promise_has_tests() -> None:
    promised = re.findall(r"^\*\*(\d+)\. ", PROMISES, re.MULTILINE)
    assert sorted(map(int, promised)) == list(range(1, len(promised) + 1))
    assert set(promised) <= set(ROWS)


def test_every_test_that_is_named_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", EVIDENCE)
    assert len(named) > 70
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_storm_that_is_named_is_told_of() -> None:
    for promise, _, what in list(ROWS.values())[1:]:
        named = set(what.partition(";")[0].split(", ")) - {"all storms", "seeds", "none"}
        assert named <= set(STORMS), promise
