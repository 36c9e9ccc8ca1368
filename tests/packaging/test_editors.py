"""Editors and the formatter agree on how a line looks."""

from __future__ import annotations

import configparser
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_editors_and_the_formatter_have_the_same_line_length() -> None:
    settings = configparser.ConfigParser()
    settings.read_string("[top]\n" + (ROOT / ".editorconfig").read_text())
    ruff = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]
    assert settings["*"]["max_line_length"] == str(ruff["line-length"])
    assert settings["*"]["indent_size"] == str(ruff.get("indent-width", 4))
