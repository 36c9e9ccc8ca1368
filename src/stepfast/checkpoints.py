"""Checkpoints of graphs in the database of an application, for integrations of agents."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Coroutine, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from .engine.invocation import refuse_in_workflow
from .model.backoff import seconds
from .model.names import check_name
from .store.flows.checkpoints import CheckpointRow, Version, WriteRow, checkpoint_id, read_versions, value_id

if TYPE_CHECKING:
    from .app import Stepfast
    from .runtime import Connected

T = TypeVar("T")

_PAGE = 50
"""Checkpoints that are read at once."""
_BATCH = 100
"""Threads that are deleted in one transaction."""


class Checkpoint(NamedTuple):
    """A checkpoint: what identifies it, the version of each channel, and the rest as JSON."""

    thread: str
    ns: str
    id: str
    parent: str | None
    run: str | None
    versions: Mapping[str, Version]
    value: Any


class Write(NamedTuple):
    """What a task has written to a channel. The number tells its writes apart."""

    task: str
    path: str
    number: int
    channel: str
    value: Any


class Loaded(NamedTuple):
    """A checkpoint with the values of its channels and what tasks have written since."""

    checkpoint: Checkpoint
    values: dict[str, Any]
    writes: list[Write]


class Checkpoints:
    """The checkpoints in the database of an application. All values are JSON, and pass through its codec."""

    def __init__(self, app: Stepfast) -> None:
        self._app = app

    async def put(self, checkpoint: Checkpoint, values: Iterable[tuple[str, Version, Any]]) -> None:
        """Store a checkpoint and new values of channels (channel, version, value), in one transaction. Safe to
        repeat."""
        thread, format_ = self._thread(checkpoint.thread), self._payloads.format
        if checkpoint.run is not None:
            self._name(checkpoint.run, "the run_id of a checkpoint")
        row = CheckpointRow(
            self._id(thread, checkpoint.ns, checkpoint.id), thread, checkpoint.ns, checkpoint.id, checkpoint.parent,
            checkpoint.run, _json(dict(checkpoint.versions)), self._encode(checkpoint.value, "a checkpoint"), format_,
        )  # fmt: skip
        new = [(channel, version, self._encode(value, f"channel {channel!r}")) for channel, version, value in values]
        connected = await self._connect("put")
        await connected.ask(lambda: connected.store.put_checkpoint(row, new), "checkpoint")

    async def put_writes(
        self, thread: str, ns: str, checkpoint: str, writes: Sequence[Write], replace: bool = False
    ) -> None:
        """Store what a task has written for a checkpoint; what is there stays, unless it is to be replaced."""
        owner = self._id(self._thread(thread), ns, checkpoint)
        rows = [
            WriteRow(owner, *write[:4], self._encode(write.value, f"channel {write.channel!r}"), self._payloads.format)
            for write in writes
        ]
        connected = await self._connect("put_writes")
        await connected.ask(lambda: connected.store.put_checkpoint_writes(thread, rows, replace), "checkpoint")

    async def get(self, thread: str, ns: str, checkpoint: str | None = None) -> Loaded | None:
        """A checkpoint, or the last one of a thread and ns."""
        connected = await self._connect("get")
        if checkpoint is None:
            found = await self._page(connected, self._thread(thread), ns, None, None, 1)
            row = found[0] if found else None
        else:
            id_ = self._id(self._thread(thread), ns, checkpoint)
            row = await connected.ask(lambda: connected.store.checkpoint(id_), "checkpoint")
        return None if row is None else (await self._load(connected, [row]))[0]

    async def listed(
        self, thread: str | None, ns: str | None = None, before: str | None = None
    ) -> AsyncIterator[Checkpoint]:
        """Checkpoints, the newest first: of all threads, of one, or of one with an ns; those before another."""
        connected = await self._connect("list")
        rows: Sequence[CheckpointRow] = ()
        while True:
            rows = await self._page(connected, thread, ns, before, rows[-1] if rows else None, _PAGE)
            for row in rows:
                yield self._read(row)
            if len(rows) < _PAGE:
                return

    async def load(self, checkpoints: Sequence[Checkpoint]) -> list[Loaded]:
        """The values of checkpoints that were listed, and what tasks have written since."""
        connected = await self._connect("load")
        rows = [self._row(checkpoint) for checkpoint in checkpoints]
        return await self._load(connected, rows, checkpoints)

    async def delete_threads(self, threads: Collection[str]) -> None:
        """Delete all checkpoints of threads."""
        connected = await self._connect("delete_threads")
        await connected.ask(lambda: connected.store.delete_threads(threads), "checkpoint")

    async def delete_older(self, older_than: float | timedelta) -> int:
        """Delete threads that got no checkpoint for so long; how many."""
        age = int(seconds(older_than, "older_than") * 1000)
        connected, gone = await self._connect("delete_older"), 0
        while True:
            count = await connected.ask(lambda: connected.store.delete_old_threads(age, _BATCH), "checkpoint")
            gone += count
            if count < _BATCH:
                return gone

    async def delete_runs(self, runs: Collection[str]) -> None:
        """Delete the checkpoints that runs of graphs have made."""
        connected = await self._connect("delete_runs")
        await connected.ask(lambda: connected.store.delete_checkpoints_of_runs(runs), "checkpoint")

    async def delete(self, thread: str, checkpoints: Iterable[Checkpoint]) -> None:
        """Delete checkpoints of a thread, with what only they need."""
        connected = await self._connect("delete")
        ids = {self._id(each.thread, each.ns, each.id) for each in checkpoints}
        await connected.ask(lambda: connected.store.delete_checkpoints(thread, ids), "checkpoint")

    async def copy(self, source: str, target: str) -> None:
        """Copy all of a thread into another."""
        self._thread(target)
        connected = await self._connect("copy")
        rows = [self._row(checkpoint) async for checkpoint in self.listed(source)]
        await connected.ask(lambda: connected.store.copy_thread(source, target, rows), "checkpoint")

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for one of these calls in code without an event loop."""
        try:
            _refuse("of code without an event loop")
        except BaseException:
            coroutine.close()
            raise
        return self._app.sync.call(coroutine)

    # -- rows --------------------------------------------------------------------------------------------------------

    @property
    def _payloads(self) -> Any:
        return self._app._payloads

    async def _connect(self, called: str) -> Connected:
        _refuse(called)
        return await self._app._connect()

    async def _page(
        self, connected: Connected, thread: str | None, ns: str | None, before: str | None,
        behind: CheckpointRow | None, most: int,
    ) -> list[CheckpointRow]:  # fmt: skip
        store = connected.store
        return await connected.ask(lambda: store.checkpoints(thread, ns, before, behind, most), "checkpoint")

    async def _load(
        self, connected: Connected, rows: Sequence[CheckpointRow], known: Sequence[Checkpoint] = ()
    ) -> list[Loaded]:
        store = connected.store
        needed = {
            row.id: {
                channel: value_id(row.thread, row.ns, channel, version)
                for channel, version in read_versions(row.versions).items()
            }
            for row in rows
        }
        ids = {id_ for channels in needed.values() for id_ in channels.values()}
        found = await connected.ask(lambda: store.checkpoint_values(ids), "checkpoint")
        written = await connected.ask(lambda: store.checkpoint_writes([row.id for row in rows]), "checkpoint")
        writes: dict[str, list[Write]] = {}
        for write in written:
            value = self._decode(write.value, write.format)
            writes.setdefault(write.owner, []).append(Write(*write[1:5], value))
        return [
            Loaded(
                known[number] if known else self._read(row),
                {channel: self._decode(*found[id_]) for channel, id_ in needed[row.id].items() if id_ in found},
                writes.get(row.id, []),
            )
            for number, row in enumerate(rows)
        ]

    def _read(self, row: CheckpointRow) -> Checkpoint:
        value = self._decode(row.value, row.format)
        return Checkpoint(row.thread, row.ns, row.checkpoint, row.parent, row.run, read_versions(row.versions), value)

    def _row(self, it: Checkpoint) -> CheckpointRow:
        """The row of a checkpoint."""
        value = self._encode(it.value, "a checkpoint")
        id_, versions = checkpoint_id(it.thread, it.ns, it.id), _json(dict(it.versions))
        return CheckpointRow(id_, it.thread, it.ns, it.id, it.parent, it.run, versions, value, self._payloads.format)

    def _encode(self, value: Any, what: str) -> str:
        text: str = self._payloads.encode(value, what)
        return text

    def _decode(self, text: str, format_: int) -> Any:
        return self._payloads.decode(text, Any, format_, "a checkpoint")

    def _thread(self, thread: object) -> str:
        return self._name(thread, "the thread_id")

    def _id(self, thread: str, ns: str, checkpoint: object) -> str:
        return checkpoint_id(thread, ns, self._name(checkpoint, "the id of a checkpoint"))

    def _name(self, value: object, what: str) -> str:
        return check_name(value, what, self._app.settings.max_name)


def _refuse(called: str) -> None:
    refuse_in_workflow(f"a checkpointer ({called})", "stepfast.langgraph.durable(graph)")


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
