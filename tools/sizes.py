"""Report sizes for people to judge, and refuse functions of more than 60 lines.

Reported are files of more than 800 lines, which may hold more than one subject, and lonely modules: shorter than 120
lines with a single importer, which may belong to that importer. Neither is an error.

python tools/sizes.py [folder of the package]
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from pathlib import Path

LINES_OF_A_FUNCTION = 60
LINES_OF_A_FILE = 800
LINES_OF_A_LONELY_MODULE = 120

Function = ast.FunctionDef | ast.AsyncFunctionDef


def long_functions(package: Path) -> list[str]:
    """Return a line for each function that is too long."""
    found = []
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(), str(path))):
            if isinstance(node, Function) and (lines := length(node)) > LINES_OF_A_FUNCTION:
                limit = f"more than {LINES_OF_A_FUNCTION}: give its parts names"
                found.append(f"{path}:{node.lineno}: {node.name} has {lines} lines, {limit}")
    return found


def length(function: Function) -> int:
    """Return the number of lines of a function, with its docstring."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def large_files(package: Path) -> list[str]:
    """Return a line for each file that a reader may want to divide."""
    files = sorted([*package.rglob("*.py"), *package.rglob("*.sql")])
    sizes = ((path, path.read_text().count("\n")) for path in files)
    return [f"large: {path} ({lines} lines)" for path, lines in sizes if lines > LINES_OF_A_FILE]


def lonely_modules(package: Path) -> list[str]:
    """Return a line for each small module that only one other module imports."""
    importers: defaultdict[str, set[str]] = defaultdict(set)
    modules = {module_name(package, path): path for path in package.rglob("*.py")}
    for name, path in modules.items():
        for imported in imports(path, name):
            importers[imported].add(name)
    lonely = []
    for name, path in sorted(modules.items()):
        lines = path.read_text().count("\n")
        if path.stem != "__init__" and lines < LINES_OF_A_LONELY_MODULE and len(importers[name]) == 1:
            lonely.append(f"lonely: {path} ({lines} lines) is imported by {next(iter(importers[name]))} only")
    return lonely


def module_name(package: Path, path: Path) -> str:
    """Return the dotted name of a file of the package."""
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, name: str) -> set[str]:
    """Return the modules that the file of a module imports, also for type checkers only."""
    parents = name.split(".") if path.stem == "__init__" else name.split(".")[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.ImportFrom):
            base = parents[: len(parents) - node.level + 1] if node.level else []
            module = ".".join([*base, *(node.module or "").split(".")]).rstrip(".")
            found |= {module, *(f"{module}.{part.name}" for part in node.names)}
        elif isinstance(node, ast.Import):
            found |= {part.name for part in node.names}
    return found


def main(arguments: list[str]) -> int:
    package = Path(arguments[0]) if arguments else Path("src") / "stepfast"
    if not package.is_dir():
        print(f"sizes: there is no folder {package}", file=sys.stderr)
        return 2
    lonely = lonely_modules(package)
    for line in [*large_files(package), *lonely]:
        print(line)
    refused = long_functions(package)
    for line in refused:
        print(line, file=sys.stderr)
    files = list(package.rglob("*.py"))
    total = sum(path.read_text().count("\n") for path in files)
    print(f"sizes: {len(files)} files, {total} lines, {len(lonely)} lonely modules, {len(refused)} functions too long")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
