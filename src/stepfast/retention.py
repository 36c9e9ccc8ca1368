"""``app.prune``: removes runs that ended long enough ago, and writes them to an archive before."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from typing import IO, Any

import msgspec

from .engine.options import Seconds
from .errors import ConfigurationError
from .info import read_steps
from .model.attributes import decode, shown
from .model.backoff import seconds
from .model.records import StepRecord
from .model.retention import DELETABLE, Ended, Keep, Try, needed_by
from .model.rows import DagStepRow, RunRow
from .model.stored import moment
from .settings import FORMAT
from .store import Store
from .worker.pruner import FIRST, Remover
from .worker.threads import REAL

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

_BEGINNING = b'{"stepfast_archive":1,'
"""How every line begins, with the version of its shape. What a killed process has left unfinished is known by it."""
_PAGE = 100
"""Steps that are read at once."""
_SPILL = 1024 * 1024
"""Bytes that are gathered before they go to the file."""


class Archive:
    """Writes runs to a file, after what it holds already."""

    def __init__(self, path: str, file: IO[bytes], store: Store) -> None:
        self._path = path
        self._file = file
        self._store = store
        self._waiting = bytearray()

    async def keep(self, runs: Sequence[Ended]) -> None:
        """Write runs; return when all of them are on the disk."""
        for run in runs:
            row = await self._store.run(run.id)
            if row is not None:
                await self._write(row)
        await self._to_file(self._synchronised)

    async def _write(self, row: RunRow) -> None:
        values = {key: _payload(text, form) for key, text, form in await self._store.values(row.id)}
        await self._add(_BEGINNING + msgspec.json.encode(_run(row) | {"values": values})[1:-1])
        await self._records(row.id)
        await self._add(b',"dag_steps":[')
        for number, step in enumerate(await self._store.dag_steps(row.id) if row.graph is not None else ()):
            await self._add((b"," if number else b"") + msgspec.json.encode(_fields(step, _DAG_STEP))[:-1])
            await self._records(step.id)
            await self._add(b"}")
        await self._add(b"]}\n")

    async def _records(self, run_id: str) -> None:
        """Steps by pages, because a run may have more of them than fit into memory; and its tries."""
        await self._add(b',"steps":[')
        comma = b""
        async for page in read_steps(self._store, run_id, _PAGE):
            for step in page:
                await self._add(comma + msgspec.json.encode(_fields(step, _STEP)))
                comma = b","
        tries = b",".join(msgspec.json.encode(_fields(each, _TRY)) for each in await self._store.tries(run_id))
        await self._add(b'],"tries":[' + tries + b"]")

    async def _add(self, part: bytes) -> None:
        self._waiting += part
        if len(self._waiting) >= _SPILL:
            await self._to_file(self._written)

    async def _to_file(self, write: Callable[[bytes], None]) -> None:
        part, self._waiting = bytes(self._waiting), bytearray()
        try:
            await asyncio.to_thread(write, part)
        except OSError as error:
            raise _refused(self._path, error) from None

    def _written(self, part: bytes) -> None:
        rest = memoryview(part)
        while rest:
            rest = rest[self._file.write(rest) :]

    def _synchronised(self, part: bytes) -> None:
        self._written(part)
        os.fsync(self._file.fileno())


@contextlib.asynccontextmanager
async def open_archive(path: str | os.PathLike[str], store: Store) -> AsyncIterator[Archive]:
    """The file is made if it is not there. One that cannot be written to, or is not an archive, is refused."""
    name = os.fspath(path)
    try:
        file = await asyncio.to_thread(_open, name)
    except OSError as error:
        raise _refused(name, error) from None
    with file:
        yield Archive(name, file, store)


def _open(path: str) -> IO[bytes]:
    new = not os.path.exists(path)
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "a+b", buffering=0)
    try:
        _take(file, path)
        _end_of_lines(file, path)
        if new:
            _remember_folder(path)
    except BaseException:
        file.close()
        raise
    return file


def _take(file: IO[bytes], path: str) -> None:
    """Lock the file: two processes would write into each other's lines."""
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(f"another process is writing to the archive {path!r}") from None


def _end_of_lines(file: IO[bytes], path: str) -> None:
    """Cut off a line that a killed process left unfinished: its run was not removed. Refuse a file that ends
    otherwise."""
    unfinished = end = file.seek(0, os.SEEK_END)
    newline = -1
    while unfinished > 0 and newline < 0:
        size = min(unfinished, _SPILL)
        unfinished = file.seek(unfinished - size)
        newline = file.read(size).rfind(b"\n")
    unfinished += newline + 1
    if unfinished == end:
        return
    file.seek(unfinished)
    head = file.read(len(_BEGINNING))
    if not _BEGINNING.startswith(head):
        raise ConfigurationError(f"{path!r} does not end with a line, and is no archive of runs: nothing was removed")
    file.truncate(unfinished)


def _remember_folder(path: str) -> None:
    """Write the folder of a new file to the disk, and with it the file's name."""
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _refused(path: str, error: OSError) -> ConfigurationError:
    why = error.strerror or type(error).__name__
    return ConfigurationError(
        f"the archive {path!r} cannot be written: {why}. Runs that are not in it were not removed"
    )


# -- what is in a line ---------------------------------------------------------------------------------------------


def _run(row: RunRow) -> dict[str, Any]:
    output_format = row.format if row.output_format is None else row.output_format
    return {
        **_fields(row, "id workflow version queue status reason priority attempt losses key tags"),
        "attributes": {name: shown(decode(value)) for name, value in row.attributes.items()},
        "parent": row.parent_id, "origin": row.origin_id,
        **_fields(row, "created_at started_at completed_at deadline_at format input"),
        "output_format": output_format, "output": _payload(row.output, output_format), "error": _error(row.error),
    }  # fmt: skip


_DAG_STEP = "id name status reason attempt ready_at started_at completed_at format output error"
_STEP = "branch position seq name kind status attempts line undo started_at completed_at format arguments output error"
_TRY = "branch position attempt number name started_at completed_at format arguments error"


def _fields(row: RunRow | DagStepRow | StepRecord | Try, names: str) -> dict[str, Any]:
    """Fields of a row as values of JSON: times in ISO format, payloads and errors as JSON where they can be read."""
    found: dict[str, Any] = {}
    for name in names.split():
        value = getattr(row, name)
        if name.endswith("_at"):
            value = _time(value)
        elif name in ("input", "output", "arguments"):
            value = _payload(value, row.format)
        elif name == "error":
            value = _error(value)
        found[name] = value
    return found


def _time(milliseconds: int | None) -> str | None:
    if milliseconds is None:
        return None
    return moment(milliseconds).isoformat(timespec="milliseconds")


def _payload(text: str | None, form: int) -> Any:
    """Return JSON as it is, with all digits of its numbers; anything else as a text."""
    if text is None or form != FORMAT:
        return text
    try:
        return msgspec.Raw(msgspec.json.format(text.encode(), indent=-1))
    except (msgspec.DecodeError, UnicodeEncodeError):
        return text  # the row was written by hand


def _error(text: str | None) -> Any:
    """An error is an object, unless it went through a codec."""
    return _payload(text, FORMAT) if text is not None and text.startswith("{") else text


Progress = Callable[[int], None]
"""Told how many runs are gone so far."""


def keep_for(older_than: Seconds, status: str | None) -> Keep:
    """Runs that ended less than this long ago are kept, and those that ended otherwise."""
    if status is not None and status not in DELETABLE:
        raise ConfigurationError(f"only runs that have ended can be pruned: {', '.join(DELETABLE)}, not {status!r}")
    span = int(seconds(older_than, "older_than") * 1000)
    return Keep(span, span, status)


async def prune(
    store: Store, keep: Keep, archive: str | os.PathLike[str] | None = None, progress: Progress | None = None
) -> int:
    """Remove what may go; how many runs went. Nothing is removed if the archive cannot be written to."""
    async with contextlib.AsyncExitStack() as stack:
        kept: Archive | None = None
        if archive is not None:
            kept = await stack.enter_async_context(open_archive(archive, store))
        remover, removed = Remover(store, keep, REAL, kept), 0
        after: str | None = FIRST
        while after is not None:
            found = await remover.look(after)
            removed += await remover.remove(found.free) or 0
            after = found.after
            if progress is not None:
                progress(removed)
    return removed


async def prunable(store: Store, keep: Keep) -> int:
    """How many runs may go. Those that are kept only for the sake of others among them are not counted."""
    remover, count = Remover(store, keep, REAL), 0
    after: str | None = FIRST
    while after is not None:
        found = await remover.look(after)
        count += len(found.free)
        after = found.after
    return count


class SparingPrune:
    """Removes ended runs of each workflow, but for the newest."""

    def __init__(self, store: Store, number: int, older_than: Seconds | None, status: str | None) -> None:
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise ConfigurationError(f"keep must be a number of runs, not {number!r}")
        self._store = store
        self._number = number
        self._keep = keep_for(0 if older_than is None else older_than, status)

    async def run(self, archive: str | os.PathLike[str] | None, progress: Progress | None) -> int:
        """Remove them; how many went."""
        async with contextlib.AsyncExitStack() as stack:
            kept = None if archive is None else await stack.enter_async_context(open_archive(archive, self._store))
            remover, removed = Remover(self._store, self._keep, REAL, kept), 0
            async for page in self._pages():
                removed += await remover.remove(page) or 0
                if progress is not None:
                    progress(removed)
        return removed

    async def count(self) -> int:
        """How many may go."""
        return sum([len(page) async for page in self._pages()])

    async def _pages(self) -> AsyncIterator[list[Ended]]:
        """Ended runs beyond the newest of each workflow, that no other run needs."""
        for workflow in [each.name for each in await self._store.definitions()]:
            for found in await self._beyond(workflow):
                yield [run for run in await self._store.ended(found) if needed_by(run) is None]

    async def _beyond(self, workflow: str) -> list[list[str]]:
        """The ids of the runs of one workflow, in pages. They are read before any is removed."""
        pages, ids, before, spared = list[list[str]](), list[str](), None, 0
        while True:
            rows = await self._store.runs(workflow=workflow, before=before, limit=_PAGE)
            for row in rows:
                if row.completed_at is None or (self._keep.status is not None and row.status != self._keep.status):
                    continue
                spared += 1
                if spared > self._number and row.now_ms - row.completed_at >= (self._keep.others or 0):
                    ids.append(row.id)
            if len(ids) >= _PAGE or len(rows) < _PAGE:
                pages, ids = [*pages, ids], []
            if len(rows) < _PAGE:
                return [page for page in pages if page]
            before = rows[-1].id


_PAGE = 500
"""Runs that one query reads."""
