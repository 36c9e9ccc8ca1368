"""What operators wish of many runs: few statements for all of them. What one run by itself is asked is in
``operating.py``; both decide by the same functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...model.bulk_actions import CANCEL, PAUSE, RESUME, RETRY, Granted
from ...model.run_state import Standing
from ...model.transitions.operator import may_be_paused, may_be_retried, pause, retry
from .debouncing import leave_keys
from .operating import Moved, cancel_runs, resume_runs
from .requests import Flow, put
from .standings import change, forget_steps, forgotten, lock_free

_Many = Callable[[Sequence[Standing], int], Flow[Moved]]


def grant(wish: str, ids: Sequence[str]) -> Flow[Granted]:
    """Do it for those that it fits, in one transaction. Nobody is waited for."""
    found = yield from lock_free(ids)
    plain = [run for run in found.runs.values() if not run.is_dag and run.dag_id is None]
    moved = (yield from _MANY[wish](plain, found.now)) if plain else Moved()
    done = [run.id for run in moved.runs]
    here = {run.id for run in plain}
    return Granted(
        done=done,
        refused={run.id: run.status for run in plain if run.id not in {*done}},
        apart=[run_id for run_id in ids if run_id not in here],
        lanes=moved.lanes,
        ended=moved.ended,
    )


def _pause_runs(runs: Sequence[Standing], now: int) -> Flow[Moved]:
    fitting = [run for run in runs if may_be_paused(run)]
    after = [pause(run, now) or run for run in fitting]
    yield from change([run for run, before in zip(after, fitting, strict=True) if run is not before])
    return Moved(after)


def _retry_runs(runs: Sequence[Standing], now: int) -> Flow[Moved]:
    fitting = [run for run in runs if may_be_retried(run)]
    after = [retry(run, now, number) for number, run in enumerate(fitting, 1)]
    yield from leave_keys(fitting)
    yield from change(after)
    yield from forget_steps([address for run in fitting for address in forgotten(run)])
    yield from put("tell_again", [(run.id,) for run in fitting])
    return Moved(after, {run.lane for run in after})


_MANY: dict[str, _Many] = {CANCEL: cancel_runs, PAUSE: _pause_runs, RESUME: resume_runs, RETRY: _retry_runs}
