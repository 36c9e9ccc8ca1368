"""`worker --health-port` as real processes: one that listens for itself, and a parent that listens for all."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Callable

import pytest

from tests.cli.conftest import Shop, Verbs
from tests.cli.processes import PATIENCE, Processes, Spoken
from tests.telemetry.scraping import get, parsed, total, value

pytestmark = pytest.mark.enough_on("sqlite")

TERM, KILL = signal.SIGTERM, signal.SIGKILL


def port_of(worker: Spoken) -> int:
    [line] = worker.hear("health: http://127.0.0.1:")
    found = re.search(r"127\.0\.0\.1:(\d+)/", line)
    assert found
    return int(found[1])


def until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.05)


def completed(port: int) -> float:
    return total(parsed(get(port, "/metrics")[1]), "stepfast_runs_ended_total")


def work(stepfast: Verbs, times: int) -> None:
    for _ in range(times):
        stepfast("start", "double", '{"id": "o-1", "cents": 21}', "--wait")


@pytest.mark.thorough
def test_a_worker_with_a_health_port(stepfast: Verbs, shop: Shop, spawn: Processes) -> None:
    worker = spawn("worker", "shop:app", "--health-port", "0")
    port = port_of(worker)
    until(lambda: get(port, "/ready")[0] == 200)
    work(stepfast, 2)
    until(lambda: completed(port) == 2)
    samples = parsed(get(port, "/metrics")[1])
    labels = {"workflow": "double", "status": "completed", "reason": ""}
    assert value(samples, "stepfast_runs_ended_total", **labels) == 2
    shop.start("hold")
    worker.hear("holding")
    worker.send(TERM)
    worker.hear("waits up to")
    assert get(port, "/ready")[0] == 503
    assert get(port, "/live")[0] == 200
    worker.send(TERM)
    assert worker.ended() == 0


def test_a_parent_listens_for_all(stepfast: Verbs, shop: Shop, spawn: Processes) -> None:
    crew = spawn("worker", "shop:app", "--processes", "2", "--health-port", "0")
    port = port_of(crew)
    until(lambda: get(port, "/ready")[0] == 200)
    lines = get(port, "/ready")[1].splitlines()
    assert [line for line in lines if line.startswith("ok: process 1, worker: ")]
    assert [line for line in lines if line.startswith("ok: process 2, worker: ")]
    work(stepfast, 3)
    until(lambda: completed(port) == 3)
    crew.send(TERM)
    assert crew.ended() == 0


@pytest.mark.thorough
def test_no_sum_goes_backwards_when_processes_die(stepfast: Verbs, shop: Shop, spawn: Processes) -> None:
    crew = spawn("worker", "shop:app", "--processes", "2", "--health-port", "0")
    port = port_of(crew)
    until(lambda: get(port, "/ready")[0] == 200)
    work(stepfast, 3)
    until(lambda: completed(port) == 3)
    for line in crew.hear("has pid ", 2):
        os.kill(int(line.rpartition("has pid ")[2]), KILL)
    crew.hear("was killed by SIGKILL; starting another", 2)
    assert completed(port) == 3
    assert get(port, "/live")[0] == 200
    code, text, _ = get(port, "/ready")
    assert code == 503 and "processes: 2 of 2 are not running just now" in text
    until(lambda: get(port, "/ready")[0] == 200)
    work(stepfast, 1)
    until(lambda: completed(port) == 4)
    crew.send(TERM)
    assert crew.ended() == 0


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_health_port_that_cannot_be_had(stepfast: Verbs, shop: Shop, processes: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = stepfast.error("worker", "shop:app", "--health-port", port, "--processes", processes, code=2)
    assert f"the health port cannot listen on 127.0.0.1, port {port}: " in said
