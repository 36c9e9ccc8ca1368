"""The Django app: ``INSTALLED_APPS += ["stepfast.django"]``."""

from __future__ import annotations

import importlib
from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class StepfastConfig(AppConfig):
    """Tables by ``manage.py migrate``, the worker's and the console's commands, pages of the admin."""

    name = "stepfast.django"
    label = "stepfast"
    verbose_name = "Stepfast"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Bring the tables up to date after every migration, and have the backends checked."""
        importlib.import_module("stepfast.django.interface")  # Django's check of backends comes with its tasks
        post_migrate.connect(_update_tables, sender=self)


def _update_tables(using: str, **given: Any) -> None:
    from . import applications, testing

    if "plan" in given:  # of `migrate`; the same signal is sent by `flush`
        applications.prepare_tables(using)
    else:
        testing.flushed(using)
