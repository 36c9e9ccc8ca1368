"""What can be wrong with the settings of a backend: told by ``manage.py check``, and refused where it would be used."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from .. import Settings
from ..errors import StepfastError
from .applications import database_url, is_in_memory, kind_of, own_backends

if TYPE_CHECKING:
    from .backend import StepfastBackend

OPTIONS = (
    "database", "url", "namespace", "settings", "codec", "modules", "max_attempts", "timeout", "eager", "console_url",
)  # fmt: skip
"""What ``OPTIONS`` may have."""

_DRIVERS = {"postgresql": ("asyncpg", "postgres"), "mysql": ("asyncmy", "mysql")}
"""Kind of database → what Stepfast needs for it, and the extra that brings it."""


def check_backend(backend: StepfastBackend) -> list[CheckMessage]:
    """Every fault of a backend's settings, and what may be one."""
    found: list[CheckMessage] = [
        Error(message, hint=hint, obj=f"TASKS[{backend.alias!r}]", id=f"stepfast.{number}")
        for number, message, hint in _faults(backend)
    ]
    if found or backend.eager:
        return found
    warnings = list(_doubts(backend))
    return [
        Warning(message, hint=hint, obj=f"TASKS[{backend.alias!r}]", id=f"stepfast.{number}")
        for number, message, hint in warnings
    ]


def refuse_unusable(backend: StepfastBackend) -> None:
    """Refuse to use a backend whose settings are wrong."""
    if backend.database in connections.settings and "url" not in backend.options and is_in_memory(backend.database):
        raise ImproperlyConfigured(
            f"TASKS[{backend.alias!r}]: the database {backend.database!r} is in memory, where no worker reaches it. In "
            "tests, name a file in DATABASES[…]['TEST'], as in {'NAME': BASE_DIR / 'test.sqlite3'}, or set "
            "OPTIONS['eager'] to True. Nothing was enqueued"
        )
    if backend.found_usable:
        return
    for _, message, hint in _faults(backend):
        raise ImproperlyConfigured(f"TASKS[{backend.alias!r}]: {message}. {hint}")
    backend.found_usable = True


Fault = tuple[str, str, str]


def _faults(backend: StepfastBackend) -> Iterator[Fault]:
    yield from _wrong_options(backend.options)
    for queue in sorted(backend.queues, key=str):
        if not isinstance(queue, str) or not queue or "," in queue or queue != queue.strip():
            yield (
                "E002",
                f"QUEUES has {queue!r}",
                "A name has no comma, and no blanks around it.",
            )
    if backend.database not in connections.settings:
        known = ", ".join(map(repr, connections.settings))
        yield "E003", f"OPTIONS['database'] is {backend.database!r}, which DATABASES has not", f"It has {known}."
        return
    if backend.eager:
        return
    settings = connections.settings[backend.database]
    kind = kind_of(settings)
    if "url" not in backend.options:
        try:
            database_url(backend.database, settings)
        except ImproperlyConfigured as error:
            yield "E004", str(error), ""
            return
    if kind == "postgresql" and not _has_psycopg3():
        yield (
            "E005",
            f"DATABASES[{backend.database!r}] is connected by psycopg2, which django.db takes where psycopg is missing",
            "Stepfast joins transactions of psycopg 3: pip install psycopg",
        )
    driver, extra = _DRIVERS.get(kind or "", (None, ""))
    if driver is not None and importlib.util.find_spec(driver) is None:
        yield (
            "E006",
            f"{driver} is not installed, by which workers use this database",
            f"pip install 'stepfast[{extra}]'",
        )


def _wrong_options(options: Mapping[str, Any]) -> Iterator[Fault]:
    for name in options:
        if name not in OPTIONS:
            yield "E001", f"OPTIONS has {name!r}, which Stepfast does not know", f"It knows {', '.join(OPTIONS)}."
    attempts = options.get("max_attempts", 1)
    if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
        yield "E001", f"OPTIONS['max_attempts'] is {attempts!r}", "It is a whole number of at least 1."
    if isinstance(options.get("modules", ()), str):
        yield "E001", f"OPTIONS['modules'] is the text {options['modules']!r}", "It is a list of modules."
    given = options.get("settings")
    if isinstance(given, Mapping):
        try:
            Settings(**given)
        except (StepfastError, TypeError) as error:
            yield "E001", f"OPTIONS['settings']: {error}", "See the reference of settings."
    elif given is not None and not isinstance(given, Settings):
        yield "E001", f"OPTIONS['settings'] is {given!r}", "It is a dict, as in {'lease': 10}, or stepfast.Settings."


def _has_psycopg3() -> bool:
    try:
        from django.db.backends.postgresql.psycopg_any import is_psycopg3
    except ImportError:
        return False
    return bool(is_psycopg3)


def _doubts(backend: StepfastBackend) -> Iterator[Fault]:
    if not apps.is_installed("stepfast.django"):
        yield (
            "W001",
            "stepfast.django is not among INSTALLED_APPS, so that manage.py migrate does not make the tables",
            "Add it, or make them by `stepfast migrate`.",
        )
    mine = _tables_of(backend)
    for other in own_backends():
        if other.alias < backend.alias and _tables_of(other) == mine:
            yield (
                "W002",
                f"TASKS[{other.alias!r}] has the same tables: workers of each execute the tasks of both",
                "Give each an OPTIONS['namespace'] of its own, or use one backend with several QUEUES.",
            )


def _tables_of(backend: StepfastBackend) -> tuple[Any, ...]:
    options = backend.options
    return options.get("url", backend.database), options.get("namespace", "stepfast")
