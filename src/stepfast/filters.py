"""``app.runs``: which runs a list shows."""

from __future__ import annotations

from typing import Any, TypedDict

from .engine.options import Seconds
from .engine.workflow import Workflow
from .errors import ConfigurationError
from .info import RunInfo
from .model.backoff import seconds
from .model.ids import check_id
from .model.names import check_name, refuse_unknown
from .model.status import REASONS, RUN_STATUSES

_PAGE = 50
_LARGEST_PAGE = 10_000


class CountKeywords(TypedDict, total=False):
    """The filters of ``app.count``: all of them must fit."""

    workflow: str | Workflow[Any, Any] | None
    status: str | None
    queue: str | None
    tag: str | None
    reason: str | None
    key: str | None
    since: Seconds | None
    """Leaves out runs that were created longer ago."""
    older_than: Seconds | None
    """Leaves out runs that were created less long ago."""


class ListKeywords(CountKeywords, total=False):
    """The filters of ``app.runs``, and which page it is."""

    after: str | RunInfo | None
    """The last run of the page before, or its id."""
    limit: int
    """Runs of a page: 50 by default."""
    oldest_first: bool


def store_filters(given: ListKeywords) -> dict[str, Any]:
    """Checked filters, as the store takes them."""
    refuse_unknown("app.runs", given, ListKeywords.__annotations__)
    workflow, status, after = given.get("workflow"), given.get("status"), given.get("after")
    limit = given.get("limit", _PAGE)
    for what, word, known in (("status", status, RUN_STATUSES), ("reason", given.get("reason"), REASONS)):
        if word is not None and word not in known:
            raise ConfigurationError(f"there is no {what} {word!r}; there are {', '.join(known)}")
    for what in ("workflow", "queue", "tag", "key"):
        if (name := given.get(what)) and not isinstance(name, Workflow):
            check_name(name, f"the {what} of a list")
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= _LARGEST_PAGE:
        raise ConfigurationError(f"limit must be from 1 to {_LARGEST_PAGE}, not {limit!r}")
    return {
        "workflow": workflow.name if isinstance(workflow, Workflow) else workflow,
        "status": status,
        "queue": given.get("queue"),
        "tag": given.get("tag"),
        "reason": given.get("reason"),
        "key": given.get("key"),
        "before": after.id if isinstance(after, RunInfo) else None if after is None else check_id(after),
        "limit": limit,
        "since_ms": _milliseconds(given.get("since"), "since"),
        "older_ms": _milliseconds(given.get("older_than"), "older_than"),
        "oldest_first": given.get("oldest_first", False),
    }


def _milliseconds(span: Seconds | None, what: str) -> int | None:
    return None if span is None else int(seconds(span, what) * 1000)
