"""Taking ended runs away, with all that belongs to them."""

from __future__ import annotations

from collections.abc import Sequence

from ...model.bulk_actions import BatchOutcome
from ...model.retention import Ended, Removal, mended, needed_by
from .base import Flow, Rows, ask, put, put_each

DEPENDENT = ("steps", "tries", "claims", "progress", "mailbox", "run_values", "run_tags", "remote_steps",
             "streams", "stream_sources", "stream_items", "questions", "callbacks",
             "event_waits", "event_takes", "run_attributes")  # fmt: skip
"""Every table whose rows belong to a run, and go with it: each has a statement `remove_TABLE`. Who makes a table with
the id of a run in it adds it here; a test finds tables that were forgotten."""
_REMOVING = tuple(f"remove_{table}" for table in (*DEPENDENT, "runs"))


def remove(runs: Sequence[Ended], alone: bool) -> Flow[Removal | None]:
    """Remove runs that are still as they were found, and that are neither needed nor locked. With ``alone`` nothing is
    done, and None returned, if another process is removing runs."""
    if not runs:
        return Removal([], [], [])
    if alone:
        [(ours,)] = yield from ask("remover_turn")
        if not ours:
            return None
    found = [Ended(*row) for row in (yield from ask("lock_ended", Rows([run.fence for run in runs])))]
    free = [run for run in found if needed_by(run) is None]
    return (yield from _take_away((yield from _take_out_links(free))))


def delete(run_id: str) -> Flow[Ended | None]:
    """One run, waited for. The run as it was if it has ended, and None if it has not, or is a step, or is gone: then,
    and if it is needed, nothing was done."""
    yield from ask("lock_runs", [run_id])
    found = [Ended(*row) for row in (yield from ask("ended", [run_id]))]
    if not found:
        return None
    if needed_by(found[0]) is None:
        yield from _take_away((yield from _take_out_links(found)))
    return found[0]


def delete_many(ids: Sequence[str]) -> Flow[BatchOutcome]:
    """Many runs, in one transaction that waits for no lock. Those that have not ended, or that another run or another
    transaction holds, are to be called one by one."""
    found = [Ended(*row) for row in (yield from ask("ended", list(ids)))]
    removal = yield from remove([run for run in found if needed_by(run) is None], alone=False)
    gone = set() if removal is None else {*removal.runs}
    return BatchOutcome(done=sorted(gone), apart=[run_id for run_id in ids if run_id not in gone])


def _take_out_links(runs: Sequence[Ended]) -> Flow[list[Ended]]:
    """Chains of runs are closed where links in their middle go; links between runs that are locked stay."""
    chains = mended(run for run in runs if run.linked)
    if not chains:
        return list(runs)
    ends = sorted({run_id for before, after, _ in chains for run_id in (before, after)})
    free = {row[0] for row in (yield from ask("lock_links", ends))}
    gone_before = {run.id: 1 + (run.links_gone or 0) for run in runs}
    closed = {
        (before, after): sum(gone_before[link] for link in links)
        for before, after, links in chains
        if {before, after} <= free
    }
    yield from put("join_links", [(*pair, gone) for pair, gone in closed.items()])
    stay = {link for before, after, links in chains if (before, after) not in closed for link in links}
    return [run for run in runs if run.id not in stay]


def _take_away(runs: Sequence[Ended]) -> Flow[Removal]:
    """All rows of runs that are locked in this transaction, and of the steps of those that are dag runs."""
    ids = [run.id for run in runs]
    if not ids:
        return Removal([], [], [])
    dags = [run.id for run in runs if run.dag]
    steps = [row[0] for row in (yield from ask("steps_of_dags", dags))] if dags else []
    yield from put_each(_REMOVING, [(run_id,) for run_id in (*ids, *steps)])
    return Removal(ids, steps, [run.origin_id for run in runs if run.origin_id is not None])
