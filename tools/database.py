"""A private Postgres that stays up while one develops: `make db-up` starts it, `make db-down` ends it.

It is the server of the tests, with the durability of production. Its data lies in a temporary folder and goes with it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

NOTE = ROOT / ".cache" / "database.json"
"""Written by the server's keeper once it answers: its own process id and the address of the database."""

PATIENCE = 60.0
"""Seconds within which the server must be up, or down."""


def running() -> dict[str, str] | None:
    """What the note says, if its process is alive."""
    try:
        note: dict[str, str] = json.loads(NOTE.read_text())
        os.kill(int(note["pid"]), 0)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return note


def up() -> None:
    """Start the server, unless it runs, and say where it is."""
    NOTE.parent.mkdir(exist_ok=True)
    note = running()
    if note is None:
        NOTE.unlink(missing_ok=True)
        log = NOTE.with_suffix(".log")
        with log.open("w") as stream:
            command = [sys.executable, __file__, "serve"]
            keeper = subprocess.Popen(command, stdout=stream, stderr=stream, start_new_session=True)
        deadline = time.monotonic() + PATIENCE
        while (note := running()) is None:
            if keeper.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the server did not start:\n{log.read_text()}")
            time.sleep(0.05)
    print(f"export STEPFAST_URL={note['url']}")
    print("# until: make db-down", file=sys.stderr)


def serve() -> None:
    """Keep the server until somebody ends this process."""
    from tests.support.postgres import PrivatePostgres

    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    with PrivatePostgres(fsync=True) as server:
        url = server.create_database("stepfast")
        text = json.dumps({"pid": os.getpid(), "url": url})
        draft = NOTE.with_suffix(".new")
        draft.write_text(text)
        draft.rename(NOTE)
        over.wait()


def down() -> None:
    """End the server and its data."""
    note = running()
    if note is None:
        print("no server of make db-up is running")
        return
    os.kill(int(note["pid"]), signal.SIGTERM)
    deadline = time.monotonic() + PATIENCE
    while running() is not None:
        if time.monotonic() > deadline:
            sys.exit(f"process {note['pid']} does not end")
        time.sleep(0.05)
    NOTE.unlink(missing_ok=True)
    print("the server and its data are gone")


if __name__ == "__main__":
    {"up": up, "serve": serve, "down": down}[sys.argv[1]]()
