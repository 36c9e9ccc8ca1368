"""Workflows of five steps that are plain functions, beside the same with async ones."""

from __future__ import annotations

from dataclasses import replace

from bench.scenarios import steps

ENGINES = ("stepfast", "stepfast_plain")

SCENARIO = replace(
    steps.SCENARIO,
    name="plain",
    title="5-step workflows, async and plain steps, one worker process",
    engines=ENGINES,
    quick_engines=ENGINES,
)
