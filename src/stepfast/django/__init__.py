"""A backend for the tasks of Django: ``django.tasks`` of Django 6, and django-tasks on Django 5.2.

``StepfastBackend`` keeps tasks as runs in a database of ``DATABASES`` and enqueues them on Django's own connection, in
its transaction. ``context`` makes durable steps within a task. As an app, ``stepfast.django`` brings the tables, the
worker, the console and the pages of the admin. What Django loads before its apps are ready is imported late.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

try:
    import django
except ImportError as missing:  # pragma: no cover - tried by the tests of packaging, in a process of its own
    raise ImportError("stepfast.django needs Django 5.2 or later: pip install 'stepfast[django]'") from missing
if django.VERSION < (5, 2):  # pragma: no cover - no older one is installed where tests run
    raise ImportError(f"stepfast.django needs Django 5.2 or later, and this is {django.__version__}")

if TYPE_CHECKING:
    from .applications import get_app
    from .backend import StepfastBackend, StepfastTask
    from .durable import context

__all__ = ["StepfastBackend", "StepfastTask", "context", "get_app"]

_MODULES = {
    "StepfastBackend": "backend",
    "StepfastTask": "backend",
    "context": "durable",
    "get_app": "applications",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
