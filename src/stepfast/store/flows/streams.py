"""Items of streams: numbered when they are committed, under the lock of their stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from ...model.names import LOGS
from ...model.records import StreamItems
from .base import Flow, Rows, ask, put

Key = tuple[str, str]
"""A run, and the name of a stream of it."""
SourceKey = tuple[str, str, str]
"""The same, and what sends to it."""


DROPPED = "~dropped"
"""The source under which lines are counted that the log of a run had no room for."""


class _Stream(Struct):
    """A stream: how many items it has, and of how many bytes."""

    items: int = 0
    size: int = 0


class _Source(NamedTuple):
    """What is stored of a source: how many items, by which try of a step."""

    claim: int | None
    attempt: int
    items: int


def append(entries: Sequence[StreamItems], now: int) -> Flow[set[Key]]:
    """Store items, each with the next number of its stream; those that are stored already, by a flush whose reply was
    lost or by an earlier execution of the same code, are left out. The streams that had no room, by the run that sent.

    Only the holder of a run sends to its streams, but several steps of a dag run send to the streams of that run: the
    rows of streams are locked, in their order.
    """
    items = [(entry, item) for entry in entries for item in entry.items]
    if not items:
        return set()
    streams = yield from _lock({(item.owner, item.stream) for _, item in items})
    dropped = {(item.owner, LOGS, DROPPED) for _, item in items if item.stream == LOGS}
    sources = yield from _sources({(item.owner, item.stream, item.source) for _, item in items} | dropped)
    full: set[Key] = set()
    heard: set[SourceKey] = set()
    rows: list[tuple[Any, ...]] = []
    for entry, item in items:
        key, source_key = (item.owner, item.stream), (item.owner, item.stream, item.source)
        stream, source = streams[key], sources.get(source_key)
        begun = source is None or (source.claim, source.attempt) != (item.claim, item.attempt)
        stored = 0 if begun or source is None else source.items
        is_log, is_count = item.stream == LOGS, item.stream == LOGS and item.value is None
        if item.number < stored + is_count:
            continue
        size = len(item.value or "")
        most = entry.most_lines if is_log else entry.most_items
        if is_count or stream.items >= most or stream.size + size > entry.most_bytes:
            if is_log:
                lost = (*key, DROPPED)
                before = sources[lost].items if lost in sources else 0
                sources[lost] = _Source(None, 1, before + (item.number - stored if is_count else 1))
                sources[source_key] = _Source(item.claim, item.attempt, item.number + (not is_count))
                heard |= {lost, source_key}
            else:
                full.add((entry.run_id, item.stream))
            continue
        restarted = begun and source is not None
        stream.items, stream.size = stream.items + 1, stream.size + size
        sources[source_key] = _Source(item.claim, item.attempt, item.number + 1)
        heard.add(source_key)
        rows.append((*key, stream.items, item.attempt, restarted, item.value, item.format, now))
    touched = {(row[0], row[1]) for row in rows}
    yield from put("append_items", rows)
    yield from put("count_items", [(*key, streams[key].items, streams[key].size) for key in sorted(touched)])
    yield from put("note_sources", [(*key, *sources[key]) for key in sorted(heard)])
    return full


def _lock(keys: Iterable[Key]) -> Flow[dict[Key, _Stream]]:
    """Lock the rows of streams, which are made where there are none yet."""
    wanted = sorted(keys)
    found = yield from _locked(wanted)
    if missing := [key for key in wanted if key not in found]:
        yield from put("make_streams", [(*key, 0, 0) for key in missing])
        found = yield from _locked(wanted)
    return found


def _locked(keys: Sequence[Key]) -> Flow[dict[Key, _Stream]]:
    rows = yield from ask("lock_streams", Rows(keys))
    return {(row[0], row[1]): _Stream(row[2], row[3]) for row in rows}


def _sources(keys: Iterable[SourceKey]) -> Flow[dict[SourceKey, _Source]]:
    rows = yield from ask("stream_sources", Rows(sorted(keys)))
    return {(row[0], row[1], row[2]): _Source(*row[3:]) for row in rows}
