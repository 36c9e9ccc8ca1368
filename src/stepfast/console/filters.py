"""Which runs a list shows: the filters as they stand in the address, and as the application takes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from ..errors import ConfigurationError
from ..listing import ListKeywords
from ..monitoring.text import span

ORDERS = ("newest", "oldest")


@dataclass(frozen=True, slots=True)
class Filters:
    """What is given; None: any. All of it must fit."""

    workflow: str | None = None
    status: str | None = None
    queue: str | None = None
    tag: str | None = None
    reason: str | None = None
    key: str | None = None
    since: str | None = None
    """Created within the last 10m, 2h, 1d …"""
    older_than: str | None = None
    text: str | None = None
    """To be found in the input."""
    sort: str | None = None

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Filters:
        """From an address or a form; what is empty was not given."""
        return cls(**{name: given.get(name) or None for name in cls.__dataclass_fields__})

    @property
    def query(self) -> dict[str, str]:
        """The filters that were given, as they stand in an address."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def any(self) -> bool:
        """Whether runs are chosen at all."""
        return bool(self.query.keys() - {"sort"})

    @property
    def keywords(self) -> ListKeywords:
        """As ``app.runs`` takes them, but for the text."""
        if self.sort not in (None, *ORDERS):
            raise ConfigurationError(f"runs can be sorted {' or '.join(ORDERS)}, not {self.sort!r}")
        return {
            "workflow": self.workflow, "status": self.status, "queue": self.queue, "tag": self.tag,
            "reason": self.reason, "key": self.key, "since": _seconds(self.since),
            "older_than": _seconds(self.older_than), "oldest_first": self.sort == ORDERS[1],
        }  # fmt: skip


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else span(text)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
