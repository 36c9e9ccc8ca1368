"""The Stepfast application of each backend: made from Django's settings, on a database of ``DATABASES``."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.module_loading import import_string

from .. import Settings, Stepfast, StepfastError
from .interface import DEFAULT_TASK_BACKEND_ALIAS, task_backends

if TYPE_CHECKING:
    from .backend import StepfastBackend

VENDORS = {
    "django.db.backends.postgresql": "postgresql",
    "django.contrib.gis.db.backends.postgis": "postgresql",
    "django.db.backends.sqlite3": "sqlite",
    "django.contrib.gis.db.backends.spatialite": "sqlite",
    "django.db.backends.mysql": "mysql",
    "django.contrib.gis.db.backends.mysql": "mysql",
}
"""Engine of ``DATABASES`` → kind of database. An engine of another package is taken by what its name ends with."""

_OF_LIBPQ = ("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "passfile", "target_session_attrs", "options")
"""OPTIONS of Postgres that asyncpg takes too."""

_lock = threading.RLock()
_apps: dict[str, Stepfast] = {}


def get_app(alias: str = DEFAULT_TASK_BACKEND_ALIAS) -> Stepfast:
    """The Stepfast application of a backend in ``TASKS``: to declare workflows and queues, and for its calls."""
    return backend_named(alias).app


def backend_named(alias: str = DEFAULT_TASK_BACKEND_ALIAS) -> StepfastBackend:
    """The backend of this alias, if it is ours."""
    from .backend import StepfastBackend

    backend = task_backends[alias]
    if not isinstance(backend, StepfastBackend):
        raise ImproperlyConfigured(
            f"TASKS[{alias!r}] is a {type(backend).__name__}, not stepfast.django.StepfastBackend"
        )
    return backend


def own_backends() -> list[StepfastBackend]:
    """The backends in ``TASKS`` that are ours."""
    from .backend import StepfastBackend

    return [backend for backend in task_backends.all() if isinstance(backend, StepfastBackend)]


def application(backend: StepfastBackend) -> Stepfast:
    """The application of a backend. It stays the same while the process lasts; if the database of its alias becomes
    another one, as tests have it, the application follows."""
    url, namespace = _url_of(backend), backend.options.get("namespace")
    with _lock:
        app = _apps.get(backend.alias)
        if app is None:
            app = _apps[backend.alias] = _make(backend, url, namespace)
        elif _differs(app, url, namespace):
            app.sync.close()
            app.redirect(url=url, namespace=namespace)
        return app


def _differs(app: Stepfast, url: str, namespace: str | None) -> bool:
    return app.url.text != url or (namespace is not None and app.namespace != namespace)


def _make(backend: StepfastBackend, url: str, namespace: str | None) -> Stepfast:
    from .execution import ClaimObserver

    options, codec = backend.options, backend.options.get("codec")
    try:
        settings = options.get("settings")
        return Stepfast(
            url,
            namespace,
            auto_migrate=False,
            codec=import_string(codec) if isinstance(codec, str) else codec,
            settings=Settings.from_environment(**settings) if isinstance(settings, Mapping) else settings,
            observers=[ClaimObserver()],
        )
    except (StepfastError, ImportError, TypeError) as error:
        raise ImproperlyConfigured(f"TASKS[{backend.alias!r}]: {error}") from error


def close(alias: str) -> None:
    """Disconnect the application of a backend; it connects again when it is used."""
    with _lock:
        app = _apps.get(alias)
    if app is not None:
        app.sync.close()


def prepare_tables(database: str) -> None:
    """Make or update Stepfast's tables in a database of ``DATABASES``, for the backends that use it."""
    for backend in own_backends():
        if backend.database != database or backend.eager or is_in_memory(database):
            continue
        backend.app.sync.migrate()
        backend.used = False
        close(backend.alias)
        _close_before_destroying(database, backend.alias)


def _close_before_destroying(database: str, alias: str) -> None:
    """A test database is dropped when no connection is left: the runner closes its own, and this closes ours."""
    creation = connections[database].creation
    closed = creation.__dict__.setdefault("_stepfast_closes", set())
    if not closed:
        destroy = creation.destroy_test_db

        def close_and_destroy(*args: Any, **options: Any) -> None:
            for each in closed:
                close(each)
            destroy(*args, **options)

        creation.destroy_test_db = close_and_destroy  # type: ignore[method-assign]
    closed.add(alias)


# -- the URL of a database -----------------------------------------------------------------------------------------


def _url_of(backend: StepfastBackend) -> str:
    given = backend.options.get("url")
    if given is not None:
        return str(given)
    if backend.database not in connections.settings:
        raise ImproperlyConfigured(
            f"TASKS[{backend.alias!r}]['OPTIONS']['database'] is {backend.database!r}; DATABASES has "
            f"{', '.join(map(repr, connections.settings))}"
        )
    return database_url(backend.database, connections.settings[backend.database])


def kind_of(settings: Mapping[str, Any]) -> str | None:
    """The kind of database that an entry of ``DATABASES`` leads to, if Stepfast knows it."""
    engine = str(settings.get("ENGINE", ""))
    if engine in VENDORS:
        return VENDORS[engine]
    last = engine.rpartition(".")[2]
    return next((kind for kind in ("postgresql", "sqlite", "mysql") if last.startswith(kind)), None)


def is_in_memory(database: str) -> bool:
    """Whether this is SQLite in memory, as that of Django's test runner: no other connection reaches it."""
    settings = connections.settings[database]
    name = str(settings.get("NAME", ""))
    return kind_of(settings) == "sqlite" and (name in ("", ":memory:") or "mode=memory" in name)


def database_url(alias: str, settings: Mapping[str, Any]) -> str:
    """An entry of ``DATABASES`` as a URL; what a URL cannot say is refused by name."""
    kind = kind_of(settings)
    where = f"DATABASES[{alias!r}]"
    if kind is None:
        raise ImproperlyConfigured(
            f"{where} has the engine {settings.get('ENGINE')!r}: Stepfast works on PostgreSQL, SQLite, MariaDB and "
            "MySQL. Name another entry in TASKS[…]['OPTIONS']['database']"
        )
    if kind == "sqlite":
        return _sqlite_url(settings, where)
    return _postgres_url(settings, where) if kind == "postgresql" else _mysql_url(settings, where)


_OR_URL = "give the URL of the same database in TASKS[…]['OPTIONS']['url']"


def _sqlite_url(settings: Mapping[str, Any], where: str) -> str:
    name = str(settings.get("NAME", ""))
    if name in ("", ":memory:") or "mode=memory" in name:
        return "sqlite://"
    if name.startswith("file:"):
        raise ImproperlyConfigured(f"{where} names its file by a URI, which Stepfast does not read: write the path")
    return f"sqlite:///{os.path.abspath(name)}"


def _credentials(settings: Mapping[str, Any]) -> str:
    user, password = str(settings.get("USER") or ""), str(settings.get("PASSWORD") or "")
    if not user:
        return ""
    return quote(user, safe="") + (f":{quote(password, safe='')}" if password else "") + "@"


def _postgres_url(settings: Mapping[str, Any], where: str) -> str:
    options = settings.get("OPTIONS") or {}
    if options.get("service") or not settings.get("NAME"):
        raise ImproperlyConfigured(f"{where} names a service in place of a database: {_OR_URL}")
    host, port = str(settings.get("HOST") or ""), str(settings.get("PORT") or "")
    parameters = {name: str(options[name]) for name in _OF_LIBPQ if options.get(name)}
    if host.startswith("/"):  # a socket's folder
        parameters["host"] = host
        if port:
            parameters["port"] = port
        host = port = ""
    hosts, ports = host.split(","), port.split(",")
    if len(ports) == 1:
        ports *= len(hosts)
    where_to = ",".join(f"{one}:{number}" if number else one for one, number in zip(hosts, ports, strict=False))
    tail = f"?{urlencode(parameters)}" if parameters else ""
    return f"postgresql://{_credentials(settings)}{where_to}/{quote(str(settings['NAME']), safe='')}{tail}"


def _mysql_url(settings: Mapping[str, Any], where: str) -> str:
    options = settings.get("OPTIONS") or {}
    if options.get("read_default_file") or not settings.get("NAME"):
        raise ImproperlyConfigured(f"{where} is described in a file of options, which only MySQL reads: {_OR_URL}")
    host, port = str(settings.get("HOST") or "localhost"), str(settings.get("PORT") or "")
    parameters = {}
    if host.startswith("/") or options.get("unix_socket"):
        parameters["unix_socket"] = options.get("unix_socket") or host
        host = "localhost"
    if (options.get("ssl") or {}).get("ca"):
        parameters["ssl_ca"] = options["ssl"]["ca"]
    tail = f"?{urlencode(parameters)}" if parameters else ""
    name = quote(str(settings["NAME"]), safe="")
    return f"mysql://{_credentials(settings)}{host}{f':{port}' if port else ''}/{name}{tail}"
