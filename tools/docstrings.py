"""Check that docstrings say something: one of fewer than four words names no subject, or says nothing of it.

"Give the slot back." will do, and "It goes on." will not. Docstrings of modules, classes and functions count, and the
texts below a constant or a field. A docstring of a class or a function must not begin with a word that stands for
something said elsewhere, as in "The same for lists": it is read alone. Nor may it be a short sentence like "Let it go
on." or "Whether it is ready." The text below a field is read with its class.

python tools/docstrings.py [folder of the package]
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

FEWEST = 4
SUBJECTLESS = re.compile(r"(The same|Those|It|Its|One of them)\b")
POINTING = re.compile(
    r"((Let|Call|Hold|Give|End|Send|Take) (it|them|these)|(Whether|How|Where|When) (it|these|they))\b"
)
"""These may point at something that a longer sentence goes on to name, but a short one does not."""
ENOUGH_TO_NAME = 8


def check(package: Path) -> list[str]:
    """Every docstring that is too short or begins without a subject, as a line to be printed."""
    found = []
    for path in sorted(package.rglob("*.py")):
        tree = ast.parse(path.read_text(), str(path))
        found += [
            f"{path}:{text.lineno}: {text.value!r} has fewer than {FEWEST} words: say what is meant, with its subject"
            for text in docstrings(tree)
            if len(str(text.value).split()) < FEWEST
        ]
        found += [
            f"{path}:{text.lineno}: {text.value!r} does not name its subject: it cannot be read alone"
            for text in docstrings_of_code(tree)
            if len(str(text.value).split()) >= FEWEST and is_subjectless(str(text.value))
        ]
    return found


def is_subjectless(text: str) -> bool:
    """Whether a docstring begins with a word that stands for something else, and does not go on to say for what."""
    first = re.split(r"(?<=[.!?])\s", text, maxsplit=1)[0]
    return bool(SUBJECTLESS.match(text) or (POINTING.match(text) and len(first.split()) < ENOUGH_TO_NAME))


def docstrings_of_code(tree: ast.Module) -> Iterator[ast.Constant]:
    """The docstrings of the classes and functions of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = as_text(node.body[0])
            if text is not None:
                yield text


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
        print(f"docstrings: each has at least {FEWEST} words, and those of code name their subject")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
