"""The audit: what people have done by the console, line by line, and its part of the store's protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from ..model.stored import read_json
from .flows.requests import Flow, T, ask, put

_TRIMMED = 20
"""Lines that are looked at for each that is written, the oldest first, whether their time is over."""

_SILENT = 60_000
"""Milliseconds without a word after which nobody expects the end of an action any more. Actions take seconds; those
that take longer give word every few seconds."""

BEGUN, DONE, REFUSED, FAILED, INTERRUPTED = "begun", "done", "refused", "failed", "interrupted"
UNKNOWN = "unknown"
"""What a line that was begun is read as when its process has fallen silent."""


class Deed(NamedTuple):
    """What somebody is about to do."""

    id: str
    who: str
    what: str
    """A verb, as ``run.cancel``."""
    which: str
    """The run, queue or schedule it is done to; of many runs, what they are chosen by."""
    origin: str
    """From where: the address of the client."""
    detail: str | None = None
    """What else was asked, as JSON. Never a payload."""


class AuditLine(NamedTuple):
    """What somebody did, and what came of it."""

    id: str
    at: int
    who: str
    what: str
    which: str
    origin: str
    detail: str | None
    outcome: str
    said: str | None


class AuditStore(Protocol):
    """A database that keeps an audit."""

    async def audit_begin(self, deed: Deed, keep_ms: int | None) -> None:
        """Write what is about to be done; some of the lines that are older than this are deleted."""

    async def audit_heard(self, deed_id: str, said: str) -> None:
        """Write how far it is. Whoever takes longer than seconds gives word so."""

    async def audit_end(self, deed_id: str, outcome: str, said: str | None) -> None:
        """Write what came of it."""

    async def audit(self, which: str | None = None, before: str | None = None, limit: int = 50) -> list[AuditLine]:
        """A page of lines, the newest first; ``before`` is the id of the last line of the page before. One whose
        process has fallen silent is ``unknown``."""
        ...


class BaseAudit:
    """The audit as every database keeps it: by the statements of its own."""

    async def _fetch(self, name: str, *arguments: Any) -> Sequence[Any]:
        raise NotImplementedError

    async def _drive(self, flow: Callable[..., Flow[T]], *arguments: Any) -> T:
        raise NotImplementedError

    async def audit_begin(self, deed: Deed, keep_ms: int | None) -> None:
        """Write what is about to be done."""
        await self._drive(_begin, deed, keep_ms)

    async def audit_heard(self, deed_id: str, said: str) -> None:
        """Write how far it is."""
        await self._drive(put, "audit_heard", [(deed_id, said)])

    async def audit_end(self, deed_id: str, outcome: str, said: str | None) -> None:
        """Write what came of it."""
        await self._drive(put, "audit_end", [(deed_id, outcome, said)])

    async def audit(self, which: str | None = None, before: str | None = None, limit: int = 50) -> list[AuditLine]:
        """A page of lines."""
        if which is None:
            rows = await self._fetch("audit_page", before, limit)
        else:
            rows = await self._fetch("audit_of", which, before, limit)
        return [_read(AuditLine(*row[:-1]), row[-1]) for row in rows]


def _begin(deed: Deed, keep_ms: int | None) -> Flow[None]:
    yield from put("audit_begin", [tuple(deed)])
    if keep_ms is not None:
        yield from ask("audit_trim", keep_ms, _TRIMMED)


def _read(line: AuditLine, now: int) -> AuditLine:
    """The line as it is read: without the mark of when its process was last heard of, by which it may be unknown."""
    detail: dict[str, Any] = read_json(line.detail, dict[str, Any], {})
    heard = detail.pop("heard", None)
    heard = heard if isinstance(heard, int) else None
    if heard is not None:
        line = line._replace(detail=msgspec.json.encode(detail).decode() if detail else None)
    if line.outcome != BEGUN or now - (heard or line.at) <= _SILENT:
        return line
    said = "" if line.said is None else f"{line.said}; then "
    return line._replace(outcome=UNKNOWN, said=f"{said}nothing was heard of it any more")
