"""Runs leave their worker, having passed the fence in this transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ...model import status
from ...model.records import FlushAnswer, NewRun, Transition
from ...model.run_state import Standing
from ...model.transitions.dag import settled_at
from ...model.transitions.finish import gone_with, leave
from ...model.transitions.operator import pause
from .requests import Flow, Start, put
from .settling import Settlement, settle, write
from .standings import change, forget_steps, read


def let_go(
    worker: str, moves: Sequence[Transition], runs: Mapping[str, Standing], dags: Mapping[str, Standing],
    answer: FlushAnswer,
) -> Flow[None]:  # fmt: skip
    """Write where these runs go, and what follows for the dag runs that they are steps of."""
    now = answer.now_ms
    yield from forget_steps([(m.run_id, *address) for m in moves for address in gone_with(m)])
    yield from put("keep_traces", [(m.run_id, m.trace) for m in moves if m.trace is not None])
    after = [leave(runs[m.run_id], m, _when(m, dags, now), number) for number, m in enumerate(moves, 1)]
    ends = [m.settled for m in moves if m.settled is not None and m.status in status.TERMINAL]
    done = (yield from settle(ends, dags, now, {run.id for run in after})) if ends else Settlement()
    answer.undelivered |= yield from write(done, after)
    answer.lanes |= done.lanes
    mine = [run_id for run_id, holder in done.marked.items() if holder == worker]
    answer.asked |= dict.fromkeys(mine, status.ASK_CANCEL)
    answer.asked_elsewhere |= len(mine) < len(done.marked)
    successors = [(m.run_id, m.successor) for m in moves if m.successor is not None]
    if successors:
        yield from _continue(successors, answer)


def _when(move: Transition, dags: Mapping[str, Standing], now: int) -> int:
    """Steps of a dag run end later than those that were settled before."""
    if move.settled is None or move.settled.dag_id not in dags:
        return now
    return settled_at(dags[move.settled.dag_id], now)


def _continue(successors: list[tuple[str, NewRun]], answer: FlushAnswer) -> Flow[None]:
    """Runs that go on as others: these take over the parent, the tags, the mail, and what was asked of them and they
    left unheard: a pause holds the successor, a cancellation comes by mail."""
    yield Start([replace(run, shape=run.shape._replace(tags=()), parent=None) for _, run in successors])
    pairs = [(ended, run.id) for ended, run in successors]
    yield from put("inherit", pairs)
    yield from put("inherit_tags", pairs)
    yield from put("inherit_mail", pairs)
    paused = [heir for ended, heir in pairs if answer.asked.get(ended) == status.ASK_PAUSE]
    if paused:
        heirs, now = yield from read("lock_runs", paused)
        yield from change([held for run in heirs.values() if (held := pause(run, now)) is not None])
    cancelled = [(heir, ended) for ended, heir in pairs if answer.asked.get(ended) == status.ASK_CANCEL]
    answer.undelivered |= (yield from put("cancel_heir", cancelled)) > 0


def tell(moves: Sequence[Transition], answer: FlushAnswer) -> Flow[None]:
    """Leave word for parents of what ended, and for children of what was cancelled."""
    ended = [(m.run_id,) for m in moves if m.child and m.status in status.TERMINAL and m.successor is None]
    cancelled = [(m.run_id,) for m in moves if m.status in (status.CANCELLED, status.COMPENSATING)]
    told = yield from put("tell_parents", ended)
    told += yield from put("tell_children", cancelled)
    answer.undelivered |= told > 0
