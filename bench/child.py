"""The process that measures: `python -m bench.child ORDER`, the order being JSON. One engine, one take."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from typing import Any

from bench.scenarios import load_scenario
from bench.subject import Subject
from bench.workers import serve


def main() -> None:
    """Do what the order says; the last line written is the answer."""
    logging.disable(logging.WARNING)
    order: dict[str, Any] = json.loads(sys.argv[1])
    role = order.pop("role")
    if role == "worker":
        asyncio.run(serve(**order))
    elif role == "pair":
        from bench.paired_take import take

        print(json.dumps(asyncio.run(take(**order))), flush=True)
    elif role == "curve":
        from bench.curves import take_point

        print(json.dumps(asyncio.run(take_point(**order))), flush=True)
    else:
        print(json.dumps(asyncio.run(measure(**order))), flush=True)
    os._exit(0)  # some engines leave threads behind that would hold the process


async def measure(scenario: str, subject: dict[str, Any]) -> dict[str, float]:
    """Run one scenario on one engine."""
    return await load_scenario(scenario).measure(Subject(**subject))


if __name__ == "__main__":
    main()
