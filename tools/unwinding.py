"""Check that a cancellation comes through: nothing swallows it, and Postgres is left by one way only.

An ``except`` that can catch ``CancelledError`` (``BaseException``, a bare one, its own name) raises again, or says on
its line why the cancellation may end there: ``# ends here: …``. ``suppress`` takes neither. Where drivers are used
(those of Postgres and MySQL in ``store`` and ``remote``) only ``transactions.py`` begins transactions, borrows
connections and gives them up, because what a driver does by itself hides a cancellation behind an error of its own.

python tools/unwinding.py [folder of the package]
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

CAUGHT = {"BaseException", "CancelledError"}
REASON = "# ends here: "

#: The folders that talk to a driver.
WITH_DRIVERS = {("store", "postgres"), ("store", "mysql"), ("remote", "postgres"), ("remote", "mysql")}
#: What the driver offers, and where it may be used.
DRIVER = {
    "transaction": {
        "transactions.py",
        "ctx_transaction.py",
    },  # that of a user's function is given up by hand
    "acquire": {"transactions.py", "connections.py"},
    "release": {"transactions.py"},
    "terminate": {"transactions.py", "ctx_transaction.py", "store.py"},  # the last two: whole pools
}


def check(package: Path) -> list[str]:
    """Every violation, as a line to be printed."""
    found = []
    for path in sorted(package.rglob("*.py")):
        text = path.read_text()
        tree = ast.parse(text, str(path))
        found += [f"{path}:{line}: {what}" for line, what in swallowed(tree, text.splitlines())]
        if path.parent.parts[-2:] in WITH_DRIVERS:
            found += [f"{path}:{line}: {what}" for line, what in past_the_helper(tree, path.name)]
    return found


def swallowed(tree: ast.Module, lines: list[str]) -> Iterator[tuple[int, str]]:
    """Places where a cancellation ends without a reason."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and catches(node.type) and not raises(node):
            if REASON not in lines[node.lineno - 1]:
                yield node.lineno, f"a cancellation ends here: raise it again, or say why ({REASON}…)"
        elif isinstance(node, ast.Call) and name_of(node.func) == "suppress" and any(map(catches, node.args)):
            yield node.lineno, "suppress() swallows a cancellation here"


def catches(kind: ast.expr | None) -> bool:
    """Whether an ``except`` of this kind can catch a cancellation; without a kind it catches everything."""
    if kind is None:
        return True
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(name_of(one) in CAUGHT for one in kinds)


def raises(handler: ast.ExceptHandler) -> bool:
    return any(isinstance(node, ast.Raise) for statement in handler.body for node in ast.walk(statement))


def past_the_helper(tree: ast.Module, file: str) -> Iterator[tuple[int, str]]:
    """Calls of the driver that have to go through ``transactions.py``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if name in DRIVER and file not in DRIVER[name]:
                yield node.lineno, f".{name}() goes past transactions.py, which lets a cancellation through"


def name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def main(arguments: list[str]) -> int:
    package = Path(arguments[0]) if arguments else Path("src") / "stepfast"
    if not package.is_dir():
        print(f"unwinding: there is no folder {package}", file=sys.stderr)
        return 2
    violations = check(package)
    for violation in violations:
        print(violation)
    if not violations:
        print("unwinding: a cancellation comes through")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
