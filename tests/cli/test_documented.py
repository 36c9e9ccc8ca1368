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
    """Those of the verb, or of all verbs in a group."""
    own = {name for parameter in command.params for name in parameter.opts if name.startswith("-")}
    return own.union(*map(options, getattr(command, "commands", {}).values()))


def names(command: Any, before: str = "") -> list[str]:
    """Every verb; those of a group by both words."""
    return [
        name
        for word, verb in command.commands.items()
        for name in (names(verb, f"{word} ") if hasattr(verb, "commands") else [before + word])
    ]


def verb_of(name: str) -> Any:
    found = COMMAND
    for word in name.split():
        found = found.commands[word]
    return found


@pytest.mark.parametrize("verb", names(COMMAND))
def test_every_verb_and_option_is_documented(verb: str) -> None:
    assert f"**`{verb}" in PAGE
    missing = [name for name in options(verb_of(verb)) if not re.search(rf"`{name}[` ]", PAGE)]
    assert not missing


def test_every_documented_option_exists() -> None:
    known = options(COMMAND) | {"--help"}
    assert set(re.findall(r"`(--[a-z-]+)", PAGE)) <= known
