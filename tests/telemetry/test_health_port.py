"""The health port: live, ready, metrics; answered by a thread of its own, for one process or several."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from stepfast import ConfigurationError, Settings, Stepfast
from stepfast.model.health import Vitals, is_live, is_ready
from stepfast.telemetry import HealthPort, Metrics, StepEnded, multiprocess
from stepfast.telemetry import health as telemetry_health
from stepfast.telemetry.health import LoopLag
from stepfast.telemetry.metrics import render
from stepfast.telemetry.multiprocess import VARIABLE, Child, Children, ReportingWire, Wire, wire_to_parent
from tests.support.engine import PATIENCE, Gate, eventually
from tests.support.postgres import PrivatePostgres
from tests.support.proxy import Proxy
from tests.telemetry.conftest import MakeApp, drained
from tests.telemetry.scraping import ask, get, parsed, raw, value


@pytest.fixture
def app(make_app: MakeApp) -> Stepfast:
    return make_app(observers=[Metrics()], settings=Settings(live_lag=30, lease=5))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks at the event loop more often than in life, and waits for it less."""
    monkeypatch.setattr(telemetry_health, "EVERY", 0.1)
    monkeypatch.setattr(telemetry_health, "PATIENCE", 0.1)


@pytest.fixture
async def port(app: Stepfast) -> AsyncIterator[int]:
    async with HealthPort(app, 0) as health:
        yield health.port


# -- what is answered --------------------------------------------------------------------------------------------------


async def test_ready_while_a_worker_works(app: Stepfast, port: int) -> None:
    gate = Gate()

    @app.task
    async def hold() -> None:
        await gate.passing()

    assert (await ask(port, "/ready"))[0] == 503
    assert (await ask(port, "/live"))[0] == 200
    await app.start(hold)
    async with app.worker() as worker:
        code, text, _ = await ask(port, "/ready")
        assert code == 200
        assert f"ok: worker: {worker.id} is registered" in text and "ok: heartbeat: " in text
        assert "ok: event loop: moves" in (await ask(port, "/live?verbose"))[1]
        await gate.reached()
        stopping = asyncio.create_task(worker.stop())
        await eventually(lambda: worker.duties.stopping)
        assert (await ask(port, "/ready"))[:2] == (503, f"wrong: worker: {worker.id} stops\n")
        assert (await ask(port, "/live"))[0] == 200
        gate.open()
        await stopping
    assert (await ask(port, "/ready"))[0] == 503


async def test_the_other_names_of_the_pages(app: Stepfast, port: int) -> None:
    async with app.worker():
        assert [(await ask(port, path))[0] for path in ("/livez", "/readyz", "/metrics")] == [200, 200, 200]


async def test_metrics_are_text_for_prometheus(app: Stepfast, port: int) -> None:
    @app.task
    async def job() -> None: ...

    await drained(app, job)
    code, text, headers = await ask(port, "/metrics")
    assert code == 200
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples = parsed(text)
    assert value(samples, "stepfast_runs_ended_total", workflow="job", status="completed", reason="") == 1
    assert 0 <= value(samples, "stepfast_loop_lag_seconds") < 30


async def test_head_gives_the_head_alone(port: int) -> None:
    code, text, headers = await ask(port, "/live", "HEAD")
    assert (code, text) == (200, "")
    assert int(headers["Content-Length"]) > 0


async def test_the_liveness_of_a_worker_whose_event_loop_is_blocked(make_app: MakeApp) -> None:
    """Rule 57: it is answered, and as it is."""
    app = make_app(settings=Settings(live_lag=0.3, lease=5))
    answers: list[tuple[int, str]] = []

    def watch(port: int) -> None:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            answers.append(get(port, "/live")[:2])
            if answers[-1][0] == 503:
                return
            time.sleep(0.02)

    async with HealthPort(app, 0) as health, app.worker():
        port = health.port
        thread = threading.Thread(target=watch, args=[port])
        thread.start()
        thread.join(30)  # blocks the event loop until the watcher has seen that
        assert answers[-1][0] == 503
        assert "wrong: event loop: the event loop has not moved for" in answers[-1][1]
        for _ in range(500):  # the word has to be taken, and another one
            if (await ask(port, "/live"))[0] == 200:
                break
            await asyncio.sleep(0.02)
        else:
            raise AssertionError("it is alive again, and nobody says so")


async def test_metrics_are_answered_too_while_the_loop_is_blocked(app: Stepfast, port: int) -> None:
    """Without what only the loop can ask the database."""
    found: list[str] = []
    async with app.worker():
        thread = threading.Thread(target=lambda: found.append(get(port, "/metrics")[1]))
        thread.start()
        thread.join(30)
    assert "stepfast_runs_started_total" in found[0]


# -- what is not answered ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "get"])
async def test_only_questions_are_answered(port: int, method: str) -> None:
    code, _, headers = await ask(port, "/metrics", method)
    assert (code, headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", ["/", "/metrics/", "//live", "/live%20", "/../live", "http://elsewhere/live", "/Live"])
async def test_other_addresses_are_not_there_and_not_repeated(port: int, path: str) -> None:
    code, text, _ = await ask(port, path)
    assert code == 404
    assert text == "there are /live, /ready and /metrics\n"


@pytest.mark.parametrize(
    "sent",
    [b"\r\n\r\n", b"GET\r\n\r\n", b"GET /live\r\n\r\n", b"GET /live HTTP/2\r\n\r\n", b"\x16\x03\x01\x00\xa5\r\n\r\n",
     b"GET /li ve HTTP/1.1\r\n\r\n", b"GET /live HTTP/1.1\r\nX: " + b"x" * 20_000],
    ids=["empty", "a word", "no version", "another version", "tls", "a blank", "too long"],
)  # fmt: skip
async def test_what_is_no_request_is_refused(port: int, sent: bytes) -> None:
    said = await raw(port, sent)
    assert said == b"" or said.startswith(b"HTTP/1.1 400 "), said
    assert (await ask(port, "/live"))[0] == 200


async def test_who_says_nothing_is_not_waited_for(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry_health, "_PATIENCE", 0.1)
    assert await raw(port, b"GET /live HT") == b""


async def test_connections_at_once_are_bounded(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry_health, "_MOST", 2)
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
    assert (await ask(port, "/live"))[:2] == (503, "too many connections at once\n")
    for _, writer in silent:
        writer.close()
    for _ in range(500):
        if (await ask(port, "/live"))[0] == 200:
            return
    raise AssertionError("those who have gone are counted still")


async def test_a_port_that_is_taken_is_refused_by_name(app: Stepfast) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"cannot listen on 127\.0\.0\.1, port {number}: .+--health-port"):
            async with HealthPort(app, number):
                pass


async def test_an_empty_host_is_not_everybody(app: Stepfast) -> None:
    """Such as a variable that was not set."""
    with pytest.raises(ConfigurationError, match="needs a host to listen on, and the one that is given is empty"):
        async with HealthPort(app, 0, host=""):
            pass


async def test_a_port_may_be_opened_again(app: Stepfast) -> None:
    health = HealthPort(app, 0)
    for _ in range(2):
        async with health:
            assert (await ask(health.port, "/live"))[0] == 200


async def test_the_port_is_free_again_afterwards(app: Stepfast) -> None:
    async with HealthPort(app, 0) as health:
        port = health.port
    async with HealthPort(app, port) as health:
        assert (await ask(port, "/live"))[0] == 200
    assert not [thread for thread in threading.enumerate() if thread.name == "stepfast-health"]


# -- what is decided ---------------------------------------------------------------------------------------------------

WELL = Vitals("w", True, False, False, True, 1.0, 30.0)


@pytest.mark.parametrize(
    ("changes", "live", "ready"),
    [
        ({}, True, True),
        ({"registered": False}, True, False),
        ({"stopping": True}, True, False),
        ({"stopping": True, "heartbeat_alive": False}, True, False),
        ({"beat_age": 29.9}, True, True),
        ({"beat_age": 30.0}, True, False),  # an outage: a restart would not help
        ({"beat_age": 3000.0}, True, False),
        ({"heartbeat_alive": False}, False, True),
        ({"broken": True}, False, True),
    ],
)  # fmt: skip
def test_alive_and_ready(changes: dict[str, Any], live: bool, ready: bool) -> None:
    vitals = WELL._replace(**changes)
    assert all(finding.ok for finding in is_live([vitals], 0.1, 60)) is live
    assert all(finding.ok for finding in is_ready([vitals])) is ready


def test_without_a_worker_it_is_alive_and_not_ready() -> None:
    assert all(finding.ok for finding in is_live([], 0.0, 60))
    assert not all(finding.ok for finding in is_ready([]))
    assert not all(finding.ok for finding in is_live([], 60.0, 60))


async def test_a_process_that_was_stopped_is_forgiven(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGSTOP and SIGCONT: the word has been lying there for an hour, but nobody could have taken it."""
    lag, now = LoopLag(asyncio.get_running_loop()), time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    lag.examine()
    now += 1
    lag.examine()
    assert lag.seconds == pytest.approx(1)
    now += 3600
    lag.examine()
    assert lag.seconds < 1


# -- while the database is away


SETTINGS = Settings(
    lease=1, sweep_interval=0.2, poll_interval=0.2, outage_backoff_max=0.2, command_timeout=1, connect_timeout=1,
    metrics_cache=0, live_lag=30,
)  # fmt: skip


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("silent", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["refused", "silent"])
async def test_an_outage_makes_no_worker_dead(
    postgres_url: str, postgres_server: PrivatePostgres, silent: bool
) -> None:
    """Rule 57: a restart would not help, so liveness does not ask the database; readiness says that it is away. A
    network that says nothing is the harder case: whoever asked would wait."""

    async def ready() -> bool:
        return (await ask(health.port, "/ready"))[0] == 200

    async def not_ready() -> bool:
        return not await ready()

    async with Proxy("127.0.0.1", postgres_server.port) as proxy:
        app = Stepfast(proxy.url(postgres_url), observers=[Metrics()], settings=SETTINGS)
        async with app, HealthPort(app, 0) as health, app.worker():
            await until(ready)
            if silent:
                proxy.stall()
            else:
                proxy.refuse()
                proxy.cut()
            await until(not_ready)
            code, text, _ = await ask(health.port, "/live")
            assert code == 200, text
            samples = parsed((await ask(health.port, "/metrics"))[1])
            assert samples.get(("stepfast_database_up", ()), 0) == 0
            assert value(samples, "stepfast_leases_lost_total") == 0
            proxy.resume()
            proxy.refuse(False)
            await until(ready)


# -- worker processes seen as one by their parent


HELLO = b'{"live":[],"ready":[]}\n'
COUNTED = b'{"live":[],"ready":[],"families":[{"name":"n_total","kind":"counter","help":"N.","series":[[[],[7]]]}]}\n'
STEP = StepEnded("r", 1, "w", "s", "step", "", 0, 1, 1, 0.01, "completed")


class Member:
    """A worker process and its application, both within this one."""

    def __init__(self, child: Child, wire: ReportingWire, app: Stepfast) -> None:
        self.child = child
        self.wire = wire
        self.app = app

    def work(self, times: int) -> None:
        for _ in range(times):
            self.app.observers[0].step_ended(STEP)


async def join(family: Children, number: int, make_app: MakeApp) -> Member:
    wire, app = Wire(*socket.socketpair()), make_app(observers=[Metrics()])
    theirs = wire.theirs.dup()
    return Member(await family.joined(number, wire), ReportingWire(app, theirs), app)


async def steps(family: Children) -> float:
    samples = parsed(render(await family.metrics()))
    return value(samples, "stepfast_step_seconds_count", workflow="w", step="s", outcome="completed")


async def test_counters_are_added_up_and_stay_when_a_process_ends(make_app: MakeApp) -> None:
    family = Children(2, Settings())
    first, second = [await join(family, number, make_app) for number in (1, 2)]
    async with second.wire:
        async with first.wire:
            await eventually(lambda: first.child.introduced and second.child.introduced)
            first.work(2)
            second.work(3)
            assert await steps(family) == 5
            first.work(10)  # nobody has asked since: its last word tells
        await family.left(first.child)
        assert await steps(family) == 15
        third = await join(family, 1, make_app)
        async with third.wire:
            await eventually(lambda: third.child.introduced)
            third.work(1)
            assert await steps(family) == 16
    await family.left(second.child)
    await family.left(third.child)
    assert await steps(family) == 16


async def test_a_process_that_dies_without_a_word_is_counted_as_it_was_last_seen(make_app: MakeApp) -> None:
    family = Children(1, Settings())
    wire = Wire(*socket.socketpair())
    dying = wire.theirs.dup()
    child = await family.joined(1, wire)
    reader, writer = await asyncio.open_connection(sock=dying)
    writer.write(HELLO)
    await eventually(lambda: child.introduced)
    asked = asyncio.create_task(family.metrics())
    await reader.readline()
    writer.write(COUNTED * 2)
    await asked
    writer.transport.abort()
    await family.left(child)
    assert value(parsed(render(await family.metrics())), "n_total") == 7


async def test_a_process_that_ends_during_a_scrape_is_counted_once() -> None:
    """Its sums are those of a process that has ended by the time that the others have answered."""
    family, wires = Children(2, Settings()), [Wire(*socket.socketpair()) for _ in range(2)]
    ends = [await asyncio.open_connection(sock=wire.theirs.dup()) for wire in wires]
    children = [await family.joined(number, wire) for number, wire in enumerate(wires, 1)]
    for _, writer in ends:
        writer.write(HELLO)
    await eventually(lambda: all(child.introduced for child in children))
    (reader, writer), (dying_reader, dying_writer) = ends
    asked = asyncio.create_task(family.metrics())
    assert [await reader.readline() for _ in range(2)] == [b"gauges\n", b"metrics\n"]
    writer.write(HELLO * 2)  # the database did not answer it, so that the other one is asked
    await dying_reader.readline()
    dying_writer.write(COUNTED)
    await dying_reader.readline()
    dying_writer.transport.abort()
    await family.left(children[1])
    assert value(parsed(render(await asked)), "n_total") == 7
    writer.transport.abort()
    await family.left(children[0])


async def test_who_is_not_ready_is_named(make_app: MakeApp) -> None:
    family = Children(3, Settings())
    members = [await join(family, number, make_app) for number in (1, 2)]
    async with members[0].wire, members[1].wire, members[0].app.worker():
        await eventually(lambda: all(member.child.introduced for member in members))
        report = await family.health()
        assert all(finding.ok for finding in report.live)
        said = [(finding.name, finding.said) for finding in report.ready if not finding.ok]
        assert said == [
            ("process 2, worker", "there is none yet"),
            ("processes", "1 of 3 are not running just now"),
        ]
    for member in members:
        await family.left(member.child)


async def test_a_process_that_does_not_answer_is_alive_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocess, "_SOON", 0.05)
    for bound, alive in ((60.0, True), (0.01, False)):
        family, wire = Children(1, Settings(live_lag=bound)), Wire(*socket.socketpair())
        silent = wire.theirs.dup()
        child = await family.joined(1, wire)
        assert "has been starting for" in (await family.health()).ready[0].said
        silent.sendall(HELLO)
        await eventually(lambda: child.introduced)  # noqa: B023
        report = await family.health()
        assert [finding.ok for finding in report.live] == [alive, True]
        assert [finding.ok for finding in report.ready] == [False]
        assert report.ready[0].name == "process 1, process" and "has not answered for" in report.ready[0].said
        silent.close()
        await family.left(child)


async def test_rubbish_on_the_wire_hurts_nobody() -> None:
    family = Children(1, Settings())
    wire = Wire(*socket.socketpair())
    rude = wire.theirs.dup()
    child = await family.joined(1, wire)
    rude.sendall(HELLO + b"not json\n")
    await eventually(lambda: child.introduced)
    report = await family.health()
    assert not report.ready[0].ok
    await family.left(child)
    rude.close()


def test_the_wire_is_taken_once_and_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    os.set_inheritable(theirs.fileno(), True)
    monkeypatch.setenv(VARIABLE, str(theirs.detach()))
    wire = wire_to_parent()
    assert wire is not None and not wire.get_inheritable()
    assert VARIABLE not in os.environ
    assert wire_to_parent() is None
    ours.close()
    wire.close()
    for strange in ("x", "-1", "99999", ""):
        monkeypatch.setenv(VARIABLE, strange)
        assert wire_to_parent() is None
