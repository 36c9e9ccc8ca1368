"""The source archive: whoever unpacks it can run the tests and `make check`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_archive_has_every_folder_that_tests_and_targets_use() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"]
    imported = {
        name
        for file in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"^\s*(?:from|import) (\w+)", file.read_text(), re.MULTILINE)
    }
    named = set(re.findall(r"\b(\w+)/\w", (ROOT / "Makefile").read_text()))
    used = {name for name in imported | named if (ROOT / name).is_dir()}
    assert {"bench", "tests", "tools"} <= used
    assert {f"/{name}" for name in used} <= set(settings["include"])
