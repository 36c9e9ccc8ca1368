"""A primary and its standby, from the same binaries: replication, synchronous or not, and a failover for real."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from types import TracebackType
from typing import Self

from tests.support import wire
from tests.support.postgres import HOST, PrivatePostgres

REPLICATED: dict[str, str | int] = {"wal_level": "replica", "max_wal_senders": 5}
PATIENCE = 60.0


class Standby(PrivatePostgres):
    """A copy of another server, which it follows through a port."""

    def __init__(self, primary: PrivatePostgres, source: int | None = None, port: int | None = None) -> None:
        super().__init__(fsync=True, port=port, settings=REPLICATED)
        self._primary = primary
        self._source = source or primary.port

    def _create_cluster(self) -> None:
        super()._create_cluster()
        command = ["rm", "-rf", str(self._data)]
        assert self._popen(command).wait() == 0
        copy = [
            self._bindir / "pg_basebackup", "-h", HOST, "-p", str(self._primary.port), "-U", "postgres",
            "-D", self._data, "-X", "stream", "-c", "fast",
        ]  # fmt: skip
        made = self._popen(copy, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output = made.communicate()[0].decode(errors="replace")
        assert made.returncode == 0, output
        follow = f"primary_conninfo = 'host={HOST} port={self._source} user=postgres'\n"
        with (self._data / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"{follow}synchronous_standby_names = ''\n")  # promoted, it waits for nobody
        (self._data / "standby.signal").touch()


class Pair:
    """Use it as ``with Pair() as pair``. After a failover ``renew`` makes a new standby in the place of the old
    primary, so that the URL with both hosts stays true."""

    def __init__(self, *, synchronous: bool = True) -> None:
        self._synchronous = synchronous
        self.primary = PrivatePostgres(fsync=True, settings=REPLICATED)
        self.standby: Standby | None = None
        self._ports: tuple[int, int] = (0, 0)
        self.deaths: list[int] = []
        """When primaries were dead, in microseconds since 1970."""

    def __enter__(self) -> Self:
        self.primary.start()
        try:
            self.standby = Standby(self.primary).start()
            self._ports = (self.primary.port, self.standby.port)
            self._follow()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.standby is not None:
            self.standby.stop()
        self.primary.stop()

    def url(self, database: str) -> str:
        """Both of them; whoever connects finds the one that takes writes."""
        hosts = ",".join(f"{HOST}:{port}" for port in self._ports)
        return f"postgresql://postgres@{hosts}/{database}?target_session_attrs=read-write"

    def create_database(self, name: str) -> str:
        """Create a database, and wait until both have it."""
        self.primary.create_database(name)
        self.catch_up()
        return self.url(name)

    def catch_up(self) -> None:
        """Wait until the standby shows all that is committed: a synchronous one has it, but may not show it yet."""
        deadline = time.monotonic() + PATIENCE
        while not self.caught_up:
            assert time.monotonic() < deadline, f"the standby does not catch up:\n{self.primary.log[-3000:]}"
            time.sleep(0.02)

    def fall_behind(self) -> None:
        """From now on the standby is sent nothing: what is committed is lost with the primary."""
        for pid in self.primary.execute("SELECT pid FROM pg_stat_replication"):
            os.kill(int(pid), signal.SIGSTOP)

    @property
    def caught_up(self) -> bool:
        """Whether the standby has all that is committed."""
        sql = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn = pg_current_wal_lsn()"
        return self.primary.execute(sql) == ["1"]

    def fail_over(self) -> None:
        """SIGKILL for the primary and all its processes; the standby takes over."""
        assert self.standby is not None
        self.primary.kill9()
        self.deaths.append(time.time_ns() // 1000)
        wire.execute(HOST, self.standby.port, "SELECT pg_promote()")
        old, self.primary, self.standby = self.primary, self.standby, None
        old.stop()

    def renew(self) -> None:
        """A new standby, where the old primary was."""
        port = next(port for port in self._ports if port != self.primary.port)
        self.standby = Standby(self.primary, port=port).start()
        self._follow()

    def _follow(self) -> None:
        """Wait until the standby has all there is; from then on, if that is wanted, no commit returns without it."""
        behind = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND replay_lsn IS NOT NULL"
        deadline = time.monotonic() + PATIENCE
        while self.primary.execute(behind) != ["1"]:
            assert time.monotonic() < deadline, f"the standby does not follow:\n{self.primary.log[-3000:]}"
            time.sleep(0.02)
        if self._synchronous:
            self.primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            self.primary.execute("SELECT pg_reload_conf()")
            while self.primary.execute("SELECT sync_state FROM pg_stat_replication") != ["sync"]:
                assert time.monotonic() < deadline, "the standby does not become synchronous"
                time.sleep(0.02)
