"""A Galera cluster for tests: MariaDB servers on this machine that commit together.

A node gets what it missed from the others' write sets (IST). No whole copies are sent, because the scripts for it need
programs that few machines have: the nodes begin with copies of one data folder.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.mariadb import MariaDbUnavailable, PrivateMariaDb
from tests.support.needs import MARIADB, Program, leave_out, need
from tests.support.postgres import HOST, _free_port

PROVIDERS = ("/usr/lib/galera/libgalera_smm.so", "/usr/lib64/galera/libgalera_smm.so")
INSTALL = Program("mariadb-install-db", MARIADB.advice)
GALERA = Program("galera-4", "Debian: apt-get install galera-4")
PATIENCE = 60.0
_SILENCE = 20.0
"""Seconds for which an answer of a node is waited for."""
_NO_COPIES = """#!/bin/sh
# Stands for a script that sends a whole copy: it only says that none is needed.
role= gtid= bypass= address=
while [ $# -gt 0 ]; do
  case "$1" in
    --role) role=$2; shift ;;
    --gtid) gtid=$2; shift ;;
    --address) address=$2; shift ;;
    --bypass) bypass=1 ;;
  esac
  shift
done
name=$STEPFAST_SST/$(echo "$address" | tr -c 'a-z0-9\\n' '_')
if [ "$role" = joiner ]; then
  rm -f "$name"
  echo "ready $address"
  tries=0
  until [ -s "$name" ]; do
    sleep 0.05
    tries=$((tries + 1))
    [ $tries -gt 600 ] && exit 1
  done
  cat "$name"
else
  [ -n "$bypass" ] || exit 22
  echo "$gtid" > "$name.new" && mv "$name.new" "$name"
  echo "done $gtid"
fi
"""
_RECOVERED = re.compile(r"Recovered position: (\S+)")


class Node(PrivateMariaDb):
    """One of them."""

    def __init__(self, number: int, cluster: Galera) -> None:
        super().__init__(log_commits=2)
        self._number = number
        self._cluster = cluster
        self._more: list[str] = []
        self.group_port, self._ist_port, self._sst_port = _free_port(), _free_port(), _free_port()

    def _options(self) -> list[str]:
        left_out = ("--skip-log-bin", "--skip-grant-tables")
        kept = [option for option in super()._options() if option not in left_out]
        provider = ";".join(
            (
                f"gmcast.listen_addr=tcp://{HOST}:{self.group_port}", f"ist.recv_addr={HOST}:{self._ist_port}",
                "gcache.size=64M", "pc.recovery=false", "evs.keepalive_period=PT0.3S", "evs.suspect_timeout=PT1.5S",
                "evs.inactive_timeout=PT3S", "evs.install_timeout=PT3S", "gmcast.peer_timeout=PT1.5S",
            )
        )  # fmt: skip
        return [
            *kept, "--binlog-format=ROW", "--innodb-autoinc-lock-mode=2", "--wsrep-on=ON",
            f"--wsrep-provider={self._cluster.provider}", "--wsrep-cluster-name=stepfast",
            f"--wsrep-cluster-address={self._cluster.address}", f"--wsrep-node-name=node{self._number}",
            f"--wsrep-node-address={HOST}:{self.group_port}", "--wsrep-sst-method=none_needed",
            f"--wsrep-sst-receive-address={HOST}:{self._sst_port}", f"--wsrep-provider-options={provider}", *self._more,
        ]  # fmt: skip

    def _environment(self) -> dict[str, str]:
        return self._cluster.environment

    def launch(self, *more: str) -> Self:
        """Start it, and wait until it takes part."""
        self._more = [*more]
        self._launch()
        deadline = time.monotonic() + PATIENCE
        while not self.is_synced:
            if not self.running or time.monotonic() > deadline:
                raise MariaDbUnavailable(f"the node does not take part:\n{self.log[-5000:]}")
            time.sleep(0.05)
        return self

    def again(self) -> Self:
        """Start it after a crash: where it stood is found out first."""
        self._more = ["--wsrep-recover"]
        found = subprocess.run(
            [self._program, *self._options()], capture_output=True, cwd=self._folder, timeout=PATIENCE, check=False,
            **self._identity,
        )  # fmt: skip
        position = _RECOVERED.search((found.stdout + found.stderr).decode(errors="replace"))
        assert position, found.stderr.decode(errors="replace")[-3000:]
        return self.launch(f"--wsrep-start-position={position[1]}")

    @property
    def log(self) -> str:
        """What it has said."""
        return (self._folder / "log").read_text(errors="replace")

    async def _execute(self, statements: Sequence[str]) -> list[Any]:
        """A node that is about to leave may take a connection, and say nothing."""
        async with asyncio.timeout(_SILENCE):
            return await super()._execute(statements)

    @property
    def is_synced(self) -> bool:
        """Whether it takes statements, and has what the others have."""
        try:
            found = dict(self.execute("SHOW STATUS LIKE 'wsrep_%'"))
        except Exception:
            return False
        return bool(found["wsrep_ready"] == "ON") and bool(found["wsrep_local_state_comment"] == "Synced")

    def isolate(self, isolated: bool = True) -> None:
        """Cut it off from the other nodes, or let it come back. Its clients reach it all the same."""
        self.execute(f"SET GLOBAL wsrep_provider_options = 'gmcast.isolate={int(isolated)}'")

    def copy_to(self, other: Node) -> None:
        """Give another the same data."""
        shutil.copytree(self._folder / "data", other._folder / "data", dirs_exist_ok=True)
        (other._folder / "data" / "galera.cache").unlink(missing_ok=True)
        other.own()

    def own(self) -> None:
        """Let the account of the server have its data."""
        if self._account:
            for path in [self._folder / "data", *(self._folder / "data").rglob("*")]:
                os.chown(path, self._account.pw_uid, self._account.pw_gid)

    def prepare(self) -> None:
        """Make the data folder, with a user: what a user without a name defines, such as a view, other nodes refuse."""
        made = subprocess.run(
            [
                need(INSTALL), "--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db",
                f"--datadir={self._folder}/data",
            ],
            capture_output=True, cwd=self._folder, timeout=PATIENCE, check=False, **self._identity,
        )  # fmt: skip
        assert made.returncode == 0, (made.stdout + made.stderr).decode(errors="replace")
        self.users.write_text(
            "CREATE USER IF NOT EXISTS tester@'%';\nGRANT ALL PRIVILEGES ON *.* TO tester@'%' WITH GRANT OPTION;\n"
            "DROP USER IF EXISTS ''@'localhost';\n"
        )
        self.users.chmod(0o644)

    @property
    def users(self) -> Path:
        """Statements that make the user."""
        return self._folder / "users.sql"


class Galera:
    """Use it as ``with Galera() as cluster``."""

    def __init__(self, count: int = 3) -> None:
        provider = next((path for path in PROVIDERS if os.path.exists(path)), None)
        self.provider = provider or leave_out(GALERA)
        self.nodes = [Node(number, self) for number in range(1, count + 1)]
        self.address = "gcomm://" + ",".join(f"{HOST}:{node.group_port}" for node in self.nodes)
        folder = self.nodes[0]._folder
        script = folder / "wsrep_sst_none_needed"
        script.write_text(_NO_COPIES)
        script.chmod(0o755)
        (folder / "sst").mkdir(mode=0o777)
        (folder / "sst").chmod(0o777)
        self.environment = {
            **os.environ, "PATH": f"{folder}:{os.environ.get('PATH', os.defpath)}", "STEPFAST_SST": str(folder / "sst"),
        }  # fmt: skip

    def __enter__(self) -> Self:
        first, *others = self.nodes
        try:
            first.prepare()
            first.launch("--wsrep-new-cluster", f"--init-file={first.users}")
            first.stop()
            for other in others:
                first.copy_to(other)
            first.launch("--wsrep-new-cluster")
            for other in others:
                other.launch()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ThreadPoolExecutor(len(self.nodes)) as threads:
            list(threads.map(lambda node: node.close(), reversed(self.nodes)))

    def create_database(self, name: str) -> list[str]:
        """Its URLs, one for each node."""
        self.nodes[0].execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        return [f"mysql://tester@{HOST}:{node.port}/{name}" for node in self.nodes]

    def wait(self, size: int | None = None) -> None:
        """Wait until so many nodes take part, all of them unless it is said."""
        wanted, deadline = size or len(self.nodes), time.monotonic() + PATIENCE
        while sum(node.is_synced for node in self.nodes if node.running) < wanted:
            assert time.monotonic() < deadline, "\n".join(node.log[-2000:] for node in self.nodes)
            time.sleep(0.1)
