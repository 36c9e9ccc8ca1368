"""The rules beyond steps: sleeps, signals, children, chains, transactions, undos, operators. Part of the checker, and
as pure as it is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from tests.judge.cases import OPEN_RECORD, SLACK, TERMINAL, Case, Violation, load
from tests.judge.evidence import (
    CHANGED,
    DELETED,
    INSERTED,
    UNDO,
    Act,
    Evidence,
    Move,
    Place,
    Run,
    Signal,
    Step,
    Wish,
    Write,
)

Cases = Mapping[str, Case]

Taken = tuple[str, int, int, Place]
"""The chain in which a signal was taken, the number of the link, when, and where."""

NEVER_UNDONE = frozenset({"workers_lost", "non_determinism"})
"""Reasons for which a failed run keeps what it did."""


# -- dead letters --------------------------------------------------------------------------------------------------


def dead_letters(evidence: Evidence, case: Case) -> Iterator[Violation]:
    """No innocent run ends with ``workers_lost``, however many workers were killed while they had it."""
    row = case.row
    if row is not None and row.reason == "workers_lost" and row.workflow not in evidence.culprits:
        text = f"{row.workflow} kills nobody, and ended {row.status} ({row.reason})"
        yield Violation("innocent dead letter", case.id, text)


# -- sleeps, values and rows ---------------------------------------------------------------------------------------


def slept(_: Evidence, case: Case) -> Iterator[Violation]:
    """Nobody goes on before the time that was decided when the sleep began."""
    for step in case.steps:
        if step.kind != "sleep" or step.status == "cancelled":
            continue
        plan = load(step.output)
        until = plan["until"] * 1000 if "until" in plan else step.at + plan["for"] * 1000
        for act in case.acts:
            if act.branch == step.branch and act.needs > step.position and act.at < until - SLACK:
                text = (
                    f"position {act.position} was begun {(until - act.at) / 1e6:.3f} s before the sleep before it ended"
                )
                yield Violation("slept too short", case.id, text)


def values(evidence: Evidence, case: Case) -> Iterator[Violation]:
    """What ``ctx.set`` leaves is what the code set last."""
    output = load(case.row.output) if case.row is not None and case.row.status == "completed" else None
    for key, value in output.get("set", {}).items() if isinstance(output, dict) else ():
        left = evidence.values.get((case.id, key))
        if load(left) != value:
            yield Violation("wrong value", case.id, f"{key!r} was set to {value!r}, and is {left}")


def rows(_: Evidence, case: Case) -> Iterator[Violation]:
    """Exactly one row per completed transaction, and none without its record."""
    written: dict[Place, list[str]] = defaultdict(list)
    for row in case.rows:
        written[row.branch, row.position].append(row.nonce)
    done = {s.place: load(s.output) for s in case.steps if s.kind == "transaction" and s.status == "completed"}
    anew = {w.place for w in case.writes if w.what == DELETED and w.kind == "transaction"}
    for place, nonce in done.items():
        if nonce not in written.get(place, []):
            yield Violation("record without a row", case.id, f"the transaction at {place} is recorded as {nonce}")
    for place, nonces in written.items():
        if len(nonces) > 1 and place not in anew:
            yield Violation("row twice", case.id, f"the transaction at {place} has written {nonces}")
        for nonce in nonces:
            if nonce != done.get(place) and place not in anew:
                yield Violation("row without a record", case.id, f"the transaction at {place} has written {nonce}")


# -- undoing -------------------------------------------------------------------------------------------------------


def undone(_: Evidence, case: Case) -> Iterator[Violation]:
    """Every completed step with an undo is undone once if the run failed or was cancelled, and else not at all."""
    row = case.row
    assert row is not None
    undos = {step.position: step for step in case.steps if step.branch == UNDO}
    undoable = {s.seq: s for s in case.steps if s.undo is not None and s.status == "completed" and s.branch != UNDO}
    for seq in undos.keys() - undoable.keys():
        yield Violation("undone for nothing", case.id, f"an undo of number {seq}, which is no step that can be undone")
    if row.status == "completed" and undos:
        yield Violation("undone for nothing", case.id, f"it completed, and {len(undos)} steps were undone")
    if row.status in ("failed", "cancelled", "compensated") and row.reason not in NEVER_UNDONE:
        for seq, step in undoable.items():
            if seq not in undos:
                text = f"it ended {row.status} ({row.reason}), and step {step.name!r} (number {seq}) was not undone"
                yield Violation("not undone", case.id, text)
    yield from _named(row, undos)
    yield from _reversed(case, undos, undoable)


def _named(row: Run, undos: dict[int, Step]) -> Iterator[Violation]:
    """``compensated`` if every undo succeeded, else ``failed``, and the error names those that did not."""
    failed = [step for step in undos.values() if step.status != "completed"]
    if row.status == "compensated" and failed:
        yield Violation("not undone", row.id, f"it ended compensated, but {len(failed)} undos failed")
    if row.reason == "undo_failed":
        if not failed:
            yield Violation("not undone", row.id, "an undo is said to have failed, and none is recorded so")
        for step in failed:
            if repr(step.name) not in str(load(row.error)):
                yield Violation("not undone", row.id, f"undo {step.name!r} failed, and the error does not name it")


def _reversed(case: Case, undos: dict[int, Step], undoable: dict[int, Step]) -> Iterator[Violation]:
    """The last step first: each undo begins when those of all later steps are on record; and nothing is done any more
    once the undoing has begun."""
    recorded = case.recorded_at()
    for act in case.acts:
        if act.branch != UNDO:
            continue
        step = undoable.get(act.position)
        if step is not None and act.undoes != load(step.output):
            text = f"the undo of number {act.position} was given {act.undoes}, on record is {step.output}"
            yield Violation("undid something else", case.id, text)
        for seq in undoable:
            if seq > act.position and recorded.get((UNDO, seq), act.at + SLACK + 1) > act.at + SLACK:
                text = f"number {act.position} was undone (claim {act.claim}) before number {seq} was"
                yield Violation("undone out of order", case.id, text)
    begun = next((move.claim for move in case.moves if move.status == "compensating"), None)
    for act in case.acts:
        if begun is not None and act.branch != UNDO and act.claim > begun:
            text = f"step {act.name!r} was called (claim {act.claim}) after the undoing had begun (claim {begun})"
            yield Violation("acted after the undo", case.id, text)
        if begun is None and case.moves and act.branch == UNDO:
            yield Violation("undone for nothing", case.id, f"undo {act.name!r} was called, and nobody undoes the run")


# -- operators -----------------------------------------------------------------------------------------------------


def wishes(evidence: Evidence, cases: Cases) -> Iterator[Violation]:
    """Who is cancelled was wished to be, itself or one above it; who was wished to be ends so, unless it won."""
    wished = {wish.run for wish in evidence.wishes if wish.what == "cancel" and wish.granted is not False}
    granted = {wish.run for wish in evidence.wishes if wish.what == "cancel" and wish.granted}
    for case in cases.values():
        row = case.row
        if row is None:
            continue
        if (row.status == "cancelled" or row.reason == "cancelled") and wished.isdisjoint(_above(cases, row)):
            yield Violation("cancelled by nobody", case.id, f"{row.workflow} ended {row.status}, and nobody wished it")
        if case.id in granted and row.status == "failed" and not _lost_by_itself(evidence, row):
            yield Violation("not cancelled", case.id, f"cancelled, but ended {row.status} ({row.reason})")
        yield from _heeded(evidence, case, _wishes_of(cases, row))


def _lost_by_itself(evidence: Evidence, row: Run) -> bool:
    """It failed before it heard of the wish; or was being undone, and an undo failed."""
    allowed = evidence.may_fail_to_undo if row.reason == "undo_failed" else evidence.may_fail
    return row.workflow in allowed


def _wishes_of(cases: Cases, row: Run) -> list[Wish]:
    """What was asked of it, and of those it continues: a wish that was not heeded yet is handed on."""
    found, run_id = list(cases[row.id].wishes), row.origin
    while run_id is not None and run_id in cases:
        found += cases[run_id].wishes
        before = cases[run_id].row
        run_id = None if before is None else before.origin
    return found


def _heeded(evidence: Evidence, case: Case, wishes: list[Wish]) -> Iterator[Violation]:
    """Whoever holds a run that is to be cancelled may finish what is in flight; the next owner only ends it, unless a
    worker died with it: then it goes on to its next record first. What is held up is not handed out."""
    marked = next((move.claim for move in case.moves if move.asked == "cancel"), None)
    for act in case.acts:
        later = marked is not None and act.claim > marked and act.branch != UNDO
        if later and not _to_know(case, act, evidence.news):
            text = f"step {act.name!r} was called under claim {act.claim}, cancelled since claim {marked}"
            yield Violation("acted after its cancel", case.id, text)
    for move in case.moves:
        if move.old_status == "paused" and move.worker is not None:
            yield Violation("claimed while paused", case.id, f"claim {move.claim}")
        if move.status == "paused" != move.old_status and not _pause_stands(wishes, move.at):
            yield Violation("paused by nobody", case.id, f"claim {move.claim}, and no pause that was not resumed")


def _to_know(case: Case, act: Act, news: int) -> bool:
    """Whether it was called to learn what a worker that died may have done: before the worker knew of the claim's first
    record, which need not be there any more, and not by a suspect. What comes after a record in its own line comes
    too late, however soon it comes. A step whose first try came before that record has its next ones."""
    written = [write for write in case.writes if write.what in (INSERTED, CHANGED)]
    both: list[Step | Write] = [*case.steps, *written]
    records = [record for record in both if record.status != OPEN_RECORD]
    claims = [m for m in case.moves if (m.claim, m.status) == (act.claim, "running") and m.old_claim < m.claim]
    lost = any(_owes(case, claimed, records) for claimed in claims)
    made = [r for r in records if r.claim == act.claim]
    after = any(record.branch == act.branch and record.position < act.needs for record in made)
    begun = min(other.at for other in case.acts if (other.claim, other.place) == (act.claim, act.place))
    return lost and not after and all(begun <= record.at + SLACK + news for record in made)


def _owes(case: Case, claimed: Move, records: list[Step | Write]) -> bool:
    """Whether a worker died with a run since its last record; that it came to a wait since tells nothing."""
    if claimed.losses > 0:
        return claimed.losses == 1
    deaths = [move.at for move in case.moves if move.losses > move.old_losses and move.at <= claimed.at]
    return bool(deaths) and not any(deaths[-1] <= record.at <= claimed.at for record in records)


def _pause_stands(wishes: list[Wish], at: int) -> bool:
    """Whether somebody has asked for a pause before this time, and nobody had taken it back since."""
    for pause in wishes:
        if pause.what == "pause" and pause.granted is not False and pause.at <= at + SLACK:
            back = [w for w in wishes if w.what == "resume" and w.granted and w.at > pause.answered]
            if pause.granted is None or not any(resume.answered < at - SLACK for resume in back):
                return True
    return False


def _above(cases: Cases, row: Run) -> set[str]:
    """The run itself, those it continues, and the parents of all these."""
    found: set[str] = set()
    todo: list[str | None] = [row.id]
    while todo:
        run_id = todo.pop()
        if run_id is None or run_id in found:
            continue
        found.add(run_id)
        one = cases[run_id].row if run_id in cases else None
        if one is not None:
            todo += [one.parent, one.origin]
    return found


# -- children and chains -------------------------------------------------------------------------------------------


def children(evidence: Evidence, cases: Cases) -> Iterator[Violation]:
    """Each is started exactly once, with the record of its start; and its end is what its parent was told."""
    born: dict[tuple[str, Place], list[Run]] = defaultdict(list)
    for row in evidence.runs:
        if row.parent is not None and row.origin is None:
            born[row.parent, (row.parent_branch or "", row.parent_position or 0)].append(row)
    places: dict[str, set[Place]] = {}
    for case in cases.values():
        started = {s.place for s in case.steps if s.kind in ("start", "call")}
        anew = {w.place for w in case.writes if w.what == DELETED and w.kind in ("start", "call")}
        for place in started:
            count = len(born.get((case.id, place), []))
            if count != 1:
                kind = "child twice" if count else "child lost"
                yield Violation(kind, case.id, f"{count} runs were started at {place}")
        many = {s.place: s for s in case.steps if s.kind == "start_many"}
        for place, step in many.items():
            ids = sorted(run.id for run in born.get((case.id, place), []))
            if ids != sorted(load(step.output)):
                yield Violation("child lost", case.id, f"of {step.output} these were started at {place}: {ids}")
        places[case.id] = started | anew | many.keys()
        yield from _told(cases, case, born)
    for (parent, place), runs in born.items():
        if place not in places.get(parent, set()):
            yield Violation("child without a record", parent, f"run {runs[0].id} was started at {place}")
    yield from _not_born_to_the_cancelled(evidence, cases)


def _told(cases: Cases, case: Case, born: Mapping[tuple[str, Place], list[Run]]) -> Iterator[Violation]:
    """The result of a child that is on record with its parent is the child's own."""
    handles = [load(step.output) for step in case.steps if step.kind == "start"]
    handles += [run_id for step in case.steps if step.kind == "start_many" for run_id in load(step.output)]
    ends = [end for run_id in handles if (end := last_of_chain(cases, run_id)) is not None]
    made = Counter((end.workflow, end.output) for end in ends if end.status == "completed")
    told: Counter[tuple[str, str | None]] = Counter()
    for step in case.steps:
        if step.kind == "call" and step.status in ("completed", "failed"):
            for child in born.get((case.id, step.place), []):
                yield from _same_end(cases, case, step, child)
        if step.kind == "result" and step.status == "completed":
            told[step.name, step.output] += 1
    for name, output in told - made:
        yield Violation("wrong child", case.id, f"it was told {output} of a child {name!r}, which none has made")


def _same_end(cases: Cases, case: Case, step: Step, child: Run) -> Iterator[Violation]:
    end = last_of_chain(cases, child.id)
    if end is None or end.status not in TERMINAL:
        yield Violation("wrong child", case.id, f"the end of child {child.id} is on record, and it has none")
    elif (end.status == "completed") != (step.status == "completed") or (
        end.status == "completed" and load(end.output) != load(step.output)
    ):
        text = f"child {child.id} ended {end.status} {end.output}, on record is {step.status} {step.output}"
        yield Violation("wrong child", case.id, text)


def _not_born_to_the_cancelled(evidence: Evidence, cases: Cases) -> Iterator[Violation]:
    """Nobody starts a child once it is to be cancelled: such a child would not be cancelled with it."""
    marked: dict[str, int] = {}
    for number, move in enumerate(evidence.moves):
        if move.asked == "cancel" or move.status in ("cancelled", "compensating"):
            marked.setdefault(move.run, number)
        row = cases[move.run].row if not move.old_status and move.run in cases else None
        if row is not None and row.parent is not None and row.origin is None and row.parent in marked:
            yield Violation("child of the cancelled", row.parent, f"run {row.id} was started after the cancellation")


def chains(evidence: Evidence, cases: Cases) -> Iterator[Violation]:
    """Every link of a chain has exactly one next, and the input that it was left."""
    following: dict[str, list[Run]] = defaultdict(list)
    for row in evidence.runs:
        if row.origin is not None:
            following[row.origin].append(row)
    for row in evidence.runs:
        links = following.get(row.id, [])
        if row.reason == "continued" and [link.id for link in links] != [load(row.output)]:
            text = f"it goes on as {row.output}, and {[link.id for link in links]} came of it"
            yield Violation("broken chain", row.id, text)
        if row.reason != "continued" and links:
            yield Violation("broken chain", row.id, f"it ended {row.status}, and {links[0].id} came of it")
        for link in links:
            if _left(link) != _left(row) - 1 or link.workflow != row.workflow:
                yield Violation("broken chain", row.id, f"with input {row.input}, it was followed by {link.input}")
        if row.status == "completed" and row.reason != "continued" and _left(row) > 0:
            yield Violation("broken chain", row.id, f"it ended with input {row.input}: links are missing")


def _left(row: Run) -> int:
    """How many links are to follow; the input of a chain says so."""
    found = load(row.input)
    return int(found["left"]) if isinstance(found, dict) and "left" in found else 0


def last_of_chain(cases: Cases, run_id: str) -> Run | None:
    """The run that a chain of runs ends with."""
    for _ in range(len(cases)):
        row = cases[run_id].row if run_id in cases else None
        if row is None or row.reason != "continued":
            return row
        run_id = load(row.output)
    return None


# -- signals -------------------------------------------------------------------------------------------------------


def signals(evidence: Evidence, cases: Cases) -> Iterator[Violation]:
    """Every acknowledged signal is taken exactly once, in the order in which they were sent. (One that the run did not
    get to before its end is still in its box.)"""
    sent = {signal.nonce: signal for signal in evidence.signals}
    taken: dict[str, list[Taken]] = defaultdict(list)
    for root, links in _links(evidence, cases).items():
        for number, link in enumerate(links):
            for step in sorted(cases[link].steps, key=lambda step: step.seq):
                if step.kind == "signal" and step.status == "completed":
                    taken[load(step.output)].append((root, number, step.at, step.place))
                    if load(step.output) not in sent:
                        yield Violation("signal from nowhere", link, f"{step.output} was taken at {step.place}")
    left = Counter(load(letter.value) for letter in evidence.letters if letter.kind == "signal")
    for nonce, signal in sent.items():
        count = len(taken.get(nonce, []))
        if count > 1:
            yield Violation("signal twice", signal.run, f"{nonce!r} was taken at {taken[nonce]}")
        if count and left[nonce]:
            yield Violation("signal twice", signal.run, f"{nonce!r} was taken, and is in the box still")
        if not count and not left[nonce] and signal.acknowledged is not None and not _gone(cases, signal):
            yield Violation("signal lost", signal.run, f"{nonce!r} was acknowledged, and neither taken nor kept")
    yield from _in_order(cases, sent, taken)


def _gone(cases: Cases, signal: Signal) -> bool:
    """What was in the box of a run that ended without a result may be gone with it."""
    end = last_of_chain(cases, signal.run)
    return end is None or end.status != "completed"


def _in_order(cases: Cases, sent: Mapping[str, Signal], taken: Mapping[str, list[Taken]]) -> Iterator[Violation]:
    """First in, first out, per name: of two signals of which one was acknowledged before the other set out, that one is
    taken first; all the more of two by one sender. Two branches that take at the same time do so in no order."""
    by_box: dict[tuple[str, str], list[tuple[tuple[int, int, Place], Signal]]] = defaultdict(list)
    for nonce, places in taken.items():
        if nonce in sent and len(places) == 1:
            root, number, at, place = places[0]
            by_box[root, sent[nonce].name].append(((number, at, place), sent[nonce]))
    for (root, name), found in by_box.items():
        found.sort(key=lambda pair: pair[0])
        order = [signal for _, signal in found]
        for index, (first_at, later) in enumerate(found):
            for then_at, earlier in found[index + 1 :]:  # taken after `later`
                if first_at[:2] == then_at[:2] and first_at[2][0] != then_at[2][0]:
                    continue
                first = earlier.acknowledged is not None and earlier.acknowledged < later.at - SLACK
                if first or (earlier.sender == later.sender and earlier.number < later.number):
                    text = f"{name!r}: {earlier.nonce!r} was sent before {later.nonce!r}, and taken after it"
                    yield Violation("signal out of order", root, text)
        yield from _not_passed_over(cases, root, name, order, sent, taken)


def _not_passed_over(
    cases: Cases,
    root: str,
    name: str,
    order: list[Signal],
    sent: Mapping[str, Signal],
    taken: Mapping[str, list[Taken]],
) -> Iterator[Violation]:
    """Nothing stays in the box that was there before something that was taken."""
    if not order:
        return
    last = max(signal.at for signal in order)
    runs = {signal.run for signal in order}
    for signal in sent.values():
        waiting = signal.run in runs and signal.name == name and not taken.get(signal.nonce)
        if waiting and signal.acknowledged is not None and signal.acknowledged < last - SLACK:
            yield Violation("signal lost", root, f"{signal.nonce!r} was passed over: later ones were taken")


def _links(evidence: Evidence, cases: Cases) -> dict[str, list[str]]:
    """Each run that continues none, with all that continue it, in order."""
    found: dict[str, list[str]] = {}
    for row in evidence.runs:
        if row.origin is not None:
            continue
        links, at = [row.id], row
        while at.reason == "continued" and (following := cases.get(load(at.output))) and following.row is not None:
            at = following.row
            links.append(at.id)
            if len(links) > len(cases):
                break
        found[row.id] = links
    return found


OF_ONE = (dead_letters, slept, values, rows, undone)
OF_ALL = (wishes, children, chains, signals)
