"""Python processes that begin with everything imported: a nursery has loaded it once and forks for each of them.

    nursery().start(["-m", "tests.support.worker_program", "3", "…"], …)

stands for `python -m tests.support.worker_program 3 …`. A file in place of `-m` is understood, too, and so is `-c`.
A child is a process like any other: it has a number, can be killed, frozen and told to stop, and ends as an
interpreter does. Only the third of a second that its imports would take is saved, and hundreds of tests start
processes.

The nursery is a process of its own without threads, so that forking it is safe: `python -m tests.support.nursery 3`. It
ends when the test process has ended, and takes its children along.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import gc
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import types
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]

KNOWN = (
    "asyncio", "asyncpg", "logging.handlers", "multiprocessing.popen_spawn_posix", "multiprocessing.resource_tracker",
    "sqlite3", "stepfast", "stepfast.store.postgres.store", "stepfast.store.sqlite.store", "stepfast.testing",
)  # fmt: skip
"""What children find imported. The programs themselves are not among it: each runs as `__main__`."""
ALSO_KNOWN = (
    "pydantic.types", "rich.console", "rich.table", "typer", "typer._adapters",
    "stepfast.cli", "tests.support.processes",
)  # fmt: skip
"""The same; old releases of the libraries among it warn of each other, and do not have all of it."""

_LENGTH = struct.Struct("i")
_MOST_FILES = 16
_HIGH = 200
"""Descriptors from here on are a child's to use while it puts its own in order."""


# The side of the tests ---------------------------------------------------------------------------


class Child:
    """A process of the nursery, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        """The exit code, if it has ended."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; the exit code, or the negative number of the signal that ended it."""
        if self._look(timeout) is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Does nothing to a process that has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to stop."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            told = os.read(self._status, _LENGTH.size)
            os.close(self._status)
            # The nursery has ended, and has taken its children along.
            self.returncode = _LENGTH.unpack(told)[0] if told else -signal.SIGKILL
        return self.returncode

    def __del__(self) -> None:
        if self.returncode is None:
            os.close(self._status)


class Nursery:
    """The test process's side: it asks for children."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._line, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.nursery", str(theirs.fileno())],
                cwd=ROOT, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        atexit.register(self.close)

    def start(
        self,
        arguments: Sequence[object],
        files: Sequence[int],
        *,
        folder: Path = ROOT,
        environment: Mapping[str, str] | None = None,
        new_session: bool = False,
    ) -> Child:
        """Start `python` with these arguments. It has these files as its descriptors 0, 1, 2 and so on."""
        wanted = {
            "arguments": [str(word) for word in arguments],
            "folder": str(folder),
            "environment": dict(os.environ if environment is None else environment),
            "new_session": new_session,
        }
        text = json.dumps(wanted).encode()
        status, theirs = os.pipe()
        try:
            with self._lock:
                socket.send_fds(self._line, [_LENGTH.pack(len(text))], [theirs, *files])
                self._line.sendall(text)
                return Child(_LENGTH.unpack(self._line.recv(_LENGTH.size, socket.MSG_WAITALL))[0], status)
        finally:
            os.close(theirs)

    def close(self) -> None:
        """End the nursery and its children."""
        self._line.close()
        self._process.wait()


@functools.cache
def nursery() -> Nursery:
    """The one of this test process, started by the first test that asks for it."""
    return Nursery()


def run(
    arguments: Sequence[object], *, folder: Path, environment: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Start such a process and wait for its end, as `subprocess.run` does with `capture_output`."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, open(os.devnull, "rb") as nothing:
        files = [stream.fileno() for stream in (nothing, out, err)]
        child = nursery().start(arguments, files, folder=folder, environment=environment)
        try:
            code = child.wait(timeout)
        finally:
            child.kill()
        return subprocess.CompletedProcess([str(word) for word in arguments], code, _all_of(out), _all_of(err))


def crowd(count: int, program: str, *arguments: str, timeout: float = 90) -> list[str]:
    """Start so many processes with this program, and let them go on when all are there. What each printed.

    The program says `os.write(3, b".")` when it is there, and goes on when `sys.stdin.read()` comes back."""
    waiting, go = os.pipe()
    here, arrived = os.pipe()
    with contextlib.ExitStack() as stack:
        stack.enter_context(open(waiting, "rb"))
        stack.enter_context(open(here, "rb"))
        outputs = [(stack.enter_context(tempfile.TemporaryFile()), stack.enter_context(tempfile.TemporaryFile()))
                   for _ in range(count)]  # fmt: skip
        with open(go, "wb"):
            with open(arrived, "wb"):
                children = [
                    nursery().start(["-c", program, *arguments], [waiting, out.fileno(), err.fileno(), arrived])
                    for out, err in outputs
                ]
            for child in children:
                stack.callback(child.kill)
            for _ in children:
                assert select.select([here], [], [], timeout)[0] and os.read(here, 1), "a process did not come up"
        ends = [child.wait(timeout) for child in children]
        printed = [(_all_of(out), _all_of(err)) for out, err in outputs]
    assert ends == [0] * count and not any(errors for _, errors in printed), printed
    return [out for out, _ in printed]


def _all_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


# The nursery itself ------------------------------------------------------------------------------


class _Matron:
    """Forks when she is asked to, and tells how children ended."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._children: dict[int, int] = {}
        """Where the end of each is told."""
        self._bell, bell = os.pipe()
        os.set_blocking(bell, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(bell)

    def work(self) -> dict[str, Any]:
        """Serve until the test process has ended. In a child: what it was asked to be."""
        while True:
            ready = select.select([self._line.fileno(), self._bell], [], [])[0]
            if self._bell in ready:
                os.read(self._bell, 1000)
                self._reap()
            if self._line.fileno() in ready:
                header, files, _, _ = socket.recv_fds(self._line, _LENGTH.size, _MOST_FILES)
                if not header:
                    self._leave()
                wanted = self._line.recv(_LENGTH.unpack(header)[0], socket.MSG_WAITALL)
                pid = os.fork()
                if pid == 0:
                    return self._become_child(json.loads(wanted), files[1:])
                self._children[pid] = files[0]
                for file in files[1:]:
                    os.close(file)
                self._line.sendall(_LENGTH.pack(pid))

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                status = self._children.pop(ended[0])
                with contextlib.suppress(BrokenPipeError):  # nobody asks any more
                    os.write(status, _LENGTH.pack(os.waitstatus_to_exitcode(ended[1])))
                os.close(status)

    def _leave(self) -> NoReturn:
        for pid in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os._exit(0)

    def _become_child(self, wanted: dict[str, Any], files: list[int]) -> dict[str, Any]:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if wanted["new_session"]:
            os.setsid()
        self._line.detach()
        high = [fcntl.fcntl(file, fcntl.F_DUPFD, _HIGH) for file in files]
        for number, file in enumerate(high):
            os.dup2(file, number)
        os.closerange(len(files), max(high) + 1)
        os.chdir(wanted["folder"])
        os.environ.clear()
        os.environ.update(wanted["environment"])
        time.tzset()
        return wanted


def _main_module(arguments: list[str]) -> tuple[types.ModuleType, Any]:
    """A new `__main__`, and its code, as `python` with these arguments would have it."""
    module = types.ModuleType("__main__")
    if arguments[0] == "-m":
        sys.path[0] = os.getcwd()
        spec = importlib.util.find_spec(arguments[1])
        if spec is not None and spec.submodule_search_locations is not None:
            return _main_module(["-m", f"{arguments[1]}.__main__", *arguments[2:]])
        assert spec is not None and spec.origin is not None, f"there is no module {arguments[1]}"
        module.__spec__, module.__file__, module.__package__ = spec, spec.origin, spec.parent
        sys.argv = [spec.origin, *arguments[2:]]
        return module, spec.loader.get_code(arguments[1])  # type: ignore[union-attr]
    if arguments[0] == "-c":
        sys.path[0], sys.argv = "", ["-c", *arguments[2:]]
        return module, compile(arguments[1], "<string>", "exec")
    path = arguments[0]
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    sys.argv, module.__file__ = list(arguments), path
    return module, compile(Path(path).read_bytes(), path, "exec")


def _load() -> list[Any]:
    """Import what children need. What warns while it is imported is an error, as it is for the documents' examples."""
    usual = list(warnings.filters)
    warnings.simplefilter("error")
    for name in KNOWN:
        importlib.import_module(name)
    _render()
    warnings.filters[:] = usual  # type: ignore[index]
    for name in ALSO_KNOWN:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    warnings.simplefilter("error")
    gc.collect()
    gc.freeze()
    return usual


def _render() -> None:
    """Make the statements of both databases, which a process remembers."""
    from stepfast.model.urls import parse_url
    from stepfast.settings import Settings
    from stepfast.store import open_store

    for url in ("sqlite://", "postgresql://nobody@nowhere/nothing"):
        open_store(parse_url(url), "stepfast", Settings())


def _end(module: types.ModuleType, code: int) -> None:
    """End as an interpreter does: wait for threads, call what wants to be called, drop what the program has made. What
    the nursery has loaded is left: to take it down would copy its memory and take longer than most programs."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        vars(module).clear()
        gc.collect()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # it is told as an interpreter tells it
        return
    os._exit(code)


if __name__ == "__main__":
    _usual = _load()
    _wanted = _Matron(socket.socket(fileno=int(sys.argv[1]))).work()
    # From here on this is a child, which ends as its program does.
    if "PYTHONWARNINGS" not in os.environ:
        warnings.filters[:] = _usual  # type: ignore[index]
    _module, _code = _main_module(_wanted["arguments"])
    sys.modules["__main__"] = _module
    try:
        exec(_code, vars(_module))
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            raise
        _exit_code = end.code or 0
    else:
        _exit_code = 0
    _end(_module, _exit_code)
    sys.exit(_exit_code)
