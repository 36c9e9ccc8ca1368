"""Check the import rules of the house: imports go downwards only, and only the store knows SQL.

integrations  →  testing  →  cli, console  →  diagrams, monitoring  →  app  →  worker, remote, telemetry  →  engine  →
store  →  model  →  errors, settings, cancellation, caller_thread, documents

A module may import from its own room and from any layer below. Two rooms on one level do not know each other,
except that the command line starts the console, and that drawings say times in the words of `monitoring`. Imports
for type checkers only (`if TYPE_CHECKING:`) are free: they make no dependency at run time. A file of the package
that belongs to no room is a violation, so that every new one gets its place here.

python tools/layering.py [folder of the package]
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = "stepfast"

#: Room (a module or sub-package directly below the package) → height.
HEIGHT = {
    "celery": 9,
    "django": 9,
    "langgraph": 9,
    "mcp": 9,
    "openai_agents": 9,
    "pydantic_ai": 9,
    "testing": 8,
    "cli": 7,
    "console": 7,
    "web": 7,
    "diagrams": 6,
    "monitoring": 6,
    "app": 5,
    "worker": 4,
    "remote": 4,
    "telemetry": 4,
    "engine": 3,
    "store": 2,
    "model": 1,
    "caller_thread": 0,
    "cancellation": 0,
    "documents": 0,
    "errors": 0,
    "settings": 0,
}
#: The files that make up the face are one room, and so is the command line however it is started.
ROOM = {
    "__init__": "app",
    "bulk": "app",
    "transports": "app",
    "compatibility": "app",
    "events": "app",
    "filters": "app",
    "info": "app",
    "log_context": "app",
    "queues": "app",
    "registry": "app",
    "replay": "app",
    "results": "app",
    "retention": "app",
    "run": "app",
    "runtime": "app",
    "schedules": "app",
    "starts": "app",
    "stats": "app",
    "callbacks": "app",
    "moving": "app",
    "checkpoints": "app",
    "conversations": "app",
    "questions": "app",
    "streams": "app",
    "sync": "app",
    "__main__": "cli",
}
#: Sideways imports that are meant.
#: A remote worker rides out trouble, uses threads and ends as a worker does; a worker knows nothing of it.
ALLOWED = {
    ("cli", "console"),
    ("diagrams", "monitoring"),
    ("remote", "worker"),
    ("settings", "errors"),
    ("caller_thread", "cancellation"),
    ("caller_thread", "errors"),
}

#: Each of these stands on a framework, and could live in a package of its own: it imports public modules only.
INTEGRATIONS = {room for room, height in HEIGHT.items() if height == 9}
PUBLIC = {"checkpoints", "console", "conversations", "errors", "settings", "telemetry", "testing", "web"}

DRIVERS = {
    "aiosqlite",
    "asyncmy",
    "asyncpg",
    "boto3",
    "botocore",
    "psycopg",
    "pymysql",
    "sqlite3",
    "sqlalchemy",
}
KNOWS_DATABASES = {"store", "remote"}

#: Statements, not words: prose may well say "select" or "update".
SQL = re.compile(
    r"\bSELECT\b[\s\S]+\bFROM\b"
    r"|\bINSERT\s+INTO\b"
    r"|\bUPDATE\b[\s\S]+\bSET\b"
    r"|\bDELETE\s+FROM\b"
    r"|\b(CREATE|ALTER|DROP)\s+(TABLE|INDEX|VIEW|SCHEMA)\b"
)


class Violation(NamedTuple):
    path: Path
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


class Import(NamedTuple):
    module: str  # absolute, e.g. "stepfast.store.store"
    line: int


def check(package: Path) -> list[Violation]:
    """Every violation in the package at this folder, by file and line."""
    found = []
    for path in sorted(package.rglob("*.py")):
        found += check_file(path, package)
    return found


def check_file(path: Path, package: Path) -> list[Violation]:
    parts = path.relative_to(package).with_suffix("").parts
    room = room_of(parts)
    if room not in HEIGHT:
        return [Violation(path, 1, f"{room} has no place among the layers; give it one in tools/layering.py")]
    tree = ast.parse(path.read_text(), str(path))
    found = [Violation(path, line, message) for line, message in import_violations(tree, parts, room)]
    if room not in KNOWS_DATABASES:
        found += [Violation(path, line, "SQL outside store/ and remote/") for line in set(sql_lines(tree))]
    return sorted(found)


def room_of(parts: tuple[str, ...]) -> str:
    """The room of a module, given as its path below the package; of the package itself, the face."""
    first = parts[0] if parts else "__init__"
    return ROOM.get(first, first)


def import_violations(tree: ast.Module, parts: tuple[str, ...], room: str) -> Iterator[tuple[int, str]]:
    for module, line in imports(tree, parts):
        top, *below = module.split(".")
        if top in DRIVERS and room not in KNOWS_DATABASES:
            yield line, f"{room} imports the driver {top}; only store/ and remote/ may"
        if top != PACKAGE:
            continue
        target = room_of(tuple(below))
        if not may_import(room, target):
            yield line, f"{room} imports {module}, but {direction(room, target)}"
        elif room in INTEGRATIONS and target != room and below and below[0] not in PUBLIC:
            yield (
                line,
                f"{room} imports {module}; integrations import from stepfast itself and {', '.join(sorted(PUBLIC))}",
            )


def may_import(room: str, target: str) -> bool:
    if room == target or (room, target) in ALLOWED:
        return True
    return target in HEIGHT and HEIGHT[target] < HEIGHT[room]


def direction(room: str, target: str) -> str:
    if target not in HEIGHT:
        return f"{target} has no place among the layers"
    return f"{target} lies {'beside' if HEIGHT[target] == HEIGHT[room] else 'above'} it"


def imports(tree: ast.Module, parts: tuple[str, ...]) -> Iterator[Import]:
    """Every import that happens at run time, also those inside functions."""
    for node in at_run_time(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from imported_from(node, parts)


def imported_from(node: ast.ImportFrom, parts: tuple[str, ...]) -> Iterator[Import]:
    base = node.module or ""
    if node.level:
        above = (PACKAGE, *parts)[: -node.level]
        base = ".".join((*above, *filter(None, [node.module])))
    if base != PACKAGE:
        yield Import(base, node.lineno)
        return
    # `from stepfast import settings` means the module of that name; `from stepfast import Stepfast` the face.
    for alias in node.names:
        yield Import(f"{base}.{alias.name}" if alias.name in HEIGHT else base, node.lineno)


def at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    """The tree without the bodies of `if TYPE_CHECKING:`."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and is_type_checking(child.test):
            for other in child.orelse:
                yield from at_run_time(other)
        else:
            yield from at_run_time(child)


def is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else test.id if isinstance(test, ast.Name) else ""
    return name == "TYPE_CHECKING"


def sql_lines(tree: ast.Module) -> Iterator[int]:
    documentation = {id(text) for text in docstrings(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            if SQL.search(node.value):
                yield node.lineno
        elif isinstance(node, ast.JoinedStr) and SQL.search(constant_parts(node)):
            yield node.lineno


def constant_parts(node: ast.JoinedStr) -> str:
    """An f-string without its holes: a statement may be spread over parts of which none matches alone."""
    return " … ".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value


def main(arguments: list[str]) -> int:
    package = Path(arguments[0]) if arguments else Path("src") / PACKAGE
    if not package.is_dir():
        print(f"layering: there is no folder {package}", file=sys.stderr)
        return 2
    violations = check(package)
    for violation in violations:
        print(violation)
    if not violations:
        print("layering: imports go downwards, SQL stays in the store")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
