"""Snapshots: what is replaced, and that none is left of a test that is gone."""

from __future__ import annotations

from pathlib import Path

from tests.support.snapshots import sections, steady

TESTS = Path(__file__).parents[1]


def test_what_differs_from_run_to_run_is_replaced() -> None:
    one, two = "0197a1b2-0000-7000-8000-000000000000", "0197a1b2-0000-7000-8000-000000000001"
    text = f"{two}  {one} {two}\n  took     12 ms at 2026-05-01 09:30:00.125 UTC  \nin 59 min 58 s"
    assert steady(text) == "<id 1>  <id 2> <id 1>\n  took  <span> at <time>\nin about 1 h\n"
    assert steady("at most 30 s", spans=True) == "at most 30 s\n"


def test_every_snapshot_belongs_to_a_test() -> None:
    files = list(TESTS.glob("*/snapshots/*.txt"))
    assert files
    for file in files:
        module = (file.parents[1] / f"test_{file.stem}.py").read_text()
        assert [name for name in sections(file) if f"def {name.partition('[')[0]}(" not in module] == [], file
