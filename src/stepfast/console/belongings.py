"""What belongs to a run beside its steps: the values that it lets others read, and the signals that it has not taken.

They pass the veil before errors do, which may quote them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..model.names import OWN_KEYS
from ..monitoring.changes import glance_of
from ..reports import RunInfo
from .history import BRIEF, History
from .redacting import Veil, aside
from .veiling import veiled_history
from .visit import Visit

_MOST_SIGNALS = 20


class ShownSignal(NamedTuple):
    """A signal that the run has not taken."""

    name: str
    sent_at: int
    value: Any
    large: bool


class Belongings(NamedTuple):
    """What belongs to a run, veiled."""

    values: dict[str, Any]
    signals: list[ShownSignal]


async def read_belongings(visit: Visit, info: RunInfo, veil: Veil) -> Belongings:
    """All that belongs to a run."""
    return Belongings(await _values(visit, info.id, veil), await _signals(visit, info, veil))


async def veiled_by_all(visit: Visit, history: History) -> History:
    """A run with its steps, as its own page shows them."""
    veil = visit.veil()
    if veil.hides:
        await read_belongings(visit, history.info, veil)
    return await aside(veil, lambda: veiled_history(history, veil))


async def _values(visit: Visit, run_id: str, veil: Veil) -> dict[str, Any]:
    """What the run has set for others to read."""
    found = await (await glance_of(visit.look)).values(run_id)

    def shown() -> dict[str, Any]:
        return {
            key: veil.value(visit.look._payloads.plain(text, format_, f"the value of {key!r}"), f"values.{key}")
            for key, text, format_ in found
            if not key.startswith(OWN_KEYS)
        }

    return await aside(veil, shown)


async def _signals(visit: Visit, info: RunInfo, veil: Veil) -> list[ShownSignal]:
    """What lies in its mailbox, the oldest first."""
    if info.completed_at is not None:
        return []
    found = []
    for signal in await (await glance_of(visit.look)).unread_signals(info.id, _MOST_SIGNALS, BRIEF):
        value = visit.look._payloads.plain(signal.value, signal.format, "a signal")
        shown = veil.value(value, f"signals.{signal.name}")
        found.append(ShownSignal(signal.name, signal.sent_at, shown, signal.value is None and signal.size is not None))
    return found
