"""One take of a pair, in the process that measures: it must import the package of its checkout and little else."""

from __future__ import annotations

from pathlib import Path

import stepfast
from bench.engines.base import Kind
from bench.engines.stepfast import StepfastEngine
from bench.scenarios.base import Figures
from bench.subject import Subject, warm, work_off


async def take(engine: str, url: str, kind: Kind, count: int, concurrency: int, source: str) -> Figures:
    """Work off the runs with the package from this folder."""
    found = Path(str(stepfast.__file__)).resolve()
    if not found.is_relative_to(Path(source).resolve()):
        raise RuntimeError(f"the package comes from {found} instead of {source}")
    subject = Subject(engine, [url], quick=False)
    measured = await subject.fresh()
    assert isinstance(measured, StepfastEngine)
    await warm(measured, kind)
    work = await work_off(measured, kind, count, concurrency, await subject.cpu_meter(), measured.all_ended)
    await measured.close()
    return {"rate": work.rate, **work.figures()}
