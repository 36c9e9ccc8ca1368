"""What a database does in a way of its own comes to the same as what every database can do (rule 65).

Two worlds live alike, operation for operation, with the same ids: in one the store overrides what it does, in the other
it has the flows and statements of all databases.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import msgspec
import pytest

from stepfast.errors import QueueFull
from stepfast.model.ids import new_id
from stepfast.model.queue_config import Bound
from stepfast.model.records import Claimed, Entry, Look, NewRun, Parent, RunShape
from stepfast.store import Store
from stepfast.store import sql as store_sql
from stepfast.store.dialects import Dialect, Source
from stepfast.store.postgres import PostgresStore
from tests.store.conftest import ENOUGH, Stores, only_on
from tests.store.scene import WORKFLOWS, Scene, completed, joint, signal, step, waiting
from tests.store.test_short_way import SET, TABLES

pytestmark = ENOUGH

METHODS = ("start", "start_bounded", "claim", "claim_suspects", "claim_limited", "flush", "mail", "tick", "dag_outputs")
"""What the base class does by flows."""
UNLIKE = {"seed", "token"}
Worlds = tuple[Scene, Scene]


def without_overrides(dialect: Dialect) -> dict[str, Source]:
    """The statements of a database, but those of all where it overrides them."""
    every = {written.name: written.source for file in store_sql.FILES for written in bodies(file)}
    own = [written for file in store_sql.FILES for written in bodies(f"{dialect.name}/{file}")]
    return {written.name: written.source for written in own if written.name not in every} | every


def bodies(file: str) -> list[Any]:
    return list(store_sql._bodies(store_sql.FOLDER / file))


def forget_texts() -> None:
    store_sql._rendered.cache_clear()
    store_sql._load.cache_clear()


def plain(store: Store) -> Store:
    """The store, with the methods of the base class."""
    kind = type(store)
    store.__class__ = type("Plain", (kind,), {name: getattr(Store, name) for name in METHODS})
    if isinstance(store, PostgresStore):
        store._driver._starts = None
    return store


@pytest.fixture
async def worlds(stores: Stores, store: Store, monkeypatch: pytest.MonkeyPatch) -> Worlds:
    worker = new_id()
    own = await stores.scene(store)
    with monkeypatch.context() as patched:
        patched.setattr(store_sql, "sources", without_overrides)
        forget_texts()
        other = plain(await stores.open("plain"))
    forget_texts()
    await other.migrate()
    both = own, await stores.scene(other, "plain")
    for scene in both:
        scene.worker = await scene.add_worker(id=worker)
    return both


class Story:
    """What happens in both worlds, made up as it goes."""

    def __init__(self, worlds: Worlds, seed: int) -> None:
        self.worlds = worlds
        self.random = Random(seed)
        self.ids: list[str] = []
        self.sent: list[tuple[Any, ...]] = []
        self.held: list[tuple[Claimed, Claimed]] = []
        self.place = 0

    async def each(self, act: Callable[[Scene], Awaitable[Any]]) -> Any:
        """The same in both; the answers must be the same."""
        first, second = [await act(scene) for scene in self.worlds]
        assert first == second
        return first

    def shape(self) -> RunShape:
        choose = self.random.choice
        return RunShape(
            workflow=choose(WORKFLOWS), version="v1", queue=choose(("slow", "quick")), priority=choose((0, 0, 5)),
            delay_ms=choose((0, 0, 0, 50_000)), expires_ms=choose((None, 60_000)), deadline_ms=choose((None, 90_000)),
            tags=choose(((), ("a",), ("a", "b"))), concurrency_key=choose((None, "k")),
        )  # fmt: skip

    def made(self) -> list[tuple[Any, ...]]:
        """Starts: what `run` makes runs of, for each world anew."""
        found = []
        for _ in range(self.random.randint(1, 4)):
            shape, key = self.shape(), self.random.choice((None, None, "x", "y"))
            parent = Parent(self.random.choice(self.ids), "", 0, new_id()) if self.ids and not key else None
            found.append((new_id(), shape, key, parent if self.random.random() < 0.3 else None))
        if self.sent and self.random.random() < 0.2:
            found.append(self.random.choice(self.sent))  # once more: its reply was lost
        self.sent += found
        return found

    async def start(self) -> None:
        made = self.made()

        async def act(scene: Scene) -> Any:
            runs = [run(*each) for each in made]
            ids = await scene.store.start(runs)
            return ids, [each.earlier for each in runs]

        await self.each(act)
        await self.settle([each[0] for each in made])

    async def start_bounded(self) -> None:
        made, most = self.made(), self.random.randint(1, 12)
        made = [(run_id, shape._replace(queue="slow"), key, parent) for run_id, shape, key, parent in made]

        async def act(scene: Scene) -> Any:
            try:
                return await scene.store.start_bounded([run(*each) for each in made], Bound("slow", most))
            except QueueFull as error:
                return str(error)

        await self.each(act)
        await self.settle([each[0] for each in made])

    async def settle(self, ids: list[str]) -> None:
        """Runs that are ready have the same places in both worlds: clocks differ."""
        for run_id in dict.fromkeys(ids):
            self.place += 1
            update = "UPDATE [runs] SET place = ? WHERE id = ? AND place IS NOT NULL"
            for scene in self.worlds:
                await scene.rows.fetch(update, self.place, run_id)
        self.ids += [run_id for run_id in ids if run_id not in self.ids]

    async def tick(self) -> None:
        async def act(scene: Scene) -> Any:
            known = self.random_known
            found = await scene.store.tick(scene.worker, known, True, ["slow", "quick"])
            return (
                sorted(found.lanes), found.due, found.suspects, found.mail, sorted(found.limited), found.gated,
                found.paused, sorted(found.limited_suspects), found.remote, found.schedule_ms,
                found.next_due_ms is None,
            )  # fmt: skip

        self.random_known = self.random.choice((None, WORKFLOWS, WORKFLOWS[:1]))
        await self.each(act)

    async def claim(self) -> None:
        limit, token = self.random.randint(1, 5), self.random.randint(1, 10**9)
        claimed = []
        for scene in self.worlds:
            lanes = sorted(await scene.lanes())
            claimed.append(await scene.claim(limit, token=token, lanes=lanes) if lanes else [])
        first, second = claimed
        assert [shown(each) for each in first] == [shown(each) for each in second]
        self.held += zip(first, second, strict=True)

    async def flush(self) -> None:
        some = [self.held.pop() for _ in range(min(len(self.held), self.random.randint(1, 3)))]
        for pair in some:
            kind = self.random.choice(("step", "child", "complete", "wait", "back"))
            child = NewRun(new_id(), self.shape(), "{}", parent=Parent(pair[0].id, "", 50, new_id()))
            for scene, claimed in zip(self.worlds, pair, strict=True):
                if kind == "back":
                    await scene.store.give_back(scene.worker, [(claimed.id, claimed.claim)])
                    continue
                entries: list[Entry] = [step(claimed, claimed.claim)]
                if kind == "complete":
                    entries.append(completed(claimed))
                elif kind == "wait":
                    entries.append(waiting(claimed, None))
                elif kind == "child":
                    entries = [joint(claimed, 50, starts=[msgspec.structs.replace(child)])]
                answer = await scene.flush(*entries)
                assert not answer.lost | answer.busy
            await self.settle([pair[0].id, *([child.id] if kind == "child" else [])])
            if kind in ("step", "child"):
                self.held.insert(0, pair)

    async def send(self) -> None:
        if self.ids:
            mail = signal(self.random.choice(self.ids), self.random.choice(("paid", "sent")))

            async def act(scene: Scene) -> Any:
                answer = await scene.store.send(signal(mail.run_id, mail.name, id=mail.id))
                return answer.status, answer.reason, answer.done, answer.lane, answer.running

            await self.each(act)
            await self.settle([mail.run_id])

    async def mail(self) -> None:
        names: dict[str, int] | None = self.random.choice((None, {"paid": 1}, {"paid": 2, "sent": 1}, {}))

        async def act(scene: Scene) -> Any:
            boxes = await scene.store.mail([Look(run_id, names) for run_id in self.ids])
            return {
                run_id: (box.wakes, box.ends, box.more, [(m.id, m.kind, m.name, m.value) for m in box.mail])
                for run_id, box in boxes.items()
            }

        await self.each(act)

    async def pause(self) -> None:
        queue, paused = self.random.choice(("slow", "quick")), self.random.random() < 0.3
        for scene in self.worlds:
            await scene.store.change_queue(queue, lambda gate, now: paused_gate(gate, paused, now))


def paused_gate(gate: Any, paused: bool, now: int) -> Any:
    gate.paused, gate.paused_at = paused, now if paused else None
    return gate


def run(run_id: str, shape: RunShape, key: str | None, parent: Parent | None) -> NewRun:
    return NewRun(run_id, shape, "{}", key, parent=parent)


def shown(claimed: Claimed) -> dict[str, Any]:
    """A claimed run but for its times and secrets."""
    leave_out = UNLIKE | {"started_at", "now_ms", "deadline_in_ms", "records", "ready_at"}
    found = {name: getattr(claimed, name) for name in claimed.__struct_fields__ if name not in leave_out}
    return found | {"records": [(record.position, record.seq, record.output) for record in claimed.records]}


async def tables(scene: Scene, namespace: str) -> dict[str, list[Any]]:
    """All that is stored, but for times and secrets."""
    found = {}
    for table in (*TABLES, "run_tags", "claims"):
        if scene.store.dialect == "mysql":
            listed = "information_schema.columns WHERE table_schema = DATABASE() AND table_name = ?"
            found_names = await scene.rows.fetch(f"SELECT column_name FROM {listed}", f"{namespace}_{table}")
            names = [(f"`{name}`" if name in ("key", "undo") else name,) for (name,) in found_names]
        elif scene.store.dialect == "sqlite":
            names = await scene.rows.fetch(f"SELECT name FROM pragma_table_info('{namespace}_{table}')")
        else:
            listed = "information_schema.columns WHERE table_schema = ? AND table_name = ?"
            names = await scene.rows.fetch(f"SELECT column_name::text FROM {listed}", namespace, table)
        columns = sorted(name for (name,) in names if name not in UNLIKE)
        rows = await scene.rows.fetch(f"SELECT {', '.join(columns)} FROM [{table}]")
        plain = [[shown_value(name, value) for name, value in zip(columns, row, strict=True)] for row in rows]
        found[table] = sorted(plain, key=repr)
    return found


def shown_value(name: str, value: Any) -> Any:
    return value is not None if SET.search(name) else str(value)


ACTS = ("start", "start", "start_bounded", "tick", "claim", "claim", "flush", "flush", "send", "mail", "pause")


@only_on("postgres", "mariadb", "sqlite")
@pytest.mark.parametrize("seed", range(3))
async def test_overrides_and_defaults_come_to_the_same(worlds: Worlds, seed: int) -> None:
    story = Story(worlds, seed)
    for _ in range(60):
        await getattr(story, story.random.choice(ACTS))()
    own, other = [await tables(scene, name) for scene, name in zip(worlds, ("stepfast", "plain"), strict=True)]
    assert own == other
    assert len(own["runs"]) > 10 and own["steps"] and own["mailbox"]
