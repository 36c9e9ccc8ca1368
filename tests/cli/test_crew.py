"""Several processes and the one that keeps them, with children that are quickly there: what reaches them, and when it
is given up. That real workers obey is in test_working.py."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.processes import Spoken

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
def started(folder: Path, *child: str) -> Iterator[Spoken]:
    crew = Spoken(["-c", PARENT, sys.executable, "-S", "-E", "-c", *child], folder)
    try:
        yield crew
    finally:
        crew.kill()


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Spoken]:
    """Children that end when they have heard two signals."""
    with started(tmp_path, CHILD, "2") as crew:
        yield crew


def test_ctrl_c_at_the_terminal_is_one_signal_to_each(crew: Spoken) -> None:
    """The terminal sends it to the whole group, which the children are not in."""
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
    with started(tmp_path, "import sys; sys.exit(2)") as crew:
        assert crew.ended() == 2
        crew.hear("cannot start; stopping all")
    assert len([line for line in crew.lines if "has pid" in line]) <= 2


def test_a_child_that_fails_while_it_stops_is_told_by_the_exit_code(tmp_path: Path) -> None:
    with started(tmp_path, CHILD + "sys.exit(1)", "1") as crew:
        crew.hear("child is there", 2)
        crew.send(signal.SIGTERM)
        assert crew.ended() == 1
        crew.hear("while stopping", 2)
