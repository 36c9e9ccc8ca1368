"""The reference page names every verb and every option, and nothing that does not exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from stepfast.cli import cli

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text()
COMMAND: Any = typer.main.get_command(cli)


def options(command: Any) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts if name.startswith("-")}


@pytest.mark.parametrize("verb", COMMAND.commands)
def test_every_verb_and_option_is_documented(verb: str) -> None:
    assert f"**`{verb}" in PAGE
    missing = [name for name in options(COMMAND.commands[verb]) if not re.search(rf"`{name}[` ]", PAGE)]
    assert not missing


def test_every_documented_option_exists() -> None:
    known = options(COMMAND).union(*map(options, COMMAND.commands.values())) | {"--help"}
    assert set(re.findall(r"`(--[a-z-]+)", PAGE)) <= known
