"""Checkpoints of graphs, and conversations of agents: what belongs to no run, and stays until it is deleted."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from ...model.stored import read_json
from .base import Flow, ask, put

Version = str | int | float
"""The version of a value of a channel."""


class CheckpointRow(NamedTuple):
    """A checkpoint, as it is stored."""

    id: str
    thread: str
    ns: str
    checkpoint: str
    parent: str | None
    run: str | None
    versions: str
    value: str
    format: int


class WriteRow(NamedTuple):
    """What a task has written for a checkpoint."""

    owner: str
    task: str
    path: str
    number: int
    channel: str
    value: str
    format: int


class ItemRow(NamedTuple):
    """An item of a conversation."""

    number: int
    value: str
    format: int


def made_id(*parts: object) -> str:
    """The id that is made from what a row is: the same for the same."""
    digest = hashlib.blake2b(msgspec.json.encode(parts), digest_size=16).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:]}"


def scope_id(thread: str, ns: str) -> str:
    """The id of a thread with an ns."""
    return made_id("scope", thread, ns)


def checkpoint_id(thread: str, ns: str, checkpoint: str) -> str:
    """The id of the row of a checkpoint."""
    return made_id("checkpoint", thread, ns, checkpoint)


def value_id(thread: str, ns: str, channel: str, version: Version) -> str:
    """The id of the row of a value."""
    return made_id("value", thread, ns, channel, version)


Values = Iterable[tuple[str, Version, str]]
"""Channel, version, value."""


def put_checkpoint(row: CheckpointRow, values: Values) -> Flow[None]:
    """Store a checkpoint and new values of channels."""
    yield from put("put_checkpoint_values", [
        (value_id(row.thread, row.ns, channel, version), row.thread, row.ns, channel, _json(version), value, row.format)
        for channel, version, value in values
    ])  # fmt: skip
    yield from _put([row])


def _put(rows: Sequence[CheckpointRow]) -> Flow[int]:
    return put("put_checkpoints", [(row.id, scope_id(row.thread, row.ns), *row[1:]) for row in rows])


def put_writes(thread: str, rows: Sequence[WriteRow], replace: bool) -> Flow[None]:
    """Store what a task has written."""
    name = "replace_checkpoint_writes" if replace else "add_checkpoint_writes"
    yield from put(name, [_write(thread, row) for row in sorted(rows, key=lambda row: row.number)])


def _write(thread: str, row: WriteRow) -> tuple[Any, ...]:
    return (made_id("write", row.owner, row.task, row.number), row.owner, thread, *row[1:])


def delete_threads(threads: Collection[str]) -> Flow[None]:
    """Delete all checkpoints of threads."""
    rows = [(thread,) for thread in sorted(set(threads))]
    yield from put("delete_threads", rows)
    yield from put("delete_thread_values", rows)
    yield from put("delete_thread_writes", rows)


def delete_old_threads(age_ms: int, most: int) -> Flow[int]:
    """Delete threads that got no checkpoint for longer; how many, of at most so many."""
    found = [row[0] for row in (yield from ask("old_threads", age_ms, most))]
    yield from delete_threads(found)
    return len(found)


def delete_of_runs(runs: Collection[str]) -> Flow[None]:
    """Delete the checkpoints that runs of graphs have made."""
    found = yield from ask("checkpoints_of_runs", sorted(set(runs)))
    yield from delete_checkpoints({row[1] for row in found}, {row[0] for row in found})


def delete_checkpoints(threads: Collection[str], ids: Collection[str]) -> Flow[None]:
    """Delete checkpoints of threads, what was written for them, and the values that no other checkpoint needs. Values
    of a checkpoint that comes at the same time are new, or those of its parent."""
    if not ids:
        return
    gone, needed = set[str](), set[str]()
    for id_, thread, ns, versions in (yield from ask("checkpoint_versions", sorted(threads))):
        values = {value_id(thread, ns, channel, version) for channel, version in read_versions(versions).items()}
        (gone if id_ in ids else needed).update(values)
    rows = [(id_,) for id_ in sorted(ids)]
    yield from put("delete_checkpoints", rows)
    yield from put("delete_checkpoint_writes", rows)
    yield from put("delete_checkpoint_values", [(id_,) for id_ in sorted(gone - needed)])


def copy_thread(source: str, target: str, rows: Sequence[CheckpointRow]) -> Flow[None]:
    """Copy all of a thread, whose checkpoints are given, into another."""
    ids = {row.id: checkpoint_id(target, row.ns, row.checkpoint) for row in rows}
    values = yield from ask("values_of_thread", source)
    writes = [WriteRow(*row) for row in (yield from ask("writes_of_thread", source))]
    yield from put("put_checkpoint_values", [
        (value_id(target, ns, channel, _version(version)), target, ns, channel, version, value, format_)
        for ns, channel, version, value, format_ in values
    ])  # fmt: skip
    yield from _put([row._replace(id=ids[row.id], thread=target) for row in rows])
    copied = [_write(target, row._replace(owner=ids[row.owner])) for row in writes if row.owner in ids]
    yield from put("add_checkpoint_writes", copied)


def read_versions(text: str) -> dict[str, Version]:
    """The versions of the channels of a checkpoint."""
    return read_json(text, dict[str, Version], {})


def _version(text: str) -> Version:
    return cast(Version, read_json(text, object, text))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


# -- conversations -----------------------------------------------------------------------------------------------------


def _lock_session(session: str, format_: int) -> Flow[None]:
    yield from put("open_session", [(session, format_)])
    yield from ask("lock_session", session)


def add_items(session: str, batch: str, values: Sequence[str], format_: int) -> Flow[None]:
    """Add items to the end of a session; those of a batch that was added already are there."""
    yield from _lock_session(session, format_)
    if (yield from ask("session_batch", session, batch)):
        return
    last: int = (yield from ask("last_session_item", session))[0][0]
    rows = [(session, last + number, batch, value, format_) for number, value in enumerate(values, 1)]
    yield from put("add_session_items", rows)


def take_item(session: str, taker: str, format_: int) -> Flow[ItemRow | None]:
    """Take the last item off a session, for a taker that gets the same one again."""
    yield from _lock_session(session, format_)
    for row in (yield from ask("session_item_taken", session, taker)):
        return ItemRow(*row)
    for row in (yield from ask("session_items", session, 1)):
        yield from put("take_session_item", [(session, row[0], taker)])
        return ItemRow(*row)
    return None


def forget_item(session: str, taker: str) -> Flow[None]:
    """Delete an item that was taken, and will not be asked for again."""
    yield from put("forget_session_item", [(session, taker)])


def delete_sessions(sessions: Collection[str]) -> Flow[None]:
    """Delete all items of sessions."""
    yield from put("delete_session", [(session,) for session in sorted(set(sessions))])


def delete_old_sessions(age_ms: int, most: int) -> Flow[int]:
    """Delete sessions to which nothing was added for longer; how many, of at most so many."""
    found = [row[0] for row in (yield from ask("old_sessions", age_ms, most))]
    yield from delete_sessions(found)
    return len(found)
