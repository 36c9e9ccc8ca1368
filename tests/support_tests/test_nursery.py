"""A process of the nursery is like one that was started by its name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import nursery

PROGRAM = """
import atexit, json, os, random, sys, threading, warnings
print(json.dumps([sys.argv[1:], os.getcwd(), os.environ.get("WHO"), __name__, __file__, sys.path[0]]))
atexit.register(print, "bye")
threading.Thread(target=lambda: print("thread")).start()
warnings.warn("careful", stacklevel=1)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.parametrize("more", [{}, {"PYTHONWARNINGS": "error"}])
def test_it_does_what_python_would_do(program: Path, tmp_path: Path, more: dict[str, str]) -> None:
    environment = {**os.environ, "WHO": "me", **more}
    given = (program, "3", "word")
    usual = subprocess.run(
        [sys.executable, *given], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    ours = nursery.run(given, folder=tmp_path, environment=environment, timeout=60)
    assert (ours.returncode, sorted(ours.stdout.splitlines())) == (
        usual.returncode,
        sorted(usual.stdout.splitlines()),
    )
    assert ours.returncode == (1 if more else 3)
    assert ("UserWarning: careful" in ours.stderr) and ("UserWarning: careful" in usual.stderr)


def test_a_module_is_run_as_with_m(tmp_path: Path) -> None:
    package = tmp_path / "here"
    package.mkdir()
    (package / "__main__.py").write_text("import sys; print(__name__, __package__, sys.argv[1:])")
    done = nursery.run(["-m", "here", "a"], folder=tmp_path, environment=os.environ, timeout=60)
    assert (done.returncode, done.stdout) == (0, "__main__ here ['a']\n")


def test_it_can_be_frozen_and_killed_and_is_gone_then(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text("print('here', flush=True); input()")
    ours, theirs = os.pipe()
    never, held = os.pipe()
    child = nursery.nursery().start([tmp_path / "waits.py"], [never, theirs, 2])
    os.close(theirs)
    with open(ours) as said, open(never), open(held, "w"):
        assert said.readline() == "here\n"
        child.send_signal(signal.SIGSTOP)
        assert child.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.01)
        child.kill()
        assert child.wait(60) == child.poll() == -signal.SIGKILL
        assert said.read() == "", "its files are closed"
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


def test_children_draw_different_numbers(tmp_path: Path) -> None:
    (tmp_path / "draw.py").write_text(
        "import random\nfrom stepfast.model.ids import new_id\nprint(random.random(), new_id()[19:])"
    )
    drawn = [
        nursery.run([tmp_path / "draw.py"], folder=tmp_path, environment=os.environ, timeout=60).stdout.split()
        for _ in range(2)
    ]
    assert drawn[0][0] != drawn[1][0] and drawn[0][1] != drawn[1][1]
