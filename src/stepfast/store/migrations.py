"""Numbered migrations, the same for every database: which are there, which are due, who may work with the result.

Each file says in its first line, ``-- compatible from: N``, from which version of the code on its tables can be worked
with. Migrations within a major version only add, so that number rarely moves and old and new code run side by side.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from ..errors import NamespaceMoved, SchemaError
from .answers import SchemaState
from .dialects import Dialect
from .sql import fill, load_migrations


class Migration(NamedTuple):
    """One numbered script that makes or changes tables."""

    number: int
    name: str
    text: str
    compatible_from: int


def migrations(dialect: Dialect, words: dict[str, str]) -> list[Migration]:
    """Every migration this code knows, in order. A second store with the same words need not fill them in."""
    return list(_filled(dialect, tuple(words.items())))


@functools.lru_cache(maxsize=16)
def _filled(dialect: Dialect, pairs: tuple[tuple[str, str], ...]) -> tuple[Migration, ...]:
    result = []
    for number, name, text in load_migrations(dialect):
        match = re.match(r"-- compatible from: (\d+)\n", text)
        if match is None:
            raise SchemaError(f"migration {number:04}_{name} does not say what it is compatible from")
        result.append(Migration(number, name, fill(text, dict(pairs)), int(match[1])))
    return tuple(result)


_MADE = re.compile(r"^CREATE (?:OR REPLACE )?(TABLE|VIEW|FUNCTION) ([^\s(]+)", re.MULTILINE)


OTHERWISE_MADE = (
    "run `stepfast migrate`. If it finds nothing to do, a newer Stepfast has made them (update it here), or they were "
    "changed by hand (restore what is missing)"
)
"""What to do where a statement met tables that it does not know."""


def made_by(known: list[Migration], kind: str) -> list[str]:
    """The names of what the migrations make: ``TABLE``, ``VIEW`` or ``FUNCTION``. Indexes go with their tables."""
    found = [match for migration in known for match in _MADE.findall(migration.text)]
    return sorted({name for what, name in found if what == kind})


MOVED, FILLED = "moved", "filled"
"""The words in ``meta`` that say that a namespace was moved to another database, or is being filled from one."""


WAS_MOVED, IS_FILLED = "this namespace was moved", "this namespace is being filled"
"""How the errors begin that triggers raise in such a namespace."""


def move_in(said: str) -> NamespaceMoved | None:
    """The error of a trigger, if it is in what a database said."""
    found = re.search(f"(?:{WAS_MOVED}|{IS_FILLED})[^\n]*", said)
    return None if found is None else NamespaceMoved(found[0])


def state_of(known: list[Migration], meta: Mapping[str, str]) -> SchemaState:
    """How tables of which ``meta`` says this stand to the code that knows these migrations. It is empty without
    tables."""
    version, compatible_from = (int(meta.get(name, 0)) for name in ("version", "compatible_from"))
    pending = [f"{m.number:04}_{m.name}" for m in known if m.number > version]
    mark = meta.get(MOVED, meta.get(FILLED))
    said = None if mark is None else str(msgspec.json.decode(mark)["said"])
    return SchemaState(version, known[-1].number, compatible_from, pending, said)


def due(known: list[Migration], state: SchemaState) -> list[Migration]:
    """The migrations that tables which stand like this have yet to see."""
    return known[len(known) - len(state.pending) :]


def meta_of(migration: Migration) -> dict[str, str]:
    """What `meta` says of the tables once a migration was applied."""
    return {"version": str(migration.number), "compatible_from": str(migration.compatible_from)}


def script_of(known: list[Migration], statements: dict[str, str]) -> str:
    """All migrations as one text, for the database's own shell."""
    parts = [statements["script_head"] + ";"]
    parts += [f"-- {m.number:04}_{m.name}\n{m.text}" for m in known]
    parts.append(fill(statements["script_tail"], meta_of(known[-1])) + ";")
    return "\n\n".join(parts) + "\n"


def refuse_too_new(state: SchemaState) -> None:
    """Old code must not write into tables it does not understand, and no code into those that were moved."""
    if state.moved is not None:
        raise NamespaceMoved(state.moved)
    if state.compatible_from > state.newest:
        raise SchemaError(
            f"the tables are at version {state.version} and need code that knows at least version "
            f"{state.compatible_from}; this code knows {state.newest}: update Stepfast here"
        )


def refuse_to_drop(state: SchemaState) -> None:
    """Tables are dropped by name, and this code does not know the names that newer code has added."""
    if state.version > state.newest:
        raise SchemaError(
            f"the tables are at version {state.version}, this code knows {state.newest} and would leave some of them "
            "behind: update Stepfast here, then reset"
        )


def refuse_missing(state: SchemaState, namespace: str) -> None:
    """Without the tables nothing works; say how to make them."""
    if state.pending:
        what = "there are no Stepfast tables" if state.version == 0 else "the Stepfast tables are not up to date"
        raise SchemaError(
            f"{what} in namespace {namespace!r} (pending: {', '.join(state.pending)}): run `stepfast migrate`"
        )
