"""Workflows of five steps on MariaDB, every commit on the disk."""

from __future__ import annotations

from dataclasses import replace

from bench.scenarios import steps
from bench.scenarios.base import MARIADB_WORKFLOWS

SCENARIO = replace(
    steps.SCENARIO,
    name="mariadb",
    title="5-step workflows on MariaDB, one worker process",
    engines=MARIADB_WORKFLOWS,
    quick_engines=MARIADB_WORKFLOWS,
)
