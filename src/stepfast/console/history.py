"""A run and its steps, so many at a time: a run may have tens of thousands, each with a payload of megabytes."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from ..app import Stepfast
from ..carrying import started_remote_steps
from ..errors import RunNotFound
from ..info import Activity, Executors, RunInfo, StepInfo, activity_info, run_info, with_claims
from ..model import status
from ..model.rows import RunRow
from ..model.status import DAG_STEP
from ..monitoring.changes import glance_of
from .refusals import Refused

PAGE = 500
BRIEF = 1024
"""Bytes of a payload that come along with the list of steps; larger ones are loaded when somebody opens them."""
CAREFUL = 16_384
"""The same where parts of payloads are hidden: what is known can be struck out of errors that quote it."""
_TRIES = 500
_RETRIED = 10
"""Of so many steps of a dag run the failed tries are looked up: each is a question of its own."""
_ERROR = 8192
"""Bytes of the error of a failed try that are shown beside its step."""
_BEGIN = ("", -1)
_RUN_ITSELF = ("", -2)
"""Before the attempts of the run itself."""

Address = tuple[str, int]
"""A branch, and a position in it."""


class Sizes(NamedTuple):
    """How many bytes a step holds; None: nothing."""

    output: int | None
    arguments: int | None


class History(NamedTuple):
    """A run, and a page of its steps."""

    info: RunInfo
    dag: str | None
    """For a step of a dag run: that run."""
    steps: list[StepInfo]
    sizes: dict[Address, Sizes]
    arguments: list[Any]
    """What steps were called with, as far as that is small."""
    tries: list[Activity]
    """Failed attempts of the run, and failed tries of its steps."""
    after: Address | None
    """Where this page begins; None: at the beginning."""
    more: Address | None
    """Where the next page begins; None: this is the last."""
    largest: int = BRIEF
    """Payloads of more bytes were not read along."""

    @property
    def whole(self) -> bool:
        """Whether this page has all steps of the run."""
        return self.after is None and self.more is None

    @property
    def complete(self) -> bool:
        """Whether all is here that its errors may quote: all its steps, with all that they hold, and no other run
        whose errors become its own, or whose outputs it is given."""
        large = any((size or 0) > self.largest for sizes in self.sizes.values() for size in sizes)
        others = self.dag is not None or any(step.child is not None for step in self.steps)
        return self.whole and not large and not others and not self.info.left_out


async def read_history(
    look: Stepfast,
    run_id: str,
    after: Address | None = None,
    limit: int = PAGE,
    largest: int = BRIEF,
    input_and_output: bool = True,
) -> History:
    """A run, and the page of its steps behind an address; without payloads that have more bytes than ``largest``.
    Pages show neither input nor output: large ones are decoded only for those who want ``input_and_output``."""
    handle, glance = look.get(run_id), await glance_of(look)
    row = await glance.run(handle.id)
    if row is None:
        raise RunNotFound(handle.id)
    row = row if input_and_output else _without_large(row)
    lean = await glance.lean_steps(handle.id, after or _BEGIN, limit + 1, largest)
    records = [each.record for each in lean[:limit]]
    more = (records[-1].branch, records[-1].position) if len(lean) > limit else None
    sizes = {(each.record.branch, each.record.position): Sizes(each.output_size, each.arguments_size) for each in lean}
    info = run_info(row, look._payloads)
    steps = await handle._told(row, records, first=after is None)
    if status.WAITING_REMOTE in (info.waiting_for or "") and after is None:
        steps = with_claims(steps, await started_remote_steps(look, handle.id))
    tries = await _tries(look, info.id, steps, after)
    arguments = [look._payloads.plain(record.arguments, record.format, "arguments") for record in records]
    return History(info, row.dag_id, steps, sizes, arguments, tries, after, more, largest)


def _without_large(row: RunRow) -> RunRow:
    """An open page asks every two seconds, and what has megabytes takes a second to decode."""
    if len(row.input or "") > CAREFUL:
        row = msgspec.structs.replace(row, input=None)
    if len(row.output or "") > CAREFUL:
        row = msgspec.structs.replace(row, output=None, large_output=True)
    return row


async def _tries(look: Stepfast, run_id: str, steps: list[StepInfo], after: Address | None) -> list[Activity]:
    """The failed tries of the steps that are shown, and of the run itself; a bounded number of them."""
    glance, payloads = await glance_of(look), look._payloads
    rows = await glance.failed_tries(run_id, after or _RUN_ITSELF, _TRIES, _ERROR)
    retried = [step for step in steps if step.kind == DAG_STEP and step.child is not None and step.attempts > 1]
    ids = [run_id] * bool(rows) + [step.child or "" for step in retried[:_RETRIED]]
    executors = await (await look.store()).executors(ids) if ids else {}
    found = [activity_info(run_id, row, payloads, Executors(executors[run_id])) for row in rows]
    for step in retried[:_RETRIED]:
        assert step.child is not None
        rows, its = (
            await glance.failed_tries(step.child, limit=_TRIES, largest=_ERROR),
            Executors(executors[step.child]),
        )
        found += [activity_info(step.child, row, payloads, its, step.name) for row in rows]
    return found


def written(address: Address | None) -> str | None:
    """An address as it stands in a link."""
    return None if address is None else f"{address[1]}@{address[0]}"


def address_of(text: str | None) -> Address | None:
    """The address that a link names."""
    if not text:
        return None
    position, _, branch = text.partition("@")
    return branch, number(position)


def number(text: Any) -> int:
    """A whole number out of a link."""
    digits = str(text)
    if not digits.isascii() or not digits.removeprefix("-").isdecimal() or len(digits) > 9:
        raise Refused(400, "this link is broken: a number was expected in it")
    return int(digits)
