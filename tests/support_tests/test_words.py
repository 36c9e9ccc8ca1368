"""The check that retired words are not used."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.words import check, main


@pytest.mark.parametrize(
    "line",
    [
        "It waits for nobody.",
        "Whatever fails is tried again.",
        "somebody's transaction",
        "def nobody_serves() -> None:",
        "class NobodyServes:",
        "NOBODY_SERVES = 1",
        "the wishes of operators",
        "heeding = True",
    ],
)
def test_retired_words_are_refused_also_within_identifiers(tmp_path: Path, line: str) -> None:
    (tmp_path / "page.md").write_text(f"# Page\n\n{line}\n")
    [refused] = check([tmp_path])
    assert refused.startswith(f"{tmp_path}/page.md:3: ")


@pytest.mark.parametrize("line", ["their heirloom", "a new attempt", "some body", "what ever", "dishwisher"])
def test_other_words_are_not(tmp_path: Path, line: str) -> None:
    (tmp_path / "page.md").write_text(line)
    assert check([tmp_path]) == []


def test_files_are_checked_by_name_and_folders_by_suffix(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    for name in ("code.py", "page.md", "data.json"):
        (tmp_path / "shop" / name).write_text("# nobody\n")
    assert len(check([tmp_path / "shop"])) == 2
    assert len(check([tmp_path / "shop" / "data.json"])) == 1
    assert main([str(tmp_path / "shop" / "page.md")]) == 1
    assert main([str(tmp_path / "nothing")]) == 2
    assert main([]) == 2


def test_a_place_may_be_allowed_as_long_as_it_is_there(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("prints NOBODY SERVES IT\n")
    allowed = {page.as_posix(): ("NOBODY SERVES IT",)}
    assert check([page], allowed) == []
    page.write_text("prints NO WORKER\n")
    [refused] = check([page], allowed)
    assert "'NOBODY SERVES IT'" in refused
