"""``init`` makes a project that runs; ``skill`` prints what an assistant has to know."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.support import nursery

from .conftest import Verbs


def test_a_new_project_runs_and_its_tests_pass(stepfast: Verbs, tmp_path: Path) -> None:
    made = stepfast("init", str(tmp_path / "shop"))
    assert made.stdout.split("\n")[:2] == ["python app.py", "stepfast runs"]
    folder = tmp_path / "shop"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STEPFAST_")}

    def run(*command: str) -> str:
        done = nursery.run(list(command), folder=folder, environment=environment, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return str(done.stdout)

    assert "parcel o-1, receipt for o-1" in run("app.py")
    [listed] = json.loads(run("-m", "stepfast", "runs", "--json"))
    assert (listed["workflow"], listed["status"]) == ("checkout", "completed")
    assert "2 passed" in run("-m", "pytest", "-q", "-p", "no:cacheprovider")


def test_init_writes_nothing_into_a_folder_of_somebody_else(stepfast: Verbs, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert "is not empty" in stepfast.error("init", str(tmp_path), code=1)
    assert "is no name for a project" in stepfast.error("init", str(tmp_path / "-x y"), code=2)
    (tmp_path / "file").write_text("")
    assert "could not be written" in stepfast.error("init", str(tmp_path / "file" / "shop"), code=1)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "mine.txt"]
    told = stepfast.json("init", str(tmp_path / "other"))
    assert told["commands"] == ["python app.py", "stepfast runs"] and Path(told["folder"], "app.py").is_file()


def test_the_skill_is_printed_or_written(stepfast: Verbs, tmp_path: Path) -> None:
    printed = stepfast("skill").stdout
    assert printed.startswith("---\nname: stepfast\ndescription: ") and "ctx.wait_signal" in printed
    stepfast("skill", str(tmp_path))
    assert Path(tmp_path, "stepfast", "SKILL.md").read_text().strip() == printed.strip()
    assert stepfast.json("skill")["text"].strip() == printed.strip()
