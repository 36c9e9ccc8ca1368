"""A dead worker on the same machine is known by its process, without waiting for its lease; a living one never."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from stepfast import Stepfast
from stepfast.model.records import Beat
from stepfast.settings import Settings
from stepfast.worker import context
from stepfast.worker.context import gone, this_process
from tests.support.engine import PATIENCE
from tests.support.processes import Ledger
from tests.worker.conftest import MakeProcess
from tests.worker.tables import Tables

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the lease decides")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    """A process that says who it is, and lives until it is killed."""
    code = (
        "from stepfast.worker.context import this_process; print(this_process(), flush=True); import sys; "
        "sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        process.kill()


def beat(process: str | None) -> list[Beat]:
    return [Beat("w", 0, 30_000, process)]


def test_a_process_is_gone_when_it_is_killed_and_not_before(child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    said = child.stdout.readline().strip()
    assert gone(beat(said)) == []
    os.kill(child.pid, signal.SIGSTOP)
    assert gone(beat(said)) == []
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, and nobody has asked for it yet
    assert gone(beat(said)) == ["w"]
    child.wait()
    assert gone(beat(said)) == ["w"]


def test_a_number_that_is_used_again_is_another_process() -> None:
    me = this_process()
    assert me is not None
    assert gone(beat(me)) == []
    machine, pid, began = me.rsplit(" ", 2)
    assert gone(beat(f"{machine} {pid} {int(began) + 1}")) == ["w"]


def test_whatever_is_unknown_or_elsewhere_is_left_to_the_lease() -> None:
    me = this_process()
    assert me is not None
    machine, _, began = me.rsplit(" ", 2)
    boot, rest = machine.split(" ", 1)
    other_boot, nobody = boot[::-1], str(2**22 + 1)  # beyond the highest number that Linux gives
    for process in (
        None, "", "x", f"{other_boot} {rest} {nobody} {began}", f"{boot} pid:[1] {nobody} {began}",
        f"{machine} -1 {began}", f"{machine} 0 {began}", f"{machine} {'9' * 30} {began}", f"{machine} x {began}",
    ):  # fmt: skip
        assert gone(beat(process)) == []
    assert gone(beat(f"{machine} {nobody} {began}")) == ["w"]


def test_without_proc_the_lease_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    me = this_process()
    monkeypatch.setattr(context, "_BOOT", "/nowhere")
    assert this_process() is None
    assert gone(beat(me)) == []


async def test_the_runs_of_a_killed_worker_are_taken_over_at_once(
    program: Callable[..., Stepfast], make_process: MakeProcess, ledger: Ledger, tables: Tables
) -> None:
    """The lease is an hour: nobody could wait for it."""
    hour = replace(Settings(), lease=3600, poll_interval=0.2, sweep_interval=0.2)
    app = program(hour)
    run = await app.start(app.workflows["hold"], "gate")
    async with make_process({"lease": 3600, "poll_interval": 0.2}) as process:
        await ledger.seen("hold")
        process.signal(signal.SIGKILL)
        await process.ended()
    ledger.open("gate")
    async with app.worker():
        assert await run.result(timeout=PATIENCE) == "gate"
        assert len(await tables.fetch("SELECT id FROM [workers]")) == 1
    assert await tables.run(run.id, "status, attempt") == ("completed", 1)
