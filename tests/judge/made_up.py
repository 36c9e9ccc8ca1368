"""A story made up by hand, in which nothing is wrong, and how to change something in it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from tests.judge.evidence import (
    ASKS,
    INSERTED,
    RAISES,
    UNDO,
    Act,
    Evidence,
    Letter,
    Move,
    Place,
    Row,
    Run,
    Seen,
    Signal,
    Start,
    Step,
    Try,
    Wish,
    Write,
)

MS = 1000
S = 1000 * MS
Change = TypeVar("Change", bound=Callable[[Any], object])


class Changes:
    """Changes of a story, each with the kinds of violations that must be found then; None, if it is legal."""

    def __init__(self, story: Callable[[], Any]) -> None:
        self._story = story
        self.cases: list[Any] = []

    def add(self, kind: str | None, name: str, change: Callable[[Any], object], of: Any = None) -> None:
        self.cases.append(pytest.param(of or self._story, change, kind, id=f"{name}: {kind}"))

    def breaks(self, *kinds: str, of: Any = None) -> Callable[[Change], Change]:
        """The decorated function makes a story one in which violations of these kinds are found."""

        def add(change: Change) -> Change:
            for kind in kinds:
                self.add(kind, change.__name__.replace("_", " "), change, of)
            return change

        return add

    def legal(self, change: Change) -> Change:
        """What the decorated function changes is none."""
        self.add(None, change.__name__.replace("_", " "), change)
        return change


def put(items: Any, key: Any, **columns: Any) -> None:
    """Change columns of one of these."""
    items[key] = dataclasses.replace(items[key], **columns)


def put_in(items: Any, key: Any, item: Any) -> None:
    items[key] = item


class Story:
    """Runs that are each claimed once by the worker w, told in the order of their records."""

    def __init__(self) -> None:
        self.evidence = Evidence(
            workers={"w": 100}, may_fail=frozenset({"brittle"}), culprits=frozenset({"brittle"}),
            may_undo=frozenset({"trip"}), may_fail_to_undo=frozenset({"sour"}),
        )  # fmt: skip

    def run(self, run_id: str, workflow: str, output: Any = None, status: str = "completed", **columns: Any) -> None:
        """A run from its birth to its end."""
        text = None if output is None else json.dumps(output)
        self.evidence.runs.append(Run(run_id, workflow, status, output=text, **columns))
        self.evidence.moves += [
            Move(0, run_id, 0, 0, "queued", "", None, None, 0, 0),
            Move(1 * MS, run_id, 1, 0, "running", "queued", "w", None),
            Move(9 * S, run_id, 1, 1, status, "running", None, "w"),
        ]

    def told(self, run_id: str, status: str = "completed", value: Any = None) -> None:
        """Started by somebody who was told how it ended."""
        row = next(row for row in self.evidence.runs if row.id == run_id)
        self.evidence.starts.append(Start(2 * MS, run_id, row.workflow))
        self.evidence.seen.append(Seen(run_id, status, None if value is None else json.dumps(value)))

    def record(
        self, at: int, run_id: str, place: Place, kind: str, output: Any, claim: int = 1, **columns: Any
    ) -> None:
        """A record, numbered in the order in which this is called."""
        seq = 1 + sum(step.run == run_id for step in self.evidence.steps)
        columns = {"status": "completed", "name": "work", **columns}
        value = None if output is None else json.dumps(output)
        self.evidence.steps.append(
            Step(run_id, place[1], columns.pop("name"), claim, seq, columns.pop("status"), value, at, place[0], kind,
                 **columns)
        )  # fmt: skip
        self.evidence.writes.append(Write(at, INSERTED, run_id, place[1], claim, claim, value, place[0], kind))

    def step(self, at: int, run_id: str, place: Place, nonce: str, kind: str = "step", **columns: Any) -> None:
        """A step: its act, and five milliseconds later its record."""
        needs, undoes, claim = columns.pop("needs", 0), columns.pop("undoes", None), columns.get("claim", 1)
        self.evidence.acts.append(
            Act(at, run_id, "", place[1], "work", claim, 1, 100, nonce, "returns", needs, place[0], undoes)
        )
        self.record(at + 5 * MS, run_id, place, kind, nonce, **columns)


def story() -> Evidence:
    """One run of each kind. All in order."""
    tale = Story()
    # One that sleeps for a second between two steps, and lets others read a value.
    tale.run("sleeper", "dozing", {"seen": {":0": "a", ":2": "b"}, "set": {"at": 2}})
    tale.step(10 * MS, "sleeper", ("", 0), "a")
    tale.record(20 * MS, "sleeper", ("", 1), "sleep", {"for": 1000}, status="waiting")
    tale.step(1021 * MS, "sleeper", ("", 2), "b", needs=2)
    tale.evidence.values["sleeper", "at"] = "2"
    # One that takes two signals of one sender and one of another; a fourth comes too late.
    tale.run("ear", "listening", {"seen": {":0": "s1", ":1": "s2", ":2": "t1"}})
    for number, nonce in enumerate(("s1", "s2", "t1")):
        tale.record((100 + number) * MS, "ear", ("", number), "signal", nonce, name="word")
    tale.evidence.signals += [
        Signal(10 * MS, "ear", "word", "s", 1, "s1", 20 * MS),
        Signal(30 * MS, "ear", "word", "s", 2, "s2", 40 * MS),
        Signal(50 * MS, "ear", "word", "t", 1, "t1"),
        Signal(60 * MS, "ear", "word", "t", 2, "t2", 8 * S),
    ]
    tale.evidence.letters.append(Letter("ear", "signal", "word", '"t2"'))
    # A parent of two children.
    tale.run("parent", "family", {"seen": {":1": "x", ":2": "failed"}})
    tale.record(10 * MS, "parent", ("", 0), "start", "kid", name="simple")
    tale.record(3 * S, "parent", ("", 1), "result", "x", name="simple")
    tale.record(4 * S, "parent", ("", 2), "call", None, name="brittle", status="failed")
    tale.run("kid", "simple", "x", parent="parent", parent_branch="", parent_position=0)
    tale.evidence.acts.append(Act(2 * S, "kid", "simple", -1, "simple", 1, 1, 100, "x"))
    tale.run("brat", "brittle", status="failed", reason="code", parent="parent", parent_branch="", parent_position=2)
    # A transaction.
    tale.run("bank", "booking", {"seen": {":0": "r"}})
    tale.step(10 * MS, "bank", ("", 0), "r", "transaction")
    tale.evidence.rows.append(Row("bank", "", 0, "r"))
    # One that fails and is undone, by another claim.
    tale.run("tripper", "trip", status="compensated", reason="code")
    tale.step(10 * MS, "tripper", ("", 0), "u", undo="undo")
    tale.step(20 * MS, "tripper", ("0.1", 0), "v", undo="undo")
    tale.step(2 * S, "tripper", (UNDO, 2), "w", "undo", undoes="v", claim=2)
    tale.step(3 * S, "tripper", (UNDO, 1), "x", "undo", undoes="u", claim=2)
    tale.evidence.tries.append(Try("tripper", -1, 1, 1, 1, 30 * MS))
    tale.evidence.moves[-1:] = [
        Move(1 * S, "tripper", 1, 1, "compensating", "running", None, "w"),
        Move(1 * S, "tripper", 2, 1, "compensating", "compensating", "w", None),
        Move(4 * S, "tripper", 2, 2, "compensated", "compensating", None, "w"),
    ]
    tale.told("tripper", "failed")
    # One with an undo that fails.
    error = json.dumps({"message": "undo 'sulk' of step 'work': ValueError: no"})
    tale.run("sour", "sour", status="failed", reason="undo_failed", error=error)
    tale.step(10 * MS, "sour", ("", 0), "u", undo="sulk")
    tale.evidence.acts.append(Act(2 * S, "sour", "", 1, "sulk", 2, 1, 100, "w", RAISES, 0, UNDO, "u"))
    tale.record(2100 * MS, "sour", (UNDO, 1), "undo", None, claim=2, status="failed", name="sulk")
    tale.evidence.moves[-1:] = [
        Move(1 * S, "sour", 1, 1, "compensating", "running", None, "w"),
        Move(1 * S, "sour", 2, 1, "compensating", "compensating", "w", None),
        Move(4 * S, "sour", 2, 2, "failed", "compensating", None, "w"),
    ]
    # A chain of two.
    tale.run("link 1", "chained", "link 2", reason="continued", input='{"left": 1}')
    tale.run("link 2", "chained", {"seen": {}}, origin="link 1", input='{"left": 0}')
    tale.told("link 1", value={"seen": {}})
    # One that was cancelled while a worker held it, with a child.
    tale.run("doomed", "family", status="cancelled", reason="cancelled")
    tale.step(10 * MS, "doomed", ("", 0), "d")
    tale.record(20 * MS, "doomed", ("", 1), "start", "orphan", name="simple")
    tale.evidence.moves.insert(-1, Move(30 * MS, "doomed", 1, 1, "running", "running", "w", "w", asked="cancel"))
    tale.evidence.wishes.append(Wish(25 * MS, "doomed", "cancel", True, 35 * MS))
    tale.run("orphan", "simple", status="cancelled", reason="cancelled",
             parent="doomed", parent_branch="", parent_position=1)  # fmt: skip
    tale.evidence.moves[-3] = dataclasses.replace(tale.evidence.moves[-3], at=20 * MS)
    _set_back(tale.evidence, "orphan", before="doomed")
    tale.told("doomed", "cancelled")
    # One that was paused and resumed.
    tale.run("held", "dozing", {"seen": {":0": "h"}})
    tale.step(5 * S, "held", ("", 0), "h", claim=2)
    tale.evidence.moves[-1:] = [
        Move(1 * S, "held", 1, 1, "paused", "running", None, "w"),
        Move(2 * S, "held", 1, 1, "queued", "paused", None, None, wakes=1),
        Move(3 * S, "held", 2, 1, "running", "queued", "w", None, wakes=1),
        Move(9 * S, "held", 2, 2, "completed", "running", None, "w", wakes=1),
    ]
    tale.evidence.wishes += [
        Wish(900 * MS, "held", "pause", True, 950 * MS),
        Wish(1900 * MS, "held", "resume", True, 2100 * MS),
    ]
    # One that asks until something is so, and one that races.
    tale.run("asker", "asking", {"seen": {":0": "q"}})
    tale.step(10 * MS, "asker", ("", 0), "q", "wait_until")
    tale.evidence.acts += [Act(n * MS, "asker", "", 0, "is_so", 1, 1, 100, f"no {n}", ASKS) for n in (3, 4, 5)]
    tale.run("racer", "racing", {"seen": {":0": "won"}, "lost": [":1", ":2"]})
    tale.step(10 * MS, "racer", ("", 0), "won")
    tale.evidence.acts.append(Act(10 * MS, "racer", "", 1, "work", 1, 1, 100, "slow"))
    tale.record(30 * MS, "racer", ("", 1), "step", None, status="cancelled")
    tale.step(10 * MS, "racer", ("2", 0), "aside")
    return tale.evidence


def _set_back(e: Evidence, run_id: str, before: str) -> None:
    """Let a child be born before its parent is asked to end."""
    births = [move for move in e.moves if move.run == run_id and not move.old_status]
    for move in births:
        e.moves.remove(move)
    where = next(n for n, move in enumerate(e.moves) if move.run == before and move.asked)
    e.moves[where:where] = births


def the_run(e: Evidence, run_id: str) -> int:
    return next(n for n, row in enumerate(e.runs) if row.id == run_id)


def the_step(e: Evidence, run_id: str, place: Place) -> int:
    return next(n for n, step in enumerate(e.steps) if step.run == run_id and step.place == place)


def change_run(e: Evidence, run_id: str, **columns: Any) -> None:
    e.runs[the_run(e, run_id)] = dataclasses.replace(e.runs[the_run(e, run_id)], **columns)


def change_step(e: Evidence, run_id: str, place: Place, **columns: Any) -> None:
    e.steps[the_step(e, run_id, place)] = dataclasses.replace(e.steps[the_step(e, run_id, place)], **columns)
