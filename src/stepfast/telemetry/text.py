"""``metrics_text``: what Prometheus is to read, for programs that have an HTTP server of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .database_gauges import gauges_of
from .exposition import render
from .reports import counted

if TYPE_CHECKING:
    from ..app import Stepfast


async def metrics_text(app: Stepfast) -> str:
    """The metrics of this process and of the database, as Prometheus reads them (``text/plain; version=0.0.4``).

    Counters are there if ``Metrics`` is among the observers of the application. The database is asked at most every
    ``metrics_cache`` seconds, however often this is called.
    """
    return render([*await gauges_of(app), *counted(app)])
