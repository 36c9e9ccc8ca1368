"""Loads ``.sql`` files of named, explained statements.

A statement begins at ``-- name: word``; the comment lines after it say what it is for and are kept, so that they show
up in the server's own logs. ``{schema}``, ``{now}``, ``{ended}`` (the statuses that are ends) and the direction of a
list are the only things ever put in, and none comes from a user unchecked. Lines from ``-- only in word`` to
``-- end`` are left out, but kept in a second form of the statement, which has that word for its name.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from importlib import resources
from itertools import pairwise

from ..model.status import TERMINAL

FILES = (
    "runs.sql", "graphs.sql", "claiming.sql", "recording.sql", "standings.sql", "mail.sql", "workers.sql",
    "transact.sql", "schema.sql", "queues.sql", "limits.sql", "keeping.sql", "schedules.sql", "debouncing.sql",
    "remote_steps.sql", "census.sql", "stats.sql", "audit.sql", "glances.sql",
)  # fmt: skip
"""Every database has its statements in files of these names."""
OLDEST = "oldest_"
"""The names of statements that list runs from the oldest on begin with this."""
_LISTS = ("runs", "runs_running", "runs_of_workflow", "runs_at_rest", "runs_tagged", "dags_shown_as")
_GLANCES = "glances.sql"
_NEWEST_FIRST = {
    "beyond": "<", "direction": "DESC", "edge": "g", "brink": "ffffffff-ffff-ffff-ffff-ffffffffffff", "back": "ASC",
    "last": "min",
}  # fmt: skip
_OLDEST_FIRST = {
    "beyond": ">", "direction": "ASC", "edge": "", "brink": "00000000-0000-0000-0000-000000000000", "back": "DESC",
    "last": "max",
}  # fmt: skip
_SAID_ONCE = {"ended": ", ".join(f"'{word}'" for word in sorted(TERMINAL))}
"""Words of the model that statements of every database use."""
_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_ONLY = re.compile(r"^-- only in (\w+)\n(.*?)^-- end\n", re.MULTILINE | re.DOTALL)


def load_statements(package: str, filename: str, words: dict[str, str]) -> dict[str, str]:
    """The statements of one file by their names."""
    parts = _NAME.split(_read(package, filename))
    bodies = [form for pair in zip(parts[1::2], parts[2::2], strict=True) for form in _forms(*pair)]
    return {name: fill(body, words).strip().rstrip(";") for name, body in bodies}


def _forms(name: str, body: str) -> Iterator[tuple[str, str]]:
    """A statement by its own name, and its other forms by theirs."""
    yield name, _ONLY.sub("", body)
    for other in {found[1]: None for found in _ONLY.finditer(body)}:
        yield other, _ONLY.sub(lambda found: found[2] if found[1] == other else "", body)  # noqa: B023


def load_all(package: str, words: dict[str, str]) -> dict[str, str]:
    """The statements of a store. Those that list runs, which the first file and the glances hold, are there twice: from
    the newest run back, and under a name of their own from the oldest on. A second store with the same words need not
    read them."""
    return dict(_load_all(package, tuple(words.items())))


@functools.lru_cache(maxsize=16)
def _load_all(package: str, pairs: tuple[tuple[str, str], ...]) -> dict[str, str]:
    words = _SAID_ONCE | dict(pairs)
    statements = {
        name: text for file in FILES for name, text in load_statements(package, file, words | _NEWEST_FIRST).items()
    }
    turned = load_statements(package, FILES[0], words | _OLDEST_FIRST)
    statements |= {OLDEST + name: text for name, text in turned.items() if name in _LISTS}
    glances = load_statements(package, _GLANCES, words | _OLDEST_FIRST)
    return statements | {OLDEST + name: text for name, text in glances.items() if text != statements[name]}


def load_migrations(package: str) -> Iterator[tuple[int, str, str]]:
    """(number, name, text) of every migration, in order."""
    folder = resources.files(package) / "migrations"
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".sql"):
            number, _, rest = file.name.partition("_")
            yield int(number), rest.removesuffix(".sql"), file.read_text(encoding="utf-8")


def fill(text: str, words: dict[str, str]) -> str:
    """Put the words into their ``{places}``. Plain replacement: SQL has braces of its own."""
    for name, value in words.items():
        text = text.replace("{" + name + "}", value)
    return text


def split_script(text: str) -> list[str]:
    """The statements of a migration. Migrations keep semicolons at line ends for this purpose only."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
    return [part.strip() for part in re.split(r";[ \t]*(?:--[^\n]*)?(?:\n|$)", "\n".join(lines)) if part.strip()]


_PIECE = re.compile(r"--[^\n]*|'(?:[^']|'')*'|\"[^\"]*\"|(\$\w*\$).*?\1|;", re.DOTALL)
"""What a semicolon may stand in without ending a statement, and the semicolon that does."""


def split_statements(text: str) -> list[str]:
    """The statements of a Postgres script, also where bodies of functions, texts and comments have semicolons."""
    ends = [0, *(piece.end() for piece in _PIECE.finditer(text) if piece[0] == ";"), len(text)]
    parts = [text[start:end].strip().removesuffix(";") for start, end in pairwise(ends)]
    return [part for part in parts if re.sub(r"--[^\n]*", "", part).strip()]


def _read(package: str, filename: str) -> str:
    return (resources.files(package) / filename).read_text(encoding="utf-8")
