"""The settings of the example, on the database that a test names, with more tasks."""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.parse import unquote, urlsplit

from settings import *  # type: ignore[import-not-found]  # noqa: F403  # the example's: its folder is the current one
from settings import INSTALLED_APPS, TASKS

ENGINES = {"postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql", "sqlite": "sqlite3"}


def database(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    engine = f"django.db.backends.{ENGINES[parts.scheme]}"
    if parts.scheme == "sqlite":
        return {"ENGINE": engine, "NAME": parts.path[1:], "TEST": {"NAME": f"{parts.path[1:]}.test"}}
    name = parts.path[1:]
    return {
        "ENGINE": engine,
        "NAME": name,
        "HOST": parts.hostname,
        "PORT": parts.port,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "TEST": {"NAME": f"{name}_test"},
    }


URL = os.environ["DJANGO_TEST_DATABASE"]
if URL.startswith(("mysql", "mariadb")):
    try:
        import MySQLdb  # type: ignore[import-untyped]  # noqa: F401
    except ImportError:  # mysqlclient has to be compiled
        import pymysql

        pymysql.version_info = (2, 2, 7, "final", 0)  # what Django asks of mysqlclient
        pymysql.install_as_MySQLdb()

DATABASES = {"default": database(URL)}
INSTALLED_APPS = [*INSTALLED_APPS, "tests.integrations.django.app"]
TASKS["default"]["QUEUES"] = []
TASKS["default"]["OPTIONS"]["settings"] = {"inline_wait": 0.0}  # tasks that wait leave their worker
TASKS["default"]["OPTIONS"] |= json.loads(os.environ.get("DJANGO_TEST_OPTIONS", "{}"))
DEBUG = "DJANGO_TEST_DEBUG" in os.environ
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
