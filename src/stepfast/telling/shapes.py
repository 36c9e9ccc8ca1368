"""Runs as JSON: the shapes that ``--json`` and the pages of the console have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ..reports import Activity, RunInfo, StepInfo


def run_shape(
    info: RunInfo,
    why: str,
    steps: Sequence[StepInfo],
    children: Sequence[str],
    values: Mapping[str, Any],
    unread: Sequence[tuple[str, int]],
) -> dict[str, Any]:
    """One run, with its steps and what it has set."""
    shape: dict[str, Any] = msgspec.to_builtins(info)
    return shape | {"why": why, "steps": steps, "children": children, "values": values, "unread": dict(unread)}


def call_shape(call: Activity) -> dict[str, Any]:
    """One call, with its duration in seconds, which every language reads."""
    shape: dict[str, Any] = msgspec.to_builtins(call)
    return shape | {"duration": call.duration.total_seconds()}
