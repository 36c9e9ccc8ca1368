"""A private PgBouncer in transaction mode, in front of a test server."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from tests.support import wire
from tests.support.needs import PGBOUNCER, need
from tests.support.postgres import HOST, _free_port


class PgBouncerUnavailable(Exception):
    """It did not start."""


CONFIGURATION = """
[databases]
* = host={host} port={target}

[pgbouncer]
listen_addr = {host}
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = 10
max_client_conn = 200
ignore_startup_parameters = extra_float_digits
logfile = {folder}/log
pidfile = {folder}/pid
"""


@contextlib.contextmanager
def pgbouncer(target: str) -> Iterator[str]:
    """The same database URL, through a pooler of our own."""
    program = need(PGBOUNCER)
    parts = urlsplit(target)
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="stepfast-pgbouncer-", dir="/tmp") as name:
        folder = Path(name)
        (folder / "users").write_text('"postgres" ""\n')
        text = CONFIGURATION.format(host=HOST, target=parts.port, port=port, folder=folder)
        (folder / "pgbouncer.ini").write_text(text)
        process: subprocess.Popen[bytes] = subprocess.Popen(
            [program, str(folder / "pgbouncer.ini")],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            **_identity(folder),
        )  # fmt: skip
        try:
            _wait(process, port, parts.path.lstrip("/"), folder)
            yield urlunsplit(parts._replace(netloc=f"postgres@{HOST}:{port}"))
        finally:
            process.send_signal(signal.SIGQUIT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()
            process.wait()


def _identity(folder: Path) -> dict[str, Any]:
    """PgBouncer does not run as root."""
    if os.geteuid() != 0:
        return {}
    account = pwd.getpwnam("nobody")
    for path in (folder, *folder.iterdir()):
        os.chown(path, account.pw_uid, account.pw_gid)
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def _wait(process: subprocess.Popen[bytes], port: int, database: str, folder: Path) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError, wire.WireError):
            wire.execute(HOST, port, "SELECT 1", database=database)
            return
        time.sleep(0.02)
    log = folder / "log"
    tail = "\n".join(log.read_text().splitlines()[-5:]) if log.exists() else "it wrote nothing"
    raise PgBouncerUnavailable(f"pgbouncer did not start:\n{tail}")
