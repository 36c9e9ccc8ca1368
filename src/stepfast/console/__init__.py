"""The web console: pages over the database of an application, and actions on its runs.

``console(app, …)`` makes an ASGI application, to be mounted in another or served by ``stepfast console``. Every request
passes one access check (``security.py``), and every page and action has a route (``app.py``).
"""

from __future__ import annotations

try:
    import jinja2  # noqa: F401
    import starlette  # noqa: F401
except ImportError as missing:  # pragma: no cover - tried by the tests of packaging, in a process of its own
    raise ImportError("the console needs packages that are not installed: pip install 'stepfast[console]'") from missing

from .app import Console, console
from .security import OPERATE, VIEW, Auth, Who

__all__ = ["OPERATE", "VIEW", "Auth", "Console", "Who", "console"]
