"""Loads ``.sql`` files of named, explained statements, and the errors that SQL itself writes into rows."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import pairwise

import msgspec

from ..model.status import TERMINAL
from ..model.stored import MOST_COUNTED

FILES = (
    "runs.sql", "graphs.sql", "claiming.sql", "recording.sql", "standings.sql", "mail.sql", "workers.sql",
    "transact.sql", "schema.sql", "queues.sql", "limits.sql", "keeping.sql", "schedules.sql", "debouncing.sql",
    "remote_steps.sql", "census.sql", "stats.sql", "audit.sql", "glances.sql",
)  # fmt: skip
"""Statements are in files of these names, those of a database and those that all share."""
OLDEST = "oldest_"
"""The names of statements that list runs from the oldest on begin with this."""
_NEWEST_FIRST = {
    "beyond": "<", "direction": "DESC", "edge": "g", "brink": "ffffffff-ffff-ffff-ffff-ffffffffffff", "back": "ASC",
    "last": "min",
}  # fmt: skip
_OLDEST_FIRST = {
    "beyond": ">", "direction": "ASC", "edge": "", "brink": "00000000-0000-0000-0000-000000000000", "back": "DESC",
    "last": "max",
}  # fmt: skip
_SAID_ONCE = {
    "ended": ", ".join(f"'{word}'" for word in sorted(TERMINAL)),
    "most_counted": str(MOST_COUNTED),
    "next_claim": f"CASE WHEN r.claim BETWEEN 0 AND {MOST_COUNTED - 1} THEN r.claim + 1 ELSE 1 END",
}
"""Words of the model that statements of every database use."""
Translation = Callable[[str], str]
"""Makes a shared statement one of a database."""
SHARED = resources.files(__package__ or "") / "shared"
_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_ONLY = re.compile(r"^-- only in (\w+)\n(.*?)^-- end\n", re.MULTILINE | re.DOTALL)


def load_statements(package: str, filename: str, words: dict[str, str]) -> dict[str, str]:
    """The statements of one file by their names."""
    return {name: fill(body, words) for name, body in _bodies(resources.files(package) / filename)}


def _bodies(file: Traversable) -> Iterator[tuple[str, str]]:
    """The statements of a file, as they are written there; none, if there is no such file."""
    parts = _NAME.split(file.read_text(encoding="utf-8")) if file.is_file() else [""]
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        for form, text in _forms(name, body):
            yield form, text.strip().rstrip(";")


def _forms(name: str, body: str) -> Iterator[tuple[str, str]]:
    """A statement by its own name, and its other forms by theirs."""
    yield name, _ONLY.sub("", body)
    for other in {found[1]: None for found in _ONLY.finditer(body)}:
        yield other, _ONLY.sub(lambda found: found[2] if found[1] == other else "", body)  # noqa: B023


def _as_it_is(sql: str) -> str:
    """What Postgres makes of a shared statement."""
    return sql


def load_all(package: str, words: dict[str, str], translate: Translation = _as_it_is) -> dict[str, str]:
    """The statements of a store: its own, and the shared ones in its dialect. Those that list runs are there
    twice: from the newest run back, and under a name of their own from the oldest on. A second store with the same
    words need not read them."""
    return dict(_load_all(package, tuple(words.items()), translate))


@functools.lru_cache(maxsize=16)
def _load_all(package: str, pairs: tuple[tuple[str, str], ...], translate: Translation) -> dict[str, str]:
    words = _SAID_ONCE | dict(pairs)
    written = _written(package, translate)
    statements = {name: fill(body, words | _NEWEST_FIRST) for name, body in written.items()}
    turned = {name: fill(body, words | _OLDEST_FIRST) for name, body in written.items()}
    return statements | {OLDEST + name: text for name, text in turned.items() if text != statements[name]}


@functools.lru_cache(maxsize=8)
def _written(package: str, translate: Translation) -> dict[str, str]:
    """The statements of a store as they are written, with no words put in."""
    own = {name: body for file in FILES for name, body in _bodies(resources.files(package) / file)}
    shared = {name: translate(body) for file in FILES for name, body in _bodies(SHARED / file)}
    if twice := own.keys() & shared.keys():
        raise ValueError(f"shared by all databases, and in {package} as well: {', '.join(sorted(twice))}")
    return own | shared


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


def _error(kind: str, message: str) -> str:
    return msgspec.json.encode({"type": kind, "message": message, "retryable": False}).decode()


DEADLINE_ERROR = _error("DeadlineExceeded", "the run did not end before its deadline")
EXPIRED_ERROR = _error("Expired", "no worker picked the run up within its expires_in")
LOST_ERROR = _error(
    "WorkersLost", "too many workers died while executing this run, without a new record or a wait between them"
)
