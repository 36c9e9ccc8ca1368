"""Check that things stay small: files, functions, and what constructors are made of.

A file of more than 500 lines holds more than one idea, a function of more than 60 lines does more than one thing, and
whoever is built of more than six things is tied to too many. The limits are the most that may be, not what to aim for.

python tools/sizes.py [folder of the package]
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

LINES_OF_A_FILE = 500
LINES_OF_A_FUNCTION = 60
ARGUMENTS = 6

ROOMS = ("engine", "remote", "store", "worker")
"""Where constructors are counted. What users call has as many options as they need."""
PROMISED = {"RemoteWorker"}
"""Calls of users that are in one of these rooms all the same."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def check(package: Path) -> list[str]:
    """Everything that is too large, as a line to be printed."""
    found = []
    for path in sorted([*package.rglob("*.py"), *package.rglob("*.sql")]):
        text = path.read_text()
        lines = text.count("\n")
        if lines > LINES_OF_A_FILE:
            found.append(f"{path}: {lines} lines, more than {LINES_OF_A_FILE}: cut it along an idea")
        if path.suffix == ".py":
            counted = path.relative_to(package).parts[0] in ROOMS
            found += [f"{path}:{line}: {what}" for line, what in too_large(ast.parse(text, str(path)), counted)]
    return found


def too_large(tree: ast.Module, counted: bool) -> Iterator[tuple[int, str]]:
    """Functions that are too long; and, where they are counted, constructors that take too much."""
    for node in ast.walk(tree):
        if isinstance(node, Function) and (lines := length(node)) > LINES_OF_A_FUNCTION:
            yield node.lineno, f"{node.name} has {lines} lines, more than {LINES_OF_A_FUNCTION}: give its parts names"
        if isinstance(node, ast.ClassDef) and counted and node.name not in PROMISED:
            for made in (part for part in node.body if isinstance(part, Function) and part.name == "__init__"):
                if (count := arguments(made)) > ARGUMENTS:
                    yield made.lineno, f"{node.name} is made of {count} things, more than {ARGUMENTS}: group them"
            if (count := fields(node)) > ARGUMENTS:
                yield node.lineno, f"{node.name} is made of {count} things, more than {ARGUMENTS}: group them"


def length(function: Function) -> int:
    """How many lines a function has, with its docstring."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def arguments(function: Function) -> int:
    """How many things a constructor is given."""
    given = function.args
    return len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs) - 1


def fields(node: ast.ClassDef) -> int:
    """How many things a dataclass is given; rows and other plain values are tuples or structs, and may have more."""
    if not any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        return 0
    return sum(isinstance(part, ast.AnnAssign) and "ClassVar" not in ast.unparse(part.annotation) for part in node.body)


def main(arguments: list[str]) -> int:
    package = Path(arguments[0]) if arguments else Path("src") / "stepfast"
    if not package.is_dir():
        print(f"sizes: there is no folder {package}", file=sys.stderr)
        return 2
    found = check(package)
    for violation in found:
        print(violation)
    if not found:
        print("sizes: files, functions and constructors are within their limits")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
