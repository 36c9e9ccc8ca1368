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

    def __init__(
        self, primary: PrivatePostgres, source: int | None = None, port: int | None = None, waits_for: str = ""
    ) -> None:
        """``waits_for``: the standbys that its commits wait for, once it is promoted."""
        super().__init__(fsync=True, port=port, settings=REPLICATED)
        self._primary = primary
        self._source = source or primary.port
        self._waits_for = waits_for
        self.name = f"standby_{id(self):x}"

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
        follow = f"primary_conninfo = '{self._way_to(self._source)}'\n"
        with (self._data / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"{follow}synchronous_standby_names = '{self._waits_for}'\n")
        (self._data / "standby.signal").touch()

    def _way_to(self, port: int) -> str:
        return f"host={HOST} port={port} user=postgres application_name={self.name}"

    def follow(self, primary: PrivatePostgres) -> None:
        """From now on it is a copy of another primary, which was a standby beside it."""
        for sql in (
            f"ALTER SYSTEM SET primary_conninfo = '{self._way_to(primary.port)}'", "SELECT pg_reload_conf()"
        ):  # fmt: skip
            wire.execute(HOST, self.port, sql)

    @property
    def received(self) -> int:
        """How far it has come, in bytes of the log."""
        [found] = wire.execute(
            HOST, self.port, "SELECT COALESCE(pg_wal_lsn_diff(pg_last_wal_receive_lsn(), '0/0'), 0)::bigint"
        )
        return int(found)


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


class Quorum(Pair):
    """A primary and two standbys. A commit returns when the first of these has it; the one that has more
    takes over."""

    WAITS_FOR = "ANY 1 (*)"

    def __init__(self) -> None:
        super().__init__()
        self.standbys: list[Standby] = []
        self._all_ports: list[int] = []

    def __enter__(self) -> Self:
        self.primary.start()
        try:
            self.standbys = [Standby(self.primary, waits_for=self.WAITS_FOR).start() for _ in range(2)]
            self._all_ports = [self.primary.port, *(standby.port for standby in self.standbys)]
            self._follow()
            names = ", ".join(standby.name for standby in self.standbys)
            self.primary.execute(f"ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 ({names})'")
            self.primary.execute("SELECT pg_reload_conf()")
            self._until("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'quorum'", "2")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for standby in self.standbys:
            standby.stop()
        self.primary.stop()

    def url(self, database: str) -> str:
        """All of them."""
        hosts = ",".join(f"{HOST}:{port}" for port in self._all_ports)
        return f"postgresql://postgres@{hosts}/{database}?target_session_attrs=read-write"

    @property
    def caught_up(self) -> bool:
        """Whether both have all that is committed."""
        sql = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn = pg_current_wal_lsn()"
        return self.primary.execute(sql) == [str(len(self.standbys))]

    def fail_over(self) -> None:
        """SIGKILL for the primary; the standby that has more takes over, and the other follows it."""
        self.primary.kill9()
        self.deaths.append(time.time_ns() // 1000)
        successor, other = sorted(self.standbys, key=lambda standby: standby.received, reverse=True)
        wire.execute(HOST, successor.port, "SELECT pg_promote()")
        other.follow(successor)
        old, self.primary, self.standbys = self.primary, successor, [other]
        old.stop()

    def renew(self) -> None:
        """A new standby, where the old primary was."""
        known = {self.primary.port, *(standby.port for standby in self.standbys)}
        [port] = set(self._all_ports) - known
        self.standbys.append(Standby(self.primary, port=port, waits_for=self.WAITS_FOR).start())
        self._follow()

    def _follow(self) -> None:
        self._until("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'", str(len(self.standbys)))

    def _until(self, sql: str, wanted: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while self.primary.execute(sql) != [wanted]:
            assert time.monotonic() < deadline, f"a standby does not follow:\n{self.primary.log[-3000:]}"
            time.sleep(0.02)
