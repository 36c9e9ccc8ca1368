"""Questions to runs: asked under the lock of the run, answered in the transaction that records the answer."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import InvalidInput
from ...model.names import QUESTION
from ...model.records import Answer, Mail, QuestionAnswer
from ...model.run_state import RunState
from ...model.status import NO_SUCH_STEP
from ...model.transitions.signals import wake, way_to_signal
from ..answers import mailbox_full
from .base import Flow, ask, change, found, lock_run, put


def ask_question(mail: Mail, most: int, check: bool = False) -> Flow[Answer]:
    """Put a question into the mailbox of a run, and wake the run. One that was asked before is there already, also if
    it has been answered since."""
    run, now = yield from lock_run(mail.run_id)
    if (yield from _known(mail)):
        return Answer(None if run is None else run.status, done=True)
    if run is None:
        return Answer(None)
    if not run.is_dag:
        return (yield from _ask(run, mail, most, now, check))
    runs, now = found((yield from ask("lock_step_named", run.id, mail.name)))
    for step in runs.values():
        answer = yield from _ask(step, mail, most, now, check)
        if answer.done or answer.awaited:
            return answer
    return Answer(run.status, NO_SUCH_STEP if way_to_signal(run.status) == "take" else run.reason)


def _known(mail: Mail) -> Flow[bool]:
    """Whether the question was asked before; under another name it is another question."""
    rows = yield from ask("questions", [mail.id])
    if rows and rows[0][2] != mail.name:
        raise InvalidInput(
            f"run {mail.run_id} was asked {rows[0][2]!r} under this id before, not {mail.name!r}; take another id"
        )
    return bool(rows)


def _ask(run: RunState, mail: Mail, most: int, now: int, check: bool) -> Flow[Answer]:
    answer = Answer(run.status, run.reason, running=run.held)
    if way_to_signal(run.status, run.reason) != "take" or run.undoing:
        return answer
    if check:
        plans = [row[0] for row in (yield from ask("awaited_questions", run.id, mail.name))]
        if plans and all('"type":' in (plan or "") for plan in plans):
            answer.awaited = plans
            return answer
    values = (run.id, mail.id, mail.kind, QUESTION + mail.name, mail.value, None, mail.format)
    if not (yield from ask("send", *values, most, mail.trace, None)):
        raise mailbox_full(run.id, most)
    yield from put("put_question", [(mail.id, run.id, QUESTION + mail.name, mail.format)])
    after = wake(run, 1, 0, now)
    yield from change([after])
    answer.lane = run.lane if after.ready and not run.ready else None
    answer.done = True
    return answer


def refuse_question(worker: str, run_id: str, claim: int, refusal: QuestionAnswer) -> Flow[bool]:
    """Refuse a question that no code can take, and take its message out of the mailbox; whether the worker still holds
    the run under this claim. If not, nothing is written: the code that holds it now may take the question."""
    run, now = yield from lock_run(run_id)
    if run is None or (run.worker, run.claim) != (worker, claim):
        return False
    yield from put("take_mail", [(run_id, refusal.id)])
    yield from answer([(run_id, refusal)], now)
    return True


def answer(answers: Sequence[tuple[str, QuestionAnswer]], now: int) -> Flow[None]:
    """Answer questions to these runs, or refuse them; those that have an answer keep it."""
    yield from put("answer_questions", [(run_id, *each, now) for run_id, each in answers])


def give_up(run_ids: Sequence[str]) -> Flow[None]:
    """Let the questions stay ended that have ended with runs which now continue."""
    rows = [(run_id,) for run_id in run_ids]
    yield from put("end_questions", rows)
    yield from put("drop_questions", rows)
