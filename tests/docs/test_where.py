"""CONTRIBUTING.md says in which file an idea is; so do these files exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_files_that_contributors_are_sent_to_are_there() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    table = page.partition("## Where is it?")[2].partition("\n## ")[0]
    named = re.findall(r"`([\w/]+\.py)`", table)
    assert len(table.strip().splitlines()) > 25
    assert [name for name in named if not (ROOT / "src" / "stepfast" / name).exists()] == []
