"""Programs that a test needs beside Python and Postgres.

Where one is missing, the test is left out, and the last lines of the test run say so. In CI (`CI=true`) it fails
instead, because there nobody reads those lines.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from typing import Any, NamedTuple, NoReturn

import pytest

_LEFT_OUT = "left out, because there is no "


class Program(NamedTuple):
    """What a program is called, and how people get it."""

    name: str
    advice: str


PGBOUNCER = Program("pgbouncer", "Debian: apt-get install pgbouncer; macOS: brew install pgbouncer")
NODE = Program("node", "Debian: apt-get install nodejs, version 20 or later; macOS: brew install node")
NPM = Program("npm", "Debian: apt-get install npm; macOS: brew install node")
CHROMIUM = Program(
    "chromium", "Debian: apt-get install chromium; without it no page of the console is tried in a browser"
)
MARIADB = Program("mariadbd", "Debian: apt-get install mariadb-server-core; macOS: brew install mariadb")

_MORE_FOLDERS = "/usr/sbin:/usr/local/sbin"
"""Where servers are put, and where an ordinary user's PATH does not look."""


def need(program: Program) -> str:
    """The path of a program; without one the test ends here."""
    path = shutil.which(program.name) or shutil.which(program.name, path=_MORE_FOLDERS)
    return leave_out(program) if path is None else path


def leave_out(program: Program) -> NoReturn:
    """End the test here, because something is missing; in CI, fail it."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"this test needs {program.name} ({program.advice})", pytrace=False)
    pytest.skip(f"{_LEFT_OUT}{program.name} ({program.advice})")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what was left out."""
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", ()):
        _, found, what = str(report.longrepr).partition(_LEFT_OUT)
        if found:
            reasons[what.rstrip("')")] += 1
    for what, count in reasons.items():
        terminalreporter.write_line(f"LEFT OUT: {count} tests need {what})", yellow=True)
