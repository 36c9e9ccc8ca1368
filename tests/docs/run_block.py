"""Runs one program of the documents: `python run_block.py file`. `await` is allowed at the top level."""

from __future__ import annotations

import ast
import asyncio
import builtins
import inspect
import io
import linecache
import sys
import types
from pathlib import Path
from typing import Any

_print = print


def print_whole(
    *values: Any, sep: str | None = " ", end: str | None = "\n", file: Any = None, flush: bool = False
) -> None:
    """Write a line and its end by one call: steps of several runs print in threads of their own."""
    line = io.StringIO()
    _print(*values, sep=sep, end=end, file=line)
    _print(line.getvalue(), end="", file=file, flush=flush)


def main(path: str) -> None:
    """Compile the file and run it as the main module, so that its classes and annotations are found as usual."""
    text = Path(path).read_text()
    code = compile(text, path, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    module = types.ModuleType("__main__")
    module.__file__ = path
    sys.modules["__main__"] = module
    sys.path.insert(0, "")
    builtins.print = print_whole
    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(code, vars(module)))
    else:
        exec(code, vars(module))


if __name__ == "__main__":
    main(sys.argv[1])
