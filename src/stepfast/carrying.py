"""Where remote steps go: the transport that was given, or tables of the application's own database."""

from __future__ import annotations

from typing import Any

from .errors import ConfigurationError
from .model.url import DatabaseUrl
from .settings import Settings
from .store import Store
from .worker.carriage import Carriage
from .worker.transport import Transport

_CALLS = ("open", "close", "dispatch", "results", "remove", "cancel", "lost", "leftovers", "prefix")


def check_transport(transport: object) -> None:
    """Refuse what is no transport when the application is made, rather than at the first remote step."""
    if transport is not None and (isinstance(transport, type) or not all(hasattr(transport, call) for call in _CALLS)):
        raise ConfigurationError(
            f"transport= takes a transport, as in transport=SqlTransport(url), not {transport!r}"[:300]
        )


def carriage_for(
    store: Store, transport: Transport | None, url: DatabaseUrl, pool: Any, settings: Settings
) -> Carriage:
    """The transport for one event loop. One without a database of its own is at home in the application's, if that is
    one which workers elsewhere can reach."""
    homeless = transport is None or getattr(transport, "homeless", False)
    if homeless and url.kind == "sqlite":
        return Carriage(store, None)

    def make() -> Transport:
        from .remote import SqlTransport  # only now: most applications have no remote steps

        if transport is None:
            return SqlTransport(settings=settings).at_home_in(url.text, pool)
        if isinstance(transport, SqlTransport):
            return transport.at_home_in(url.text, pool) if homeless else transport.copy()
        return transport

    return Carriage(store, make, joined=homeless)
