"""Races as they are read off their records, for people: who won, and what was given up because of it."""

from __future__ import annotations

from collections.abc import Sequence

from ..model import status
from ..model.records import StepRecord
from ..model.stored import read_json
from .cursor import addresses_above

FIRST = "first"
"""The kind under which a race is recorded."""

Winners = dict[tuple[str, int], str]
"""(branch, position) of everything that ran in a race which is decided: who won it."""


def winners_of(records: Sequence[StepRecord]) -> Winners:
    """The record of a race says who won, and its arguments which positions ran in it."""
    found: Winners = {}
    for record in records:
        if record.kind == FIRST and record.status == status.COMPLETED and record.arguments is not None:
            addresses = read_json(record.arguments, dict[str, int], {})
            winner = read_json(record.output, str, "")
            found |= {(record.branch, address): winner for address in addresses.values()}
    return found


def lost_to(record: StepRecord, standing: str, winners: Winners) -> str | None:
    """Who won the race in which a call, or the branch that it belongs to, was given up."""
    if standing != status.CANCELLED or not winners:
        return None
    addresses = [(record.branch, record.position), *reversed(addresses_above(record.branch))]
    return next((winners[address] for address in addresses if address in winners), None)
