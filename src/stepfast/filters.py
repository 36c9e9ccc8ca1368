"""``app.runs``: which runs a list shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

from .engine.options import Seconds
from .engine.workflow import Workflow
from .errors import ConfigurationError
from .info import RunInfo
from .model.attributes import encode_attributes, from_text
from .model.backoff import seconds
from .model.ids import check_id, ids_beginning_with
from .model.names import check_name, nearest, refuse_unknown
from .model.status import REASONS, RUN_STATUSES

_PAGE = 50
_LARGEST_PAGE = 10_000
MOST = 32
"""Attributes by which a list is narrowed at most."""


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
    attributes: Mapping[str, Any] | None
    """Of runs that have all of these."""
    parent: str | None
    """Of runs that this one has started."""
    id_prefix: str | None
    """The beginning of their ids."""


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
        "attributes": encode_attributes(given.get("attributes") or {}, MOST),
        "parent": None if (parent := given.get("parent")) is None else check_id(parent),
        "ids": _ids(given.get("id_prefix")),
    }


def split_attributes(text: str) -> list[str]:
    """The parts of ``customer=c-7, cents=999``. A comma before what has no equals sign belongs to a value."""
    pairs: list[str] = []
    for part in text.split(","):
        if "=" in part or not pairs:
            pairs.append(part.strip())
        else:
            pairs[-1] += f",{part}"
    return [pair for pair in pairs if pair]


def typed_attributes(pairs: Iterable[str], types: Mapping[str, str], known: bool = True) -> dict[str, Any]:
    """Attributes that were typed in as ``name=value``. ``known``: one without a type is refused: no run has it."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, sign, text = pair.partition("=")
        if not sign or not name:
            raise ConfigurationError(f"an attribute is typed in as name=value, not {pair!r}")
        if known and name not in types:
            raise ConfigurationError(f"no run has an attribute {name!r}{nearest(name, types)}")
        found[name] = from_text(name, text, types.get(name))
    return found


def _ids(prefix: str | None) -> tuple[str, str] | None:
    if prefix is None:
        return None
    bounds = ids_beginning_with(prefix) if isinstance(prefix, str) else None
    if bounds is None:
        raise ConfigurationError(f"id_prefix must be the beginning of an id, as 01a1, not {prefix!r}")
    return bounds


def _milliseconds(span: Seconds | None, what: str) -> int | None:
    return None if span is None else int(seconds(span, what) * 1000)
