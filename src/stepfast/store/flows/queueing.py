"""What is said about queues: each wish locks the queue's row, decides, and writes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...model.queue_config import Decision, Gate, written
from .requests import Flow, ask, put


def read_gate(row: Any) -> Gate:
    """The columns come in the order of the fields."""
    gate = Gate(*row)
    gate.paused = bool(gate.paused)
    return gate


def change_queue(name: str, decide: Decision) -> Flow[tuple[Gate, Gate]]:
    """One queue; how it was, and how it is now."""
    yield from put("add_queue", [(name,)])
    before = read_gate((yield from ask("lock_queue", name))[0])
    [(now,)] = yield from ask("now")
    after = decide(before, now)
    yield from put("write_queue", [written(after)])
    return before, after


def declare_queues(wanted: Mapping[str, Decision]) -> Flow[list[tuple[Gate, Gate]]]:
    """Several, in the order of their names, so that two processes never wait for each other in a circle. A row that
    says the same already is left alone: every process that begins comes by."""
    changed = []
    for name in sorted(wanted):
        rows = yield from ask("queue", name)
        if rows and _agrees(read_gate(rows[0]), wanted[name]):
            continue
        changed.append((yield from change_queue(name, wanted[name])))
    return changed


def _agrees(gate: Gate, decide: Decision) -> bool:
    return decide(gate, 0).declared == gate.declared
