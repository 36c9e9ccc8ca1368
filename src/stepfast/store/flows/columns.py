"""The columns of a standing, as SQL reads them of a row ``r``, and those of a schedule, of a row ``s``. Said once,
so that no statement can mix them up."""

from __future__ import annotations

from collections.abc import Mapping

from ...model.run_state import READ_COLUMNS
from ...model.schedules import ScheduleRow

_DERIVED = {"child": "r.reply_to IS NOT NULL"}


def standing_columns(others: Mapping[str, str] | None = None) -> str:
    """What ``{standing}`` stands for; ``others`` are columns that a database has to put in other words."""
    words = _DERIVED | dict(others or {})
    return ", ".join(words.get(name, f"r.{name}") for name in READ_COLUMNS)


def schedule_columns(others: Mapping[str, str] | None = None) -> str:
    """What ``{schedule}`` stands for: all fields of a schedule but the time at which it is read."""
    return ", ".join((others or {}).get(name, f"s.{name}") for name in ScheduleRow.__struct_fields__[:-1])
