"""Reading a run and a page of its steps: a run may have tens of thousands, each with a payload of megabytes."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from ..app import Stepfast
from ..errors import RunNotFound
from ..info import Activity, Executors, RunInfo, StepInfo, activity_info, run_info, with_claims
from ..model import status
from ..model.rows import RunRow
from ..model.status import DAG_STEP
from ..monitoring.changes import glance_of
from ..transports import started_remote_steps
from .refusals import Refused

PAGE = 500
BRIEF = 1024
"""Bytes of a payload that is read with the list of steps; larger ones are loaded when they are opened."""
CAREFUL = 16_384
"""The same where parts of payloads are hidden: only values that were read can be removed from errors."""
_TRIES = 500
_RETRIED = 10
"""How many steps of a dag run have their failed tries read, with a query for each."""
_ERROR = 8192
"""Bytes of the error of a failed try that are shown."""
_BEGIN = ("", -1)
_RUN_ITSELF = ("", -2)
"""Before the attempts of the run itself."""

Address = tuple[str, int]
"""A branch, and a position in it."""


class Sizes(NamedTuple):
    """The sizes of the payloads of a step in bytes; None without a payload."""

    output: int | None
    arguments: int | None


class History(NamedTuple):
    """A run, and a page of its steps."""

    info: RunInfo
    dag: str | None
    """The dag run that this run is a step of."""
    steps: list[StepInfo]
    sizes: dict[Address, Sizes]
    arguments: list[Any]
    """The arguments of the steps, without large ones."""
    tries: list[Activity]
    """Failed attempts of the run, and failed tries of its steps."""
    after: Address | None
    """The address before this page; None: it is the first."""
    more: Address | None
    """The address before the next page; None: this is the last."""
    largest: int = BRIEF
    """Payloads of more bytes were not read."""

    @property
    def whole(self) -> bool:
        """Whether this page has all steps of the run."""
        return self.after is None and self.more is None

    @property
    def complete(self) -> bool:
        """Whether all payloads that the errors of the run may quote were read: those of all its steps, and none of
        other runs, whose errors and outputs it may receive."""
        large = any((size or 0) > self.largest for sizes in self.sizes.values() for size in sizes)
        others = self.dag is not None or any(step.child is not None for step in self.steps)
        return self.whole and not large and not others and not self.info.left_out


async def read_history(
    reader: Stepfast,
    run_id: str,
    after: Address | None = None,
    limit: int = PAGE,
    largest: int = BRIEF,
    input_and_output: bool = True,
) -> History:
    """Read a run and the page of its steps after an address, without payloads of more than ``largest`` bytes. A large
    input or output of the run is decoded only with ``input_and_output``: HTML pages do not show them."""
    handle, glance = reader.get(run_id).this, await glance_of(reader)
    row = await glance.run(handle.id)
    if row is None:
        raise RunNotFound(handle.id)
    row = row if input_and_output else _without_large(row)
    lean = await glance.lean_steps(handle.id, after or _BEGIN, limit + 1, largest)
    records = [each.record for each in lean[:limit]]
    more = (records[-1].branch, records[-1].position) if len(lean) > limit else None
    sizes = {(each.record.branch, each.record.position): Sizes(each.output_size, each.arguments_size) for each in lean}
    info = run_info(row, reader._payloads)
    steps = await handle._told(row, records, first=after is None)
    if status.WAITING_REMOTE in (info.waiting_for or "") and after is None:
        steps = with_claims(steps, await started_remote_steps(reader, handle.id))
    tries = await _tries(reader, info.id, steps, after)
    arguments = [reader._payloads.plain(record.arguments, record.format, "arguments") for record in records]
    return History(info, row.dag_id, steps, sizes, arguments, tries, after, more, largest)


def _without_large(row: RunRow) -> RunRow:
    """An open page is read every few seconds, and megabytes take a second to decode."""
    if len(row.input or "") > CAREFUL:
        row = msgspec.structs.replace(row, input=None)
    if len(row.output or "") > CAREFUL:
        row = msgspec.structs.replace(row, output=None, large_output=True)
    return row


async def _tries(reader: Stepfast, run_id: str, steps: list[StepInfo], after: Address | None) -> list[Activity]:
    glance = await glance_of(reader)
    rows = await glance.failed_tries(run_id, after or _RUN_ITSELF, _TRIES, _ERROR)
    retried = [step for step in steps if step.kind == DAG_STEP and step.child is not None and step.attempts > 1]
    found = [(run_id, "", rows)] if rows else []
    for step in retried[:_RETRIED]:
        assert step.child is not None
        found.append((step.child, step.name, await glance.failed_tries(step.child, limit=_TRIES, largest=_ERROR)))
    executors = await (await reader.store()).executors([each for each, _, _ in found]) if found else {}
    return [
        activity_info(each, row, reader._payloads, its, step)
        for each, step, rows in found
        for its in [Executors(executors[each])]
        for row in rows
    ]


def written(address: Address | None) -> str | None:
    """Return an address as a query parameter."""
    return None if address is None else f"{address[1]}@{address[0]}"


def address_of(text: str | None) -> Address | None:
    """Return the address of a query parameter."""
    if not text:
        return None
    position, _, branch = text.partition("@")
    return branch, number(position)


def number(text: Any, longest: int = 9) -> int:
    """Parse a whole number of a query parameter, of so many digits at most."""
    digits = str(text)
    if not digits.isascii() or not digits.removeprefix("-").isdecimal() or len(digits) > longest:
        raise Refused(400, "this link is broken: a number was expected in it")
    return int(digits)
