"""Loads ``.sql`` files of named, explained statements, and the errors that SQL itself writes into rows."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import pairwise
from typing import NamedTuple, Self

import msgspec

from ..model.status import TERMINAL
from ..model.stored import MOST_COUNTED
from .dialects import Dialect, Rendered, Source, arguments

FILES = (
    "runs.sql", "graphs.sql", "claiming.sql", "recording.sql", "standings.sql", "mail.sql", "workers.sql",
    "transact.sql", "schema.sql", "queues.sql", "limits.sql", "keeping.sql", "schedules.sql", "debouncing.sql",
    "streams.sql", "questions.sql", "callbacks.sql", "unique.sql", "events.sql", "attributes.sql", "checkpoints.sql",
    "sessions.sql", "forks.sql",
    "remote_steps.sql", "census.sql", "stats.sql", "audit.sql", "glances.sql",
)  # fmt: skip
"""Statements are in files of these names, those of a database and those that all share."""
OLDEST = "oldest_"
COUNT = "count_"
"""Before the name of a statement that lists runs: the number of those that it lists."""
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
FOLDER = resources.files(__package__ or "") / "sql"
"""Statements of all databases; in folders below it, those of one."""
_NAME = re.compile(r"^-- (name|override): (\w+)(?:\(((?:[^()]|\([^()]*\))*)\))?\n", re.MULTILINE)
"""The first line of a statement; the names of its arguments may take several."""
_ONLY = re.compile(r"^-- only in (\w+)\n(.*?)^-- end\n", re.MULTILINE | re.DOTALL)


def load_statements(package: str, filename: str, words: dict[str, str]) -> dict[str, str]:
    """The statements of one file by their names, as they are written."""
    return {written.name: fill(written.source.body, words) for written in _bodies(resources.files(package) / filename)}


class Each(str):
    """The text of a statement that is executed once for each row of an argument, whose columns come in its place."""

    number: int

    def __new__(cls, text: str, number: int) -> Self:
        """``number``: that of the argument, from 0."""
        made = super().__new__(cls, text)
        made.number = number
        return made


class _Written(NamedTuple):
    """A statement in a file."""

    name: str
    source: Source
    overrides: bool
    """Whether it says so itself."""


def _bodies(file: Traversable) -> Iterator[_Written]:
    """The statements of a file; none, if there is no such file."""
    parts = _NAME.split(file.read_text(encoding="utf-8")) if file.is_file() else [""]
    for kind, name, given, body in zip(parts[1::4], parts[2::4], parts[3::4], parts[4::4], strict=True):
        known = arguments(given.replace("--", "")) if given else ()
        for form, text in _forms(name, body):
            yield _Written(form, Source(known, text.strip().rstrip(";")), kind == "override")


def _forms(name: str, body: str) -> Iterator[tuple[str, str]]:
    """A statement by its own name, and its other forms by theirs."""
    yield name, _ONLY.sub("", body)
    for other in {found[1]: None for found in _ONLY.finditer(body)}:
        yield other, _ONLY.sub(lambda found: found[2] if found[1] == other else "", body)  # noqa: B023


def load_all(dialect: Dialect, words: dict[str, str]) -> dict[str, str]:
    """The texts of the statements of a database."""
    return {name: _text(statement) for name, statement in load_rendered(dialect, words).items()}


def _text(statement: Rendered) -> str:
    return statement.text if statement.each is None else Each(statement.text, statement.each)


def same_kind(old: str, new: str) -> str:
    """A changed text of a statement, executed as the one before."""
    return Each(new, old.number) if isinstance(old, Each) else new


def load_rendered(dialect: Dialect, words: dict[str, str]) -> dict[str, Rendered]:
    """The statements of a database. Those that list runs are there twice: from the newest run back, and under a name of
    their own from the oldest on. A second store with the same words need not read them."""
    return dict(_load(dialect, tuple(words.items())))


@functools.lru_cache(maxsize=16)
def _load(dialect: Dialect, pairs: tuple[tuple[str, str], ...]) -> dict[str, Rendered]:
    words = _SAID_ONCE | dict(pairs)
    statements = dict[str, Rendered]()
    for name, statement in _rendered(dialect).items():
        newest = fill(statement.text, words | _NEWEST_FIRST)
        oldest = fill(statement.text, words | _OLDEST_FIRST)
        statements[name] = statement._replace(text=newest)
        if newest != oldest:
            statements[OLDEST + name] = statement._replace(text=oldest)
            if name.startswith("runs"):
                statements[COUNT + name] = statement._replace(text=f"SELECT count(*) FROM ({newest.rstrip(' ;')}) AS c")
    return statements


@functools.lru_cache(maxsize=8)
def _rendered(dialect: Dialect) -> dict[str, Rendered]:
    """The statements of a database, with no words put in."""
    return {name: dialect.render(source) for name, source in sources(dialect).items()}


def sources(dialect: Dialect) -> dict[str, Source]:
    """What the statements of a database are rendered from: those of all, but for what it overrides, and its own."""
    every = {written.name: written.source for file in FILES for written in _bodies(FOLDER / file)}
    for written in (written for file in FILES for written in _bodies(FOLDER / dialect.name / file)):
        if written.overrides != (written.name in every):
            what = "overrides nothing" if written.overrides else "is there for all databases: say that it overrides it"
            raise ValueError(f"{written.name} of {dialect.name} {what}")
        every[written.name] = written.source
    return every


@functools.lru_cache(maxsize=8)
def load_migrations(dialect: Dialect) -> tuple[tuple[int, str, str], ...]:
    """(number, name, text) of every migration, in order, as a database has it. Words of a namespace are left. A second
    store of a process need not render them."""
    folder = FOLDER / dialect.name / "migrations"
    own = sorted(folder.iterdir(), key=lambda entry: entry.name) if folder.is_dir() else []
    found = list[tuple[int, str, str]]()
    for file in sorted((FOLDER / "migrations").iterdir(), key=lambda entry: entry.name):
        number, _, rest = file.name.partition("_")
        parts = [entry.read_text(encoding="utf-8") for entry in own if entry.name.startswith(f"{number}_")]
        text = _definitions(dialect, file.read_text(encoding="utf-8"), parts)
        found.append((int(number), rest.removesuffix(".sql"), text))
    return tuple(found)


_PART = re.compile(r"^-- (?:(before|after|instead of): (\w+)|at the end)\n", re.MULTILINE)
"""Where a part of a migration belongs that only one database has."""
_MAKES = re.compile(r"^CREATE (?:TABLE|VIEW|(?:UNIQUE )?INDEX) \{?(\w+)", re.MULTILINE)


def _definitions(dialect: Dialect, text: str, own: Iterable[str]) -> str:
    """A migration with the parts of one database. Each file begins with what is to be known about it."""
    heads, places = [text.partition("\n\n")[0]], dict[tuple[str, str], str]()
    for file in own:
        head, *parts = _PART.split(file)
        heads.append(head.strip())
        for where, name, part in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            place = (where or "at the end", name or "")
            places[place] = places.get(place, "") + part.strip() + "\n"
    done: list[str] = []
    for statement in split_statements(text.partition("\n\n")[2]):
        made = _MAKES.search(statement)
        name = made[1] if made else ""
        done += split_statements(places.pop(("before", name), ""))
        done += split_statements(places.pop(("instead of", name), statement))
        done += split_statements(places.pop(("after", name), ""))
    done += split_statements(places.pop(("at the end", ""), ""))
    if places:
        raise ValueError(f"parts of a migration of {dialect.name} that belong to no statement: {sorted(places)}")
    return "\n\n".join([*filter(None, heads), *(f"{dialect.definition(each)};" for each in done)]) + "\n"


def fill(text: str, words: dict[str, str]) -> str:
    """Put the words into their ``{places}``. Plain replacement: SQL has braces of its own."""
    for name, value in words.items():
        text = text.replace("{" + name + "}", value)
    return text


_PIECE = re.compile(r"--[^\n]*|'(?:[^']|'')*'|\"[^\"]*\"|(\$\w*\$).*?\1|;", re.DOTALL)
"""What a semicolon may stand in without ending a statement, and the semicolon that does."""


def split_statements(text: str) -> list[str]:
    """The statements of a script, also where bodies of functions, texts and comments have semicolons."""
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
