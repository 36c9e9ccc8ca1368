"""Stepfast's own tables, made by its own migrations, and the permissions of the admin."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models

from stepfast.django.applications import prepare_tables


def _prepare(apps: Any, editor: Any) -> None:
    prepare_tables(editor.connection.alias)


class Migration(migrations.Migration):
    """Later versions of Stepfast's tables are made after every `migrate`, without a migration of Django's."""

    initial = True
    atomic = False  # the tables are made on another connection, which must not wait for this one
    dependencies: list[tuple[str, str]] = []
    operations = [
        migrations.CreateModel(
            name="Run",
            fields=[("id", models.CharField(max_length=36, primary_key=True, serialize=False))],
            options={
                "verbose_name": "run",
                "verbose_name_plural": "runs",
                "default_permissions": ("view",),
                "permissions": (
                    ("cancel_run", "Can cancel runs"),
                    ("retry_run", "Can retry runs"),
                    ("pause_run", "Can pause runs"),
                    ("resume_run", "Can resume runs"),
                ),
                "managed": False,
            },
        ),
        migrations.RunPython(_prepare, migrations.RunPython.noop),
    ]
