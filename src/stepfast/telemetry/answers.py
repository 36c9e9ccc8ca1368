"""What the health port answers: three pages, plain text, for whoever watches over a process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ..model.health import Finding
from .exposition import CONTENT_TYPE, Family, render
from .reports import Report, all_ok

LIVE = ("/live", "/livez")
READY = ("/ready", "/readyz")
METRICS = "/metrics"
_PLAIN = "text/plain; charset=utf-8"
_PAGES = f"there are {LIVE[0]}, {READY[0]} and {METRICS}\n"


class Source(Protocol):
    """Whoever knows how things are: one process, or the parent of several."""

    async def health(self) -> Report:
        """Whether the process is alive, and ready to work."""
        ...

    async def metrics(self) -> list[Family]:
        """What was counted, and what stands in the database."""
        ...


class Answer(NamedTuple):
    """What the health port sends back."""

    code: int
    text: str
    content_type: str = _PLAIN
    allow: bool = False
    """Whether to say which methods there are."""


async def answer(source: Source, method: str, target: str) -> Answer:
    """The answer to one question. Nothing of the question is repeated in it."""
    path = target.partition("?")[0]
    if path not in (*LIVE, *READY, METRICS):
        return Answer(404, _PAGES)
    if method not in ("GET", "HEAD"):
        return Answer(405, "only GET and HEAD\n", allow=True)
    if path == METRICS:
        return Answer(200, render(await source.metrics()), CONTENT_TYPE)
    report = await source.health()
    return _told(report.live if path in LIVE else report.ready)


def _told(findings: Sequence[Finding]) -> Answer:
    """Each thing that was looked at has its line, also where all is well: who looks by hand wants to see it."""
    lines = [f"{'ok' if finding.ok else 'wrong'}: {finding.name}: {finding.said}\n" for finding in findings]
    return Answer(200 if all_ok(findings) else 503, "".join(lines))
