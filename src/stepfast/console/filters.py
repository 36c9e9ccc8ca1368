"""Filters of lists: which runs a page shows, and groups of failures that are alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from ..app import Stepfast
from ..errors import ConfigurationError
from ..filters import ListKeywords, split_attributes, typed_attributes
from ..monitoring.changes import glance_of
from ..monitoring.text import span
from ..store.answers import Alike
from .refusals import Refused
from .request import ConsoleRequest

ORDERS = ("newest", "oldest")


@dataclass(frozen=True, slots=True)
class Filters:
    """Filters of runs; all that are given must fit."""

    workflow: str | None = None
    status: str | None = None
    queue: str | None = None
    tag: str | None = None
    reason: str | None = None
    key: str | None = None
    attributes: str | None = None
    """As ``customer=c-7, cents=999``."""
    parent: str | None = None
    since: str | None = None
    """Created within the last 10m, 2h, 1d …"""
    older_than: str | None = None
    text: str | None = None
    """Found in the input."""
    sort: str | None = None

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Filters:
        """Read the filters of an address or a form; empty ones are not given."""
        return cls(**{name: given.get(name) or None for name in cls.__dataclass_fields__})

    @property
    def query(self) -> dict[str, str]:
        """The filters that are given, as query parameters."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def any(self) -> bool:
        """Whether at least one filter is given."""
        return bool(self.query.keys() - {"sort"})

    async def keywords(self, app: Stepfast) -> ListKeywords:
        """The arguments of ``app.runs``, without the text."""
        attributes: dict[str, Any] | None = None
        if self.attributes is not None:
            types = await (await glance_of(app)).attribute_types()
            attributes = typed_attributes(split_attributes(self.attributes), types)
        if self.sort not in (None, *ORDERS):
            raise ConfigurationError(f"runs can be sorted {' or '.join(ORDERS)}, not {self.sort!r}")
        return {
            "workflow": self.workflow, "status": self.status, "queue": self.queue, "tag": self.tag,
            "reason": self.reason, "key": self.key, "since": span(self.since) if self.since else None,
            "older_than": span(self.older_than) if self.older_than else None, "oldest_first": self.sort == ORDERS[1],
            "attributes": attributes, "parent": self.parent,
        }  # fmt: skip


USUAL = "1d"
LOOKED = 10_000
"""How many of the newest failed runs are read, and as many compensated ones."""


FIELDS = ("workflow", "reason", "step", "error", "since")
"""The parameters of a group, in addresses and forms."""


class Group(NamedTuple):
    """A group of failures."""

    alike: Alike
    since: str
    """The span, as in an address."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Group:
        """Read the group of an address or a form: an empty parameter selects failures without it."""
        workflow = given.get("workflow")
        if not workflow:
            raise Refused(400, "the link names no workflow, so it selects no failures")
        rest = [given.get(name) or None for name in FIELDS[1:4]]
        return cls(Alike(workflow, *rest), given.get("since") or USUAL)

    @property
    def query(self) -> dict[str, str]:
        """The group as query parameters."""
        return {name: value for name, value in zip(FIELDS, (*self.alike, self.since), strict=True) if value}

    def __str__(self) -> str:
        parts = [f"{name} {value}" for name, value in self.query.items() if name != "since"]
        return ", ".join([*parts, *([] if self.alike.error_type else ["an error that only the codec can read"])])


def seconds_of(text: str) -> float:
    """Parse the span of time in which failures are searched."""
    seconds = span(text)
    if not 0 < seconds < 10 * 365 * 86400:
        raise Refused(400, f"since must be more than 0 seconds, and at most ten years, not {text}")
    return seconds


async def runs_of(request: ConsoleRequest, group: Group) -> list[str]:
    """Return the runs of a group that can be retried."""
    glance = await glance_of(request.reader)
    return await glance.failed_alike(group.alike, int(seconds_of(group.since) * 1000), LOOKED)
