"""A worker of the published package for Python over SQS: `python python_sqs_worker.py ENDPOINT PREFIX GROUP`."""

from __future__ import annotations

import itertools
import sys
import time
from typing import Any

from durable_worker import FatalError, Worker  # type: ignore[import-not-found]
from durable_worker.sqs_runner import run_sqs_worker  # type: ignore[import-not-found]


def main(endpoint: str, prefix: str, group: str) -> None:
    worker = Worker()

    @worker.step("who")  # type: ignore[untyped-decorator]
    def who(data: Any) -> str:
        return "python"

    @worker.step("echo")  # type: ignore[untyped-decorator]
    def echo(data: Any) -> Any:
        return data

    @worker.step("rain")  # type: ignore[untyped-decorator]
    def rain(data: Any) -> None:
        raise ValueError("it rains")

    @worker.step("fatal")  # type: ignore[untyped-decorator]
    def fatal(data: Any) -> None:
        raise FatalError("card declined", "declined")

    showers = itertools.count(1)

    @worker.step("shower")  # type: ignore[untyped-decorator]
    def shower(data: Any) -> Any:
        if next(showers) < 3:
            raise ValueError("a shower")
        return data

    @worker.step("hold")  # type: ignore[untyped-decorator]
    def hold(data: Any) -> None:
        time.sleep(3600)

    print("ready", flush=True)
    run_sqs_worker(
        worker, group=group, prefix=prefix, region="eu-central-1", endpoint_url=endpoint, wait_time_seconds=1,
        visibility_timeout=5,
    )  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
