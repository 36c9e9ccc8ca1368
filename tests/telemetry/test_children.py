"""Worker processes seen as one by their parent: sums that never go backwards, and who is not well."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from stepfast import Settings, Stepfast
from stepfast.telemetry import Metrics, StepEnded, multiprocess
from stepfast.telemetry.metrics import render
from stepfast.telemetry.multiprocess import VARIABLE, Child, Children, ReportingWire, Wire, wire_to_parent
from tests.support.engine import eventually
from tests.telemetry.conftest import MakeApp
from tests.telemetry.scraping import parsed, value

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


async def make(family: Children, number: int, make_app: MakeApp) -> Member:
    wire, app = Wire(*socket.socketpair()), make_app(observers=[Metrics()])
    theirs = wire.theirs.dup()
    return Member(await family.joined(number, wire), ReportingWire(app, theirs), app)


async def steps(family: Children) -> float:
    samples = parsed(render(await family.metrics()))
    return value(samples, "stepfast_step_seconds_count", workflow="w", step="s", outcome="completed")


async def test_counters_are_added_up_and_stay_when_a_process_ends(make_app: MakeApp) -> None:
    family = Children(2, Settings())
    first, second = [await make(family, number, make_app) for number in (1, 2)]
    async with second.wire:
        async with first.wire:
            await eventually(lambda: first.child.introduced and second.child.introduced)
            first.work(2)
            second.work(3)
            assert await steps(family) == 5
            first.work(10)  # nobody has asked since: its last word tells
        await family.left(first.child)
        assert await steps(family) == 15
        third = await make(family, 1, make_app)
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
    members = [await make(family, number, make_app) for number in (1, 2)]
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
