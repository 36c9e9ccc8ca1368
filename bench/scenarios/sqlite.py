"""Workflows of five steps on SQLite, every commit on the disk."""

from __future__ import annotations

from dataclasses import replace

from bench.scenarios import steps
from bench.scenarios.base import SQLITE_WORKFLOWS

SCENARIO = replace(
    steps.SCENARIO,
    name="sqlite",
    title="5-step workflows on SQLite, one worker process",
    engines=SQLITE_WORKFLOWS,
    quick_engines=SQLITE_WORKFLOWS,
)
