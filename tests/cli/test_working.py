"""`worker` as real processes: signals, several processes, logs."""

from __future__ import annotations

import json
import os
import re
import signal
from datetime import datetime
from pathlib import Path

import pytest

from stepfast.cli.command import CHILD_URL, Session
from stepfast.cli.worker import child_command
from tests.cli.conftest import Shop, Verbs
from tests.cli.processes import Processes, Spoken

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


def test_a_second_signal_does_not_wait(stepfast: Verbs, shop: Shop, spawn: Processes) -> None:
    worker, run_id = holding(shop, spawn, "--shutdown-grace", "1h")
    worker.send(INT)
    worker.hear("waits up to")
    worker.send(INT)
    assert worker.ended() == 0
    assert_given_back(stepfast, run_id)


def test_ctrl_c_says_what_it_waits_for(stepfast: Verbs, shop: Shop, spawn: Processes) -> None:
    """At once; a second one ends without a traceback."""
    worker, run_id = holding(shop, spawn, "--shutdown-grace", "1h")
    worker.send(INT)
    worker.hear("waiting up to 3600 s for 1 run; a second Ctrl+C ends at once")
    worker.send(INT)
    worker.hear("go back into their queues")
    assert worker.ended() == 0
    assert not any("Traceback" in line for line in worker.lines)
    assert_given_back(stepfast, run_id)


def test_ctrl_c_is_heard_while_the_event_loop_is_blocked(shop: Shop, spawn: Processes) -> None:
    """Nothing can be given back then; but nobody has to look for another way to end it."""
    shop.write(
        "stuck.py",
        """
import sys, time
from stepfast import Stepfast
app = Stepfast()
@app.task
async def stuck():
    print("stuck now", file=sys.stderr, flush=True)
    while True:
        time.sleep(60)
""",
    )
    worker = spawn("worker", "stuck:app", "--log-json")
    worker.hear("started")
    spawn("start", "stuck", "--app", "stuck:app").ended()
    worker.hear("stuck now")
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


# -- several processes: those that are thorough take seconds to start, and test_crew.py tries the same with light ones


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
def test_ctrl_c_at_the_terminal_is_one_signal_to_each(stepfast: Verbs, shop: Shop, spawn: Processes) -> None:
    """The terminal sends it to the whole group; were the children in it, they would hear it twice and not wait."""
    crew, run_id = holding(shop, spawn, "--processes", "2", "--shutdown-grace", "1h")
    crew.hear(" started: ", 2)
    crew.send_to_group(INT)
    crew.hear("waits up to 3600 s")
    release(shop)
    assert crew.ended() == 0
    assert stepfast.json("result", run_id)["output"] == "released"


@pytest.mark.thorough
def test_a_second_signal_is_passed_on_too(stepfast: Verbs, shop: Shop, spawn: Processes) -> None:
    crew, run_id = holding(shop, spawn, "--processes", "2", "--shutdown-grace", "1h")
    crew.hear(" started: ", 2)
    crew.send(TERM)
    crew.hear("waits up to")
    crew.send(TERM)
    assert crew.ended() == 0
    assert_given_back(stepfast, run_id)


@pytest.mark.thorough
def test_processes_that_cannot_start_are_not_tried_for_ever(shop: Shop, spawn: Processes) -> None:
    crew = spawn("worker", "nowhere:app", "--processes", "2")
    assert crew.ended() == 2
    crew.hear("there is no module 'nowhere'")


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
