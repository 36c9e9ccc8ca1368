"""Check that the engine, the workers and what they share with the application take time, timers, threads and chance
from their clock alone.

So whoever gives a worker another clock has all of it in hand: a clock that stands until it is moved, and chance that
comes from a seed. Turns of the event loop (``asyncio.sleep(0)``) and waits without a limit are no time.

python tools/clockwork.py [folder of the package]
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOMS = ("engine", "remote", "worker")
FACE = ("runtime.py", "starts.py")
"""What an application has for all of its workers and callers. How long a caller waits is real time."""
MADE_OF = {"engine/host.py", "worker/threads.py"}
"""The clock itself, and the threads that it gives."""

MODULES = {"concurrent", "queue", "random", "sched", "secrets", "time"}
"""Not imported at all; but a name of these may be, for its type."""
TYPES = {("random", "Random")}
CALLS = {
    "asyncio": {"timeout", "timeout_at", "to_thread", "wait_for"},
    "datetime": {"now", "today", "utcnow"},
    "os": {"urandom"},
    "threading": {"Barrier", "Condition", "Event", "Semaphore", "Thread", "Timer"},
    "uuid": {"uuid1", "uuid4"},
}
METHODS = {"call_at", "call_later", "run_in_executor"}
"""Of an event loop, whatever it is called."""
NAMES = {"Random", "Threads", "new_id"}
CLASSES = {"Clock", "Clockwork"}
"""A clock is an object: what is asked of its class is always the time of life."""


def check(package: Path) -> list[str]:
    """Every violation, as a line to be printed."""
    found = []
    rooms = [path for room in ROOMS for path in sorted((package / room).rglob("*.py"))]
    for path in (*rooms, *(path for name in FACE if (path := package / name).exists())):
        if path.relative_to(package).as_posix() not in MADE_OF:
            tree = ast.parse(path.read_text(), str(path))
            found += [f"{path}:{line}: {what} goes past the clock" for line, what in sorted(past_the_clock(tree))]
    return found


def past_the_clock(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Where time or chance comes from elsewhere, and by what."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names if name.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((node.lineno, f"{node.module}.{name.name}") for name in node.names if taken(node, name.name))
        elif isinstance(node, ast.Call) and (what := called(node)) is not None:
            yield node.lineno, f"{what}()"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in CLASSES:
            yield node.lineno, f"{node.value.id}.{node.attr}"


def taken(node: ast.ImportFrom, name: str) -> bool:
    """Whether this import brings a function of time or chance."""
    module = node.module or ""
    if module.split(".")[0] in MODULES:
        return (module, name) not in TYPES
    return name in CALLS.get(module, set()) and module != "datetime"


def called(node: ast.Call) -> str | None:
    """What a call takes time or chance from; None: from nowhere."""
    function = node.func
    if isinstance(function, ast.Name):
        return function.id if function.id in NAMES else None
    if not isinstance(function, ast.Attribute):
        return None
    of, name = name_of(function.value), function.attr
    if of == "asyncio" and name == "sleep":
        return None if is_turn(node) else "asyncio.sleep"
    if of == "asyncio" and name == "wait":
        return "asyncio.wait with a timeout" if any(word.arg == "timeout" for word in node.keywords) else None
    if name in CALLS.get(of, set()):
        return f"{of}.{name}"
    if name in METHODS or (name == "time" and of.endswith("loop")):
        return f"{of}.{name}"
    return None


def is_turn(node: ast.Call) -> bool:
    """Whether a sleep is only a turn of the event loop."""
    return len(node.args) == 1 and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0


def name_of(node: ast.expr) -> str:
    """The last name in what a method is called on."""
    if isinstance(node, ast.Call):
        return name_of(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def main(arguments: list[str]) -> int:
    package = Path(arguments[0]) if arguments else Path("src") / "stepfast"
    if not package.is_dir():
        print(f"clockwork: there is no folder {package}", file=sys.stderr)
        return 2
    violations = check(package)
    for violation in violations:
        print(violation)
    if not violations:
        print("clockwork: time, threads and chance come from one object")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
