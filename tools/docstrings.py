"""Check that docstrings say something: one of fewer than four words names no subject, or says nothing of it.

"Give the slot back." will do, and "It goes on." will not. Docstrings of modules, classes and functions count, and the
texts below a constant or a field.

python tools/docstrings.py [folder of the package]
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

FEWEST = 4


def check(package: Path) -> list[str]:
    """Every docstring that is too short, as a line to be printed."""
    return [
        f"{path}:{text.lineno}: {text.value!r} has fewer than {FEWEST} words: say what is meant, with its subject"
        for path in sorted(package.rglob("*.py"))
        for text in docstrings(ast.parse(path.read_text(), str(path)))
        if len(str(text.value).split()) < FEWEST
    ]


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """The docstrings of a module, in the order in which the tree is walked."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if node.body and (text := as_text(node.body[0])) is not None:
                yield text
            for field, below in pairwise(node.body):
                if isinstance(field, ast.Assign | ast.AnnAssign) and (text := as_text(below)) is not None:
                    yield text


def as_text(statement: ast.stmt) -> ast.Constant | None:
    """The text that a statement is, if it is nothing else."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


def main(arguments: list[str]) -> int:
    package = Path(arguments[0]) if arguments else Path("src") / "stepfast"
    if not package.is_dir():
        print(f"docstrings: there is no folder {package}", file=sys.stderr)
        return 2
    found = check(package)
    for violation in found:
        print(violation)
    if not found:
        print(f"docstrings: each has at least {FEWEST} words")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
