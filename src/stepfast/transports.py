"""The transport of remote steps: the given one, or tables of the application's own database."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from .errors import ConfigurationError, StepfastError
from .model.remote_steps import SENT
from .model.urls import DatabaseUrl
from .settings import Settings
from .store import Store
from .worker.remote_dispatcher import Transport, TransportHandle

if TYPE_CHECKING:
    from .app import Stepfast

Address = tuple[str, int]
"""The branch and the position of a step."""
_CALLS = ("open", "close", "dispatch", "results", "remove", "cancel", "lost", "leftovers", "unclaimed", "prefix")


def check_transport(transport: object) -> None:
    """Refuse an object that is no transport when the application is made."""
    if transport is not None and (isinstance(transport, type) or not all(hasattr(transport, call) for call in _CALLS)):
        raise ConfigurationError(
            f"transport= takes a transport, as in transport=SqlTransport(url), not {transport!r}"[:300]
        )


def transport_for(
    store: Store, transport: Transport | None, url: DatabaseUrl, pool: Any, settings: Settings, create: bool = True
) -> TransportHandle:
    """Return the transport for one event loop. In the database of an application that does not make tables
    (``create``), it makes none either, unless it was made with ``create=True``."""
    if _is_homeless(transport) and url.kind == "sqlite":
        return TransportHandle(store, None)
    joined = _is_homeless(transport)
    may_create = create or not joined or getattr(transport, "create", None)
    make = functools.partial(_make, transport, url, pool, settings, None if may_create else False)
    return TransportHandle(store, make, joined=joined)


async def started_remote_steps(app: Stepfast, run_id: str) -> dict[Address, bool]:
    """Return which of the sent remote steps of a run a worker has begun, as far as the transport can be queried. No
    tables are made for that."""
    steps = await (await app.store()).remote_steps([run_id])
    out = {step.step_id: (step.branch, step.position) for step in steps if step.state == SENT}
    homeless = _is_homeless(app.transport) and app.url.kind == "sqlite"
    if not out or homeless:
        return {}
    transport = _make(app.transport, app.url, app._pool, app.settings, create=False)
    try:
        await transport.open()
        try:
            untouched = set(await transport.unclaimed(list(out)))
        finally:
            await transport.close()
    except StepfastError:
        return {}  # its tables are elsewhere, or do not exist yet
    return {address: step_id not in untouched for step_id, address in out.items()}


def _is_homeless(transport: Transport | None) -> bool:
    """Whether it uses the database of the application."""
    return transport is None or bool(getattr(transport, "homeless", False))


def _make(
    transport: Transport | None, url: DatabaseUrl, pool: Any, settings: Settings, create: bool | None = None
) -> Transport:
    from .remote import SqlTransport, SqsTransport  # only now: most applications have no remote steps

    if isinstance(transport, SqsTransport):
        return transport.copy(create, settings)
    if transport is not None and not isinstance(transport, SqlTransport):
        return transport
    mine = (transport or SqlTransport(settings=settings)).copy(create, settings)
    return mine.at_home_in(url.text, pool) if mine.homeless else mine
