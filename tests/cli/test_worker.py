"""`worker` as real processes: signals, several processes, the health port, logs."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import structlog

from stepfast import Settings, Stepfast
from stepfast.cli.command import CHILD_URL, Session
from stepfast.cli.worker import _switch_interval, child_command, log_to_stderr
from tests.cli.conftest import Shop, Verbs
from tests.cli.processes import PATIENCE, Processes, Spoken
from tests.support.logs import logging_as_before
from tests.telemetry.scraping import get, parsed, total, value

pytestmark = pytest.mark.enough_on("sqlite")

TERM, INT, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGKILL


def holding(shop: Shop, spawn: Processes, *options: str) -> tuple[Spoken, str]:
    """A worker in the midst of a run that ends when a file appears."""
    run_id = shop.start("hold")
    worker = spawn("worker", "shop:app", *options)
    worker.hear("holding")
    return worker, run_id


def release(shop: Shop) -> None:
    (shop.folder / "release").touch()


def assert_given_back(stepfast: Verbs, run_id: str) -> None:
    run = stepfast.json("show", run_id)
    assert (run["status"], run["ready"], run["attempt"], run["losses"]) == ("queued", True, 1, 0)
    assert stepfast.json("workers") == []


@pytest.mark.enough_on("postgres")
def test_a_worker_works(stepfast: Verbs, shop: Shop, spawn: Processes) -> None:
    worker = spawn("worker", "shop:app", "--concurrency", "5", "--queues", "double,vip", "-q", "extra", "--lease", "1m")
    worker.hear("started")
    answer = stepfast("start", "double", '{"id": "o-1", "cents": 21}', "--wait")
    assert answer.stdout == "42\n"
    [info] = stepfast.json("workers")
    assert (info["pid"], info["concurrency"], info["lease"]) == (worker.pid, 5, 60.0)
    assert info["queues"] == ["double", "vip", "extra"]
    worker.send(TERM)
    assert worker.ended() == 0
    assert worker.stdout == ""
    assert stepfast.json("workers") == []


@pytest.mark.enough_on("postgres")
def test_a_signal_lets_handlers_finish(stepfast: Verbs, shop: Shop, spawn: Processes) -> None:
    worker, run_id = holding(shop, spawn, "--shutdown-grace", "1h")
    worker.send(TERM)
    worker.hear("waits up to 3600 s for 1 runs")
    release(shop)
    assert worker.ended() == 0
    assert stepfast.json("result", run_id)["output"] == "released"


def test_after_the_grace_time_runs_are_given_back(stepfast: Verbs, shop: Shop, spawn: Processes) -> None:
    worker, run_id = holding(shop, spawn, "--shutdown-grace", "50ms")
    worker.send(TERM)
    assert worker.ended() == 0
    assert_given_back(stepfast, run_id)


def test_ctrl_c_says_what_it_waits_for_and_a_second_one_does_not_wait(
    stepfast: Verbs, shop: Shop, spawn: Processes
) -> None:
    """At once; a second one does not wait, and there is no traceback."""
    worker, run_id = holding(shop, spawn, "--shutdown-grace", "1h")
    worker.send(INT)
    worker.hear("waiting up to 3600 s for 1 run; a second Ctrl+C ends at once")
    worker.send(INT)
    worker.hear("go back into their queues")
    assert worker.ended() == 0
    assert not any("Traceback" in line for line in worker.lines)
    assert_given_back(stepfast, run_id)


def test_threads_take_short_turns_on_sqlite_unless_the_settings_say_otherwise() -> None:
    """On Postgres nothing waits for them."""
    assert _switch_interval(Stepfast("sqlite:///some.db")) == 0.001
    assert _switch_interval(Stepfast("sqlite:///some.db", settings=Settings(switch_interval=0.005))) is None
    assert _switch_interval(Stepfast("postgresql://me@localhost/some")) is None


def test_ctrl_c_is_heard_while_the_event_loop_is_blocked(shop: Shop, spawn: Processes) -> None:
    """No run can be released then, but the process ends."""
    shop.write(
        "stuck.py",
        """
import sys, time
from stepfast import Stepfast
app = Stepfast()
@app.task
async def stuck():
    print(f"stuck now, in turns of {sys.getswitchinterval():g} s", file=sys.stderr, flush=True)
    while True:
        time.sleep(60)
""",
    )
    worker = spawn("worker", "stuck:app", "--log-json")
    worker.hear("started")
    spawn("start", "stuck", "--app", "stuck:app").ended()
    worker.hear(f"stuck now, in turns of {0.001 if shop.url.startswith('sqlite') else 0.005:g} s")
    for said in ("waiting up to 30 s for 1 run", "ending at once", "when the lease is over"):
        worker.send(INT)
        assert json.loads(worker.hear(said)[0])["level"] == "info"
    assert worker.ended() == 130


def test_a_signal_before_the_worker_has_begun(shop: Shop, spawn: Processes) -> None:
    shop.write("slow.py", "import sys, time\nprint('importing', file=sys.stderr, flush=True)\ntime.sleep(3600)\n")
    worker = spawn("worker", "slow:app")
    worker.hear("importing")
    worker.send(TERM)
    assert worker.ended() == 0


# -- several processes


def pids(crew: Spoken, times: int) -> list[int]:
    return [int(line.rpartition("has pid ")[2]) for line in crew.hear("has pid ", times)]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def arguments_of(pid: int) -> str:
    """As everybody on the machine sees them; where there is no /proc, nothing."""
    path = Path(f"/proc/{pid}/cmdline")
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("given", [["--url", "URL"], ["--url=URL"], ["-u", "URL"], ["-uURL"]], ids=" ".join)
def test_a_password_is_not_among_the_arguments_of_children(given: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHILD_URL, "")
    monkeypatch.setattr("sys.argv", ["stepfast", *given, "worker", "shop:app", "--processes", "3"])
    command = child_command(Session(url="URL"))
    assert command[1:] == ["-m", "stepfast", "worker", "shop:app", "--processes", "3", "--processes", "1"]
    assert os.environ[CHILD_URL] == "URL"


@pytest.mark.enough_on("postgres")
def test_a_process_that_dies_is_replaced(stepfast: Verbs, shop: Shop, spawn: Processes) -> None:
    crew = spawn("worker", "shop:app", "--url", shop.url, "--processes", "2")
    crew.hear(" started: ", 2)
    victim, other = pids(crew, 2)
    assert not [pid for pid in (victim, other) if shop.url in arguments_of(pid)]
    os.kill(victim, KILL)
    crew.hear("was killed by SIGKILL; starting another")
    crew.hear(" started: ", 3)
    newcomer = pids(crew, 3)[-1]
    listed = {w["pid"] for w in stepfast.json("workers")} - {victim}  # which a neighbour may have buried already
    assert listed == {other, newcomer}
    crew.send(TERM)
    assert crew.ended() == 0
    assert not is_alive(other) and not is_alive(newcomer)
    assert not {w["pid"] for w in stepfast.json("workers")} - {victim}


@pytest.mark.thorough
def test_real_workers_hear_ctrl_c_at_the_terminal_once_and_a_second_signal(
    stepfast: Verbs, shop: Shop, spawn: Processes
) -> None:
    """The terminal sends it to the whole group: if the children were in it, they would get two and not wait."""
    crew, run_id = holding(shop, spawn, "--processes", "2", "--shutdown-grace", "1h")
    crew.hear(" started: ", 2)
    crew.send_to_group(INT)
    crew.hear("waits up to 3600 s")
    crew.send(TERM)
    assert crew.ended() == 0
    assert_given_back(stepfast, run_id)


# -- refusals


def test_a_worker_that_cannot_start(stepfast: Verbs, shop: Shop, spawn: Processes) -> None:
    refusals = {
        ("nowhere:app",): (2, "there is no module 'nowhere'"),
        ("shop:app", "--lease", "0"): (2, "the heartbeat"),
        ("shop:app", "--log-level", "loud"): (2, "there is no log level 'loud'"),
        ("shop:app", "-u", "postgresql://me:s3cret@127.0.0.1:1/none"): (5, "cannot be reached"),
    }
    for arguments, (code, sentence) in refusals.items():
        worker = spawn("worker", *arguments)
        assert worker.ended() == code
        [line] = worker.lines[:-1]
        assert sentence in line and "s3cret" not in line


# -- logs


def test_logs_in_json_name_the_run_and_the_step(shop: Shop, spawn: Processes) -> None:
    run_id = shop.start("checkout", {"id": "secret-order", "cents": 99})
    worker = spawn("worker", "shop:app", "--log-json", "--log-level", "debug")
    [line] = worker.messages("charging")
    expected = {"level": "info", "logger": "shop", "message": "charging", "run_id": run_id, "step": "charge"}
    assert line.items() >= (expected | {"workflow": "checkout", "attempt": 1}).items()
    assert datetime.fromisoformat(line["time"]).tzinfo is not None
    worker.send(TERM)
    assert worker.ended() == 0
    for text in worker.lines[:-1]:
        assert {"time", "level", "logger", "message"} <= json.loads(text).keys()
        assert "secret-order" not in text


def test_logs_for_people(shop: Shop, spawn: Processes) -> None:
    worker = spawn("worker", "shop:app")
    [line] = worker.hear(" started: ")
    assert " INFO stepfast: worker " in line
    worker.send(TERM)
    assert worker.ended() == 0


def test_a_quieter_log(shop: Shop, spawn: Processes) -> None:
    run_id = shop.start("refuse", "no luck")
    worker = spawn("worker", "shop:app", "--log-level", "warning")
    worker.hear(f"run {run_id} (refuse) failed for good")
    worker.send(TERM)
    assert worker.ended() == 0
    levels = [line.split()[2] for line in worker.lines if re.match(r"\d{4}-\d\d-\d\d ", line)]
    assert levels == ["WARNING", "INFO"]  # the last is the answer to the signal, which is always given


# -- the supervisor, with children that start at once


PARENT = """
import asyncio, logging, sys
from stepfast.cli.supervisor import Crew
logging.basicConfig(format="%(message)s", level="INFO")
sys.exit(asyncio.run(Crew(2, sys.argv[1:]).run()))
"""
CHILD = """
import signal, sys
mine = {signal.SIGTERM, signal.SIGINT}
signal.pthread_sigmask(signal.SIG_BLOCK, mine)
print("child is there", file=sys.stderr, flush=True)
for count in range(int(sys.argv[1])):
    print("heard", signal.Signals(signal.sigwait(mine)).name, count + 1, file=sys.stderr, flush=True)
"""


@contextmanager
def supervised(folder: Path, *child: str) -> Iterator[Spoken]:
    crew = Spoken(["-c", PARENT, sys.executable, "-S", "-E", "-c", *child], folder)
    try:
        yield crew
    finally:
        crew.kill()


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Spoken]:
    """Children that end when they have heard two signals."""
    with supervised(tmp_path, CHILD, "2") as crew:
        yield crew


def test_a_signal_to_the_group_reaches_each_child_once(crew: Spoken) -> None:
    crew.hear("child is there", 2)
    crew.send_to_group(signal.SIGINT)
    crew.hear("heard SIGINT 1", 2)
    crew.send(signal.SIGTERM)
    assert crew.ended() == 0
    heard = sorted(line for line in crew.lines if line.startswith("heard"))
    assert heard == ["heard SIGINT 1"] * 2 + ["heard SIGTERM 2"] * 2


def test_the_terminal_that_goes_away_is_passed_on_as_a_stop(crew: Spoken) -> None:
    crew.hear("child is there", 2)
    crew.send(signal.SIGHUP)
    crew.hear("heard SIGTERM 1", 2)
    crew.send(signal.SIGTERM)
    assert crew.ended() == 0


def test_processes_that_cannot_start_are_not_tried_for_ever(tmp_path: Path) -> None:
    with supervised(tmp_path, "import sys; sys.exit(2)") as crew:
        assert crew.ended() == 2
        crew.hear("cannot start; stopping all")
    assert len([line for line in crew.lines if "has pid" in line]) <= 2


def test_a_child_that_fails_while_it_stops_is_told_by_the_exit_code(tmp_path: Path) -> None:
    with supervised(tmp_path, CHILD + "sys.exit(1)", "1") as crew:
        crew.hear("child is there", 2)
        crew.send(signal.SIGTERM)
        assert crew.ended() == 1
        crew.hear("while stopping", 2)


# -- the health port


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


# -- lines of JSON, by Python's own logging or by structlog


Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def lines() -> Iterator[Lines]:
    """Set logging up as the worker does, and read what was written."""
    kept = io.StringIO()
    structlog.reset_defaults()
    with logging_as_before():
        logging.getLogger().handlers.clear()  # those that are there would be closed, and pytest uses them again
        log_to_stderr("info", as_json=True)
        [handler] = logging.getLogger().handlers
        assert isinstance(handler, logging.StreamHandler)
        handler.setStream(kept)
        yield lambda: [_without_time(json.loads(line)) for line in kept.getvalue().splitlines()]
    structlog.reset_defaults()


def _without_time(line: dict[str, Any]) -> dict[str, Any]:
    assert line.pop("time").endswith("Z")
    return line


def test_extra_is_written(lines: Lines) -> None:
    log = logging.getLogger("shop")
    log.info("sold %d", 2, extra={"order": "o-1", "items": [1, 2], "level": "gold", "run_id": "r"})
    assert lines() == [
        {
            "level": "info", "logger": "shop", "message": "sold 2", "run_id": "r", "order": "o-1", "items": [1, 2],
            "level_": "gold",
        }
    ]  # fmt: skip


def test_structlog_joins_the_stream(lines: Lines) -> None:
    log = structlog.get_logger("shop").bind(order="o-1")
    with structlog.contextvars.bound_contextvars(customer="ada"):
        log.info("sold", name="shoes", cents=500)
    log.debug("not asked for")
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("failed")
    sold, failed = lines()
    assert sold == {
        "level": "info", "logger": "shop", "message": "sold", "order": "o-1", "customer": "ada",
        "name": "shoes", "cents": 500,
    }  # fmt: skip
    assert (failed["level"], failed["message"]) == ("error", "failed")
    assert "ValueError: broken" in failed["exception"]


def test_the_bridge_by_extra_is_written_too(lines: Lines) -> None:
    structlog.configure(
        processors=[structlog.stdlib.render_to_log_kwargs],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    structlog.get_logger("shop").info("sold", order="o-1")
    assert lines() == [{"level": "info", "logger": "shop", "message": "sold", "order": "o-1"}]


def test_what_is_no_json_costs_no_line(lines: Lines) -> None:
    class Odd:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    logging.getLogger("shop").info("sold", extra={"odd": Odd(), "keys": {Odd: 1}, "lone": "\ud800"})
    [line] = lines()
    assert (line["message"], line["odd"], line["lone"]) == ("sold", "<Odd>", "\\ud800")
