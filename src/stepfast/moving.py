"""Moves a namespace from one database to another, and back.

The old namespace is closed first, by the database itself, so that nothing is written into it that is not copied. Then
its tables are copied in batches; each is committed together with how far the copy has come, so that a move which was
interrupted continues. Both sides are compared, and only then is the new namespace opened.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from .errors import ConfigurationError, DatabaseRefused, InvalidState, NamespaceMoved, SchemaError
from .model.ids import new_id
from .model.records import WorkerInfo
from .model.urls import DatabaseUrl, redact
from .store import Store
from .store.answers import SchemaState
from .store.migrations import FILLED, IS_FILLED, MOVED, WAS_MOVED, refuse_too_new
from .store.tables import META, OWN, SEEDED, Mark, Size, Table, Tables, key_of

_PAUSE = 0.5
"""Seconds between two looks whether workers have left."""
_ROOM = 4096
"""Bytes of a statement beside one row."""
_MODULUS = 1 << 128


class Side(NamedTuple):
    """One of the two namespaces."""

    url: DatabaseUrl
    namespace: str
    store: Store

    @property
    def place(self) -> str:
        """What it is called, without a password."""
        return f"{redact(self.url.text)}, namespace {self.namespace!r}"

    @property
    def is_absent(self) -> bool:
        """Whether it is a file that is not there; to open it would make it."""
        return self.url.kind == "sqlite" and self.url.path is not None and not os.path.exists(self.url.path)


class Counted(NamedTuple):
    """A table on one side: how many rows, and a digest of all of them in any order."""

    rows: int
    digest: str


class Plan(NamedTuple):
    """What is to be moved."""

    sizes: dict[str, Size]
    mark: Mark | None
    """Of a move that was begun before, and continues."""

    @property
    def rows(self) -> int:
        """Of all tables."""
        return sum(size.rows for size in self.sizes.values())


Progress = Callable[[str, int], None]
"""Called with what is done, and how many rows were copied or compared."""


class Move:
    """A move from one side to the other. The stores are open, but that of an absent file."""

    def __init__(self, source: Side, target: Side, progress: Progress = lambda what, rows: None) -> None:
        self._source = source
        self._target = target
        self._progress = progress
        self._tables: dict[Side, Tables] = {}

    async def plan(self) -> Plan:
        """Look at both sides, and refuse what cannot work. Nothing is written."""
        source, target = self._source, self._target
        _refuse_kinds(source, target)
        state = await _state(source, "there is nothing to move")
        tables = self._of(source)
        mark = await self._begun(tables, state)
        described = await self._known(tables)
        if mark is None:
            await self._refuse_live()
        if not target.is_absent:
            await self._refuse_target(mark)
        sizes = {name: await tables.size(table) for name, table in described.items()}
        await self._refuse_what_does_not_fit(described, sizes)
        return Plan(sizes, mark)

    async def wait_for_workers(self, seconds: float) -> None:
        """Wait until no worker lives at the source, at most so long."""
        deadline = asyncio.get_running_loop().time() + seconds
        while await self._live() and asyncio.get_running_loop().time() < deadline:
            self._progress("waiting for workers to stop", 0)
            await asyncio.sleep(_PAUSE)

    async def execute(self, plan: Plan) -> dict[str, Counted]:
        """Move what was planned; the tables as they are on both sides. May be repeated after any interruption."""
        ours, theirs = self._of(self._source), self._of(self._target)
        moved = await ours.mark(MOVED)
        if moved is not None and moved.done:  # it was compared, and only the new namespace is still to be opened
            await theirs.open(FILLED)
            return {name: await self._digest(self._source, name) for name in plan.sizes}
        mark = await self._close_both(plan.mark)
        copied = 0
        for name in plan.sizes:
            copied = await self._copy(name, mark.id, copied)
        found = await self.compare(plan)
        moved = await ours.mark(MOVED)
        assert moved is not None, "it was closed above"
        await ours.put_mark(MOVED, msgspec.structs.replace(moved, done=True))
        await theirs.open(FILLED)
        return found

    async def compare(self, plan: Plan) -> dict[str, Counted]:
        """Read both sides to the end, and refuse what differs."""
        found, different, compared = dict[str, Counted](), list[str](), 0
        for name, size in plan.sizes.items():
            ours, theirs = await asyncio.gather(self._digest(self._source, name), self._digest(self._target, name))
            if ours != theirs:
                different.append(f"{name} ({ours.rows} rows there, {theirs.rows} here)")
            rows = await self._of(self._source).count(name)
            if rows != ours.rows:
                different.append(f"{name} ({rows} rows are there, {ours.rows} were read)")
            found[name] = ours
            compared += size.rows
            self._progress(f"compared {name}", compared)
        if different:
            raise DatabaseRefused(
                f"the copy differs from the original in {', '.join(different)}: both namespaces stay closed. "
                "Report it, and run the command with --back to work on with the old one"
            )
        return found

    async def back(self, force: bool) -> None:
        """Open the old namespace again. What the new one has is dropped or closed, if it is still the same: otherwise
        it is refused. With ``force`` the new one is not asked."""
        source, target = self._source, self._target
        tables = self._of(source)
        mark = await tables.mark(MOVED)
        if mark is None:
            raise InvalidState(f"{source.place} was not moved: there is nothing to take back")
        if not force:
            await self._take_back(mark, target)
        await tables.open(MOVED)

    async def _take_back(self, mark: Mark, target: Side) -> None:
        """Close the new namespace for good, or drop it where it was not complete."""
        if target.is_absent or (await target.store.schema_state()).version == 0:
            if mark.done:
                raise InvalidState(f"{target.place} has no tables any more: with --force it is not asked")
            return
        new = self._of(target)
        filled = await new.mark(FILLED)
        if filled is not None and filled.id == mark.id and not mark.done:
            await target.store.reset()
            return
        if not mark.done:
            raise InvalidState(f"{target.place} is not where this namespace was being moved to ({mark.said})")
        closed = await new.mark(MOVED)
        if closed is None:
            closed = Mark(id=mark.id, said=_moved(self._source), done=True)
        elif closed.id != mark.id:
            raise InvalidState(f"{target.place} was moved on itself: {closed.said}")
        await new.close(MOVED, closed)
        described = await self._known(self._of(self._source))
        try:
            await self.compare(Plan(dict.fromkeys(described, Size(0, 0)), mark))
        except DatabaseRefused:
            await new.open(MOVED)
            raise InvalidState(
                f"{target.place} was written to since the move: what happened there would be lost. To keep it, "
                "reset the old namespace and move the new one there; to give it up, use --force"
            ) from None

    def _of(self, side: Side) -> Tables:
        """The tables of a side, whose store is open."""
        if side not in self._tables:
            self._tables[side] = side.store.tables()
        return self._tables[side]

    # -- what is refused

    async def _begun(self, tables: Tables, state: SchemaState) -> Mark | None:
        """The mark of a move to this target that was interrupted."""
        if await tables.mark(FILLED) is not None:
            raise NamespaceMoved(str(state.moved))
        moved = await tables.mark(MOVED)
        target = None if self._target.is_absent else await self._of(self._target).mark(FILLED)
        if moved is not None and (target is None or target.id != moved.id):
            raise NamespaceMoved(moved.said)
        if target is not None and moved is None and target.said != _filled(self._source):
            raise NamespaceMoved(target.said)
        return target

    async def _refuse_target(self, mark: Mark | None) -> None:
        """The tables have to be of this version, and empty, unless a move has begun to fill them."""
        if mark is not None:
            return
        state = await self._target.store.schema_state()
        if state.version == 0:
            return
        if state.moved is not None:
            raise InvalidState(f"{self._target.place} cannot be filled ({state.moved}): empty it with `stepfast reset`")
        refuse_too_new(state)
        if state.pending:
            raise SchemaError(
                f"the tables of {self._target.place} are older than this version: run `stepfast migrate` there"
            )
        await self._refuse_rows()

    async def _refuse_rows(self) -> None:
        tables = self._of(self._target)
        for name in await tables.describe():
            if name in OWN | SEEDED | {META}:
                continue
            if await tables.has_rows(name):
                raise InvalidState(
                    f"{self._target.place} is not empty: there are rows in {name}. Name another namespace with "
                    "--to-namespace, or empty that one with `stepfast reset`"
                )

    async def _refuse_what_does_not_fit(self, described: dict[str, Table], sizes: dict[str, Size]) -> None:
        there = None if self._target.is_absent else self._of(self._target)
        if there is None:
            return
        tables = self._of(self._source)
        for name, table in described.items():
            column = await tables.too_long(table, there.longest().get(name, {}))
            if column is not None:
                most = there.longest()[name][column]
                raise ConfigurationError(
                    f"{name}.{column} has texts of more than {most} characters, which {self._target.place} cannot keep"
                )
            if there.packet is not None and sizes[name].largest + _ROOM > there.packet:
                raise ConfigurationError(
                    f"a row of {name} has {sizes[name].largest:,} bytes, and {self._target.place} takes "
                    f"{there.packet:,} at once: raise max_allowed_packet there"
                )

    async def _live(self) -> list[WorkerInfo]:
        return [worker for worker in await self._source.store.workers() if worker.state != "dead"]

    async def _refuse_live(self) -> None:
        live = await self._live()
        if live:
            names = ", ".join(f"{worker.host}/{worker.pid}" for worker in live)
            raise InvalidState(
                f"workers still live in {self._source.place}: {names}. Stop them first (one that crashed is gone after "
                "its lease), or wait for them with --wait 5m"
            )

    # -- what is done

    async def _known(self, tables: Tables) -> dict[str, Table]:
        """The tables to be copied."""
        return {name: table for name, table in (await tables.describe()).items() if name not in OWN | {META}}

    async def _close_both(self, mark: Mark | None) -> Mark:
        """Close both namespaces: first the new one, so that it is known which is being filled."""
        source, target = self._source, self._target
        tables, filled = self._of(source), mark or Mark(id=new_id(), said=_filled(source))
        if mark is None:
            await target.store.migrate()
        await self._of(target).close(FILLED, filled)
        if mark is None:
            try:
                await self._refuse_same(filled)
                await self._refuse_rows()
                await self._compare_columns()
            except Exception:
                await self._of(target).open(FILLED)
                raise
        moved = await tables.mark(MOVED)
        if moved is None:
            moved = Mark(id=filled.id, said=_moved(target))
            await tables.close(MOVED, moved)
            if await self._live():
                await tables.open(MOVED)
                await self._of(target).open(FILLED)
                await self._refuse_live()
                raise InvalidState("a worker came and went: nothing was moved, try again")
        else:
            await tables.close(MOVED, moved)  # where an interruption has left only a part of it
            await self._refuse_live()
        return filled

    async def _refuse_same(self, filled: Mark) -> None:
        found = await self._of(self._source).mark(FILLED)
        if found is not None and found.id == filled.id:
            raise ConfigurationError(f"{self._source.place} and {self._target.place} are the same namespace")

    async def _compare_columns(self) -> None:
        ours = await self._known(self._of(self._source))
        theirs = await self._known(self._of(self._target))
        if {name: [*table.columns] for name, table in ours.items()} != {
            name: [*table.columns] for name, table in theirs.items()
        }:
            raise SchemaError(
                f"the tables of {self._source.place} and {self._target.place} are not the same: run `stepfast migrate` "
                "for both, with the same version"
            )

    async def _copy(self, name: str, move: str, copied: int) -> int:
        """Copy a table from where the mark says; how many rows were copied by then."""
        source, target = self._of(self._source), self._of(self._target)
        ours, theirs = (await source.describe())[name], (await target.describe())[name]
        mark = await target.mark(FILLED)
        if mark is None or mark.id != move:
            raise InvalidState("another process has ended or undone this move")
        if name in mark.finished:
            return copied + await source.count(name)
        begins = mark.table != name
        if begins:  # what other tables have that should be empty is found when both sides are compared
            begun = msgspec.structs.replace(mark, table=name, after=[])
            mark = await self._written(target, theirs, [], name in SEEDED, mark, begun)
        else:
            copied += await target.count(name)
        page_bytes = min(source.page_bytes, target.page_bytes)
        while page := await source.page(ours, mark.after, page_bytes):
            further = msgspec.structs.replace(mark, after=key_of(ours, page[-1]))
            mark = await self._written(target, theirs, page, False, mark, further)
            copied += len(page)
            self._progress(f"copying {name}", copied)
        ended = msgspec.structs.replace(mark, finished=[*mark.finished, name], table="", after=[])
        await self._written(target, theirs, [], False, mark, ended)
        return copied

    async def _written(
        self, target: Tables, table: Table, rows: list[tuple[object, ...]], clear: bool, before: Mark, after: Mark
    ) -> Mark:
        if not await target.write(table, rows, clear, before, after):
            raise InvalidState("another process moves this namespace at the same time")
        return after

    async def _digest(self, side: Side, name: str) -> Counted:
        """The sum of the hashes of all rows, because each database has an order of its own."""
        tables = self._of(side)
        table = (await tables.describe())[name]
        rows, total, after = 0, 0, list[object]()
        while page := await tables.page(table, after, tables.page_bytes):
            for row in page:
                total += int.from_bytes(hashlib.blake2b(msgspec.json.encode(row), digest_size=16).digest())
            rows, after = rows + len(page), key_of(table, page[-1])
        return Counted(rows, f"{total % _MODULUS:032x}")


def _refuse_kinds(source: Side, target: Side) -> None:
    for side in (source, target):
        if side.url.kind == "sqlite" and side.url.path is None:
            raise ConfigurationError("a database in memory belongs to its process: it cannot be moved")
    same_file = source.url.path is not None and target.url.path is not None
    same = (
        os.path.realpath(source.url.path or "") == os.path.realpath(target.url.path or "")
        if same_file
        else (source.url.text == target.url.text)
    )
    if same and source.namespace == target.namespace:
        raise ConfigurationError(f"{source.place} is the same namespace of the same database")


async def _state(side: Side, otherwise: str) -> SchemaState:
    if side.is_absent:
        raise SchemaError(f"{otherwise}: there is no SQLite file {side.url.path!r}")
    state = await side.store.schema_state()
    if state.version == 0:
        raise SchemaError(f"{otherwise}: there are no Stepfast tables in {side.place}")
    refuse_too_new(state._replace(moved=None))
    if state.pending:
        raise SchemaError(f"the tables of {side.place} are older than this version: run `stepfast migrate` there first")
    return state


def _moved(target: Side) -> str:
    return f"{WAS_MOVED} to {target.place}"


def _filled(source: Side) -> str:
    return f"{IS_FILLED} by a move from {source.place}"
