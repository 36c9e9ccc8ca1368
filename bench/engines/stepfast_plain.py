"""Stepfast with steps that are plain functions, as most people write them."""

from __future__ import annotations

from typing import Any, ClassVar

from bench.engines.stepfast import StepfastEngine
from stepfast import step


@step()
def plain_work(i: int) -> int:
    """The body of every step, as a plain function: it may block, so it is called in a thread."""
    return i + 1


class StepfastPlain(StepfastEngine):
    """Only the steps differ."""

    piece: ClassVar[Any] = plain_work
