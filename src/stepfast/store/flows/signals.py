"""Mail: signals that are sent, and mail that was only inserted and is taken to its runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...model.names import SIGNAL_ID
from ...model.records import Answer, Lane, Look, Mail, Mailbox, holds_all
from ...model.run_state import RunState
from ...model.status import (
    MAIL_CANCEL,
    MAIL_ENDS,
    MAIL_EVENT,
    MAIL_RESCHEDULE,
    MAIL_RESUME,
    MAIL_SIGNAL,
    NO_SUCH_STEP,
    REASON_CONTINUED,
)
from ...model.transitions.operator import NewTime, from_mail, way_to_cancel
from ...model.transitions.signals import wake, wanted_mail, way_to_signal
from ..answers import Delivery, MailId, mailbox_full
from .base import COMMIT, Flow, Rows, ask, change, found, lock_free, lock_run, put
from .flush import Settlement
from .operating import StateChange, cancel_dags, cancel_runs, reschedule_runs, resume_runs

# -- sending -----------------------------------------------------------------------------------------------


def send(mail: Mail, again: bool, most: int, check: bool = False) -> Flow[Answer]:
    """Put a signal into a mailbox and wake its run. One that is there already, or was taken, has done so, and so has
    one whose id was given before."""
    run, now = yield from lock_run(mail.run_id)
    if run is None:
        return Answer(None)
    if mail.given is not None and (yield from ask("has_signal_id", run.id, SIGNAL_ID + mail.given)):
        return Answer(run.status, run.reason, True, running=run.held)
    if run.is_dag:
        return (yield from _send_to_step(run, mail, again, most, check))
    return (yield from _send_to(run, mail, again, most, now, check))


def _send_to(run: RunState, mail: Mail, again: bool, most: int, now: int, check: bool) -> Flow[Answer]:
    answer = Answer(run.status, run.reason, running=run.held)
    way = way_to_signal(run.status, run.reason)
    if way == "forward":
        yield from _forward_all(run)
    if again and (yield from ask("was_taken_by_any", run.id, mail.id)):
        answer.done = True
    elif way == "take":
        values = (run.id, mail.id, mail.kind, mail.name, mail.value, mail.error, mail.format)
        if check and not (again and (yield from ask("is_there", run.id, mail.id))):
            plans = [row[0] for row in (yield from ask("awaited", run.id, mail.name))]
            if plans and all('"type":' in (plan or "") for plan in plans):
                answer.awaited = plans
                return answer
        if mail.given is not None:
            yield from ask("put_signal_id", mail.run_id, SIGNAL_ID + mail.given)
        if (yield from ask("send", *values, most, mail.trace, mail.start)):
            after = wake(run, 1, 0, now)
            yield from change([after])
            answer.lane = run.lane if after.ready and not run.ready else None
        elif not (yield from ask("is_there", run.id, mail.id)):
            raise mailbox_full(run.id, most)
        answer.done = True
    return answer


def _send_to_step(dag: RunState, mail: Mail, again: bool, most: int, check: bool) -> Flow[Answer]:
    """A signal to a dag run is for the step of its name. One that was taken has done its work, even if by now the step
    has come to its end."""
    runs, now = found((yield from ask("lock_step_named", dag.id, mail.name)))
    for step in runs.values():
        answer = yield from _send_to(step, mail, again, most, now, check)
        if answer.awaited:
            return answer
        if answer.done:
            return Answer(dag.status, dag.reason, True, answer.lane, running=answer.running)
    return Answer(dag.status, NO_SUCH_STEP if way_to_signal(dag.status) == "take" else dag.reason)


def _forward_all(run: RunState) -> Flow[None]:
    """What was only inserted for a run that continued as others, or for one of these, is passed on before the sender's:
    it was sent earlier. All of them are waited for in the order of their ids, so nothing else may be in hand."""
    yield COMMIT
    mail: list[MailId] = [(row[0], row[1]) for row in (yield from ask("undelivered_of", run.id))]
    boxes, now = yield from _open(mail)
    if boxes:
        yield from _hand_over(boxes, now)


# -- delivering --------------------------------------------------------------------------------------------


class _Box(NamedTuple):
    """A run, locked in this transaction, and what has come for it: (id, kind) of each piece of mail."""

    run: RunState
    mail: list[tuple[str, str]]
    starts: frozenset[str] = frozenset()
    """Those that starts by the name of the run have sent."""

    @property
    def cancels(self) -> bool:
        """Whether a cancellation is among it."""
        return any(kind == MAIL_CANCEL for _, kind in self.mail)

    @property
    def resumes(self) -> bool:
        """Whether it is to be resumed."""
        return any(kind == MAIL_RESUME for _, kind in self.mail)

    @property
    def moves(self) -> list[MailId]:
        """Mail that asks for another time, or another priority."""
        return [(self.run.id, mail_id) for mail_id, kind in self.mail if kind == MAIL_RESCHEDULE]


def deliver(limit: int, only: Sequence[MailId] | None = None) -> Flow[Delivery]:
    """The oldest mail that was only inserted, or ``only`` this, and whose runs are not locked."""
    if only is None:
        mail = yield from undelivered(limit)
    else:
        free = (yield from lock_free({run_id for run_id, _ in only})).runs
        mail = [each for each in only if each[0] in free]
    if not mail:
        return Delivery(set(), False, False, len((yield from ask("remove_orphans", limit))))
    boxes, now = yield from _open(mail)
    apart = [box.run.id for box in boxes if box.run.is_dag and (box.cancels or box.resumes or box.moves)]
    done = yield from _hand_over([box for box in boxes if box.run.id not in apart], now)
    if not apart:
        return done
    # To cancel, resume or reschedule a dag run its steps are waited for, so nothing else may be in hand.
    yield COMMIT
    dags = yield from lock_free(apart)
    boxes, now = yield from _open([each for each in mail if each[0] in dags.runs])
    more = yield from _hand_over(boxes, now)
    return Delivery(
        done.lanes | more.lanes,
        done.ended or more.ended,
        done.running or more.running,
        done.moved + more.moved,
        done.asked or more.asked,
        done.timed or more.timed,
        done.names or more.names,
    )


def undelivered(limit: int) -> Flow[list[MailId]]:
    """Which mail a batch of it is; its runs are locked."""
    return [(row[0], row[1]) for row in (yield from ask("undelivered", limit))]


def _open(mail: Sequence[MailId]) -> Flow[tuple[list[_Box], int]]:
    """Read again, now that their runs are locked: another process may have delivered some of them in between."""
    if not mail:
        return [], 0
    rows = yield from ask("still_undelivered", Rows(mail))
    runs, now = found(row[2:] for row in rows)
    return [_box(runs[row[3]], list(zip(row[0], row[1], strict=True))) for row in rows], now


def _box(run: RunState, mail: list[tuple[str, str]]) -> _Box:
    starts = frozenset(mail_id for mail_id, kind in mail if kind.endswith("+"))
    return _Box(run, [(mail_id, kind.removesuffix("+")) for mail_id, kind in mail] if starts else mail, starts)


def _hand_over(boxes: Sequence[_Box], now: int) -> Flow[Delivery]:
    """Cancellations first: what they end needs no answers any more."""
    after, lanes, ended = yield from _cancel([box.run for box in boxes if box.cancels], now)
    asked = any(run.held for run in after.values())
    if resumable := [after.get(box.run.id, box.run) for box in boxes if box.resumes]:
        resumed = yield from resume_runs(resumable, now)
        after |= {run.id: run for run in resumed.runs}
        lanes |= resumed.lanes
    moved = yield from _reschedule({box.run.id: after.get(box.run.id, box.run) for box in boxes}, boxes, now)
    after |= {run.id: run for run in moved.runs}
    lanes |= moved.lanes
    kept, gone, forwarded, woken = list[MailId](), list[MailId](), list[MailId](), list[RunState]()
    timed = bool(resumable or moved.runs)
    for number, box in enumerate(boxes, 1):
        run = after.get(box.run.id, box.run)
        wanted = wanted_mail(run)
        count = Counter(kind for _, kind in box.mail if kind in wanted)
        if count:
            calls = count[MAIL_SIGNAL] + count[MAIL_EVENT]
            woken.append(wake(run, calls, sum(count[kind] for kind in MAIL_ENDS), now, number))
            lanes |= {run.lane} if woken[-1].ready and not run.ready else set()
            timed = timed or (woken[-1].visible_at != run.visible_at and not woken[-1].ready)
        keeps = run.reason != REASON_CONTINUED
        for mail_id, kind in box.mail:
            stays = kind in wanted or (mail_id in box.starts and kind == MAIL_SIGNAL and keeps)
            (kept if stays and kind != MAIL_EVENT else gone).append((run.id, mail_id))
            if kind not in wanted and kind != MAIL_EVENT and kind not in MAIL_ENDS and run.reason == REASON_CONTINUED:
                forwarded.append((run.id, mail_id))
    yield from put("delivered", kept)
    hand_on = [box.run.id for box in boxes if box.starts and box.run.dag_id is None]
    yield from put("hand_on", [(run_id,) for run_id in hand_on])
    yield from _forward(forwarded)
    yield from put("take_mail", gone)
    yield from change(woken)
    running = any(run.held for run in (*(box.run for box in boxes), *after.values()))
    return Delivery(lanes, ended, running, len(kept) + len(gone), asked, timed, bool(hand_on))


def _forward(mail: Sequence[MailId]) -> Flow[None]:
    """Mail for runs that continued as others goes to the last of these."""
    if not mail:
        return
    continuations = {
        row[0]: row[1] for row in (yield from ask("continuations", sorted({run_id for run_id, _ in mail})))
    }
    yield from put("forward", [(*each, continuations[each[0]]) for each in mail if continuations[each[0]] != each[0]])


def _reschedule(runs: Mapping[str, RunState], boxes: Sequence[_Box], now: int) -> Flow[StateChange]:
    """Move the runs that mail asks it for. Where several pieces do, the last one counts."""
    mail = [each for box in boxes for each in box.moves]
    if not mail:
        return StateChange()
    wanted: dict[str, NewTime] = {}
    for run_id, value in (yield from ask("words", Rows(mail))):
        if (found := from_mail(value)) is not None:
            wanted[run_id] = found
    return (yield from reschedule_runs([(runs[run_id], what) for run_id, what in wanted.items()], now))


def _cancel(runs: Sequence[RunState], now: int) -> Flow[tuple[dict[str, RunState], set[Lane], bool]]:
    """The states of these runs when they are cancelled, where something is ready now, and whether any has ended."""
    if not runs:
        return {}, set(), False
    failing = {run.id: run for run in runs if way_to_cancel(run) == "fail" and not run.failing}
    done = (yield from cancel_dags(failing, now)) if failing else Settlement()
    cancelled = yield from cancel_runs(runs, now)
    after = {run.id: run for run in (*done.runs, *cancelled.runs)}
    return after, done.lanes | cancelled.lanes, cancelled.ended or bool(done.ended)


# -- looking into mailboxes --------------------------------------------------------------------------------


def look(looks: Sequence[Look], most: int) -> Flow[dict[str, Mailbox]]:
    """What was sent to some runs and is new to who looks. The counters are read first, so that they are never newer
    than the mail. Of each name the first comes in any case, or the run would sleep over it; the rest, and the ends of
    children, up to ``most`` bytes."""
    ids = [each.run_id for each in looks]
    boxes = {str(row[0]): Mailbox(row[1], row[2]) for row in (yield from ask("counters", ids))}
    seen = {mail_id for each in looks for mail_id in each.seen}
    names = {each.run_id: each.names for each in looks}
    chosen, piles = list[tuple[str, str]](), dict[tuple[str, str, str], tuple[int, int]]()
    for run_id, mail_id, kind, name, size in (yield from ask("heads", ids)):
        wanted, mail_run = names.get(str(run_id)), str(run_id)
        limit = None if wanted is None or kind != MAIL_SIGNAL else wanted.get(name, 0)
        if str(mail_id) in seen or (wanted is not None and kind == MAIL_SIGNAL and name not in wanted):
            continue
        pile = (mail_run, kind, name if kind == MAIL_SIGNAL else "")
        number, before = piles.get(pile, (0, 0))
        piles[pile] = number + 1, before + size
        if number == 0 or ((limit is None or number < limit) and before < most):
            chosen.append((mail_run, str(mail_id)))
    for run_id, mail_id, *mail in (yield from ask("bodies", Rows(chosen))) if chosen else ():
        if str(run_id) in boxes:
            boxes[str(run_id)].mail.append(Mail(str(run_id), str(mail_id), *mail))
    for box in boxes.values():
        box.more = not holds_all([each for each in box.mail if each.kind in MAIL_ENDS], most)
    return boxes
