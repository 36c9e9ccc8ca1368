"""The command ``stepfast``, also as ``python -m stepfast``. The rest of the library does without what it needs."""

from __future__ import annotations

import sys

_BROUGHT_BY_THE_EXTRA = {"click", "rich", "typer"}


def main() -> None:
    """Run the command line; without the packages of the extra ``cli``, say how to get them."""
    try:
        from .cli import main as command_line
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _BROUGHT_BY_THE_EXTRA:
            raise
        sys.exit(f"error: the command line needs {missing}, which is not installed: pip install 'stepfast[cli]'")
    command_line()


if __name__ == "__main__":
    main()
