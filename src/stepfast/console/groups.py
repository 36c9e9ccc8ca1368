"""A group of failures, as the page of them shows it: runs of a workflow that failed alike within a span of time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..monitoring.changes import glance_of
from ..monitoring.text import span
from ..store.store import Alike
from .refusals import Refused
from .visit import Visit

USUAL = "1d"
LOOKED = 10_000
"""So many of the newest failed runs are looked at, and as many that were undone."""


FIELDS = ("workflow", "reason", "step", "error", "since")
"""What a group is named by, in addresses and forms."""


class Group(NamedTuple):
    """Which failures are meant."""

    alike: Alike
    since: str
    """The span, as it stands in an address."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Group:
        """From an address or a form: what is empty, the failures do not have."""
        workflow = given.get("workflow")
        if not workflow:
            raise Refused(400, "which failures? The link names no workflow")
        rest = [given.get(name) or None for name in FIELDS[1:4]]
        return cls(Alike(workflow, *rest), given.get("since") or USUAL)

    @property
    def query(self) -> dict[str, str]:
        """The group as it stands in an address or a form."""
        return {name: value for name, value in zip(FIELDS, (*self.alike, self.since), strict=True) if value}

    def __str__(self) -> str:
        parts = [f"{name} {value}" for name, value in self.query.items() if name != "since"]
        return ", ".join([*parts, *([] if self.alike.error_type else ["an error that only the codec can read"])])


def seconds_of(text: str) -> float:
    """A span of time that failures are looked for in."""
    try:
        seconds = span(text)
    except ValueError as error:
        raise Refused(400, str(error)) from None
    if not 0 < seconds < 10 * 365 * 86400:
        raise Refused(400, f"since must be more than 0 seconds, and at most ten years, not {text}")
    return seconds


async def runs_of(visit: Visit, group: Group) -> list[str]:
    """The runs of a group that can be retried."""
    glance = await glance_of(visit.look)
    return await glance.failed_alike(group.alike, int(seconds_of(group.since) * 1000), LOOKED)
