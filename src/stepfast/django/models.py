"""What the admin shows: models without tables of Django's."""

from __future__ import annotations

from django.db import models


class Run(models.Model):
    """A run. Its rows are Stepfast's own; the admin reads them by the application."""

    id: models.CharField[str, str] = models.CharField(primary_key=True, max_length=36)

    class Meta:
        """No table is made; the permissions are."""

        managed = False
        default_permissions = ("view",)
        permissions = (
            ("cancel_run", "Can cancel runs"),
            ("retry_run", "Can retry runs"),
            ("pause_run", "Can pause runs"),
            ("resume_run", "Can resume runs"),
        )
        verbose_name = "run"
        verbose_name_plural = "runs"

    def __str__(self) -> str:
        return str(self.id)
