"""Every Python example in the documents runs, and prints what the page says it prints."""

from __future__ import annotations

import ast
import fnmatch
import os
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Block, Program, all_blocks, file_blocks, programs
from tests.support import nursery

pytestmark = pytest.mark.empty

RUNNER = Path(__file__).with_name("run_block.py")
POSTGRES = "postgresql://localhost/shop"
"""How the documents spell the reader's own database; the test puts its own in."""
MOST_FRAGMENTS = 3


def environment(home: Path) -> dict[str, str]:
    """Without settings of the developer's own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STEPFAST_", "PYTEST_"))}
    return {**kept, "PYTHONWARNINGS": "error", "HOME": str(home)}


@pytest.mark.parametrize("program", programs(), ids=lambda program: program.where)
def test_the_example_runs(program: Program, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    source, files = program.source, dict(program.files)
    if any(POSTGRES in text for text in (source, *files.values())):
        url = request.getfixturevalue("postgres_url")
        source = source.replace(POSTGRES, url)
        files = {name: text.replace(POSTGRES, url) for name, text in files.items()}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    script = tmp_path / "example.py"
    script.write_text(source)
    tests = [name for name in files if name.startswith("test_")]
    pytest_options = ["-q", "-p", "no:cacheprovider", "-o", "asyncio_default_fixture_loop_scope=function"]
    pytest_options += ["-p", "no:hypothesispytest", "-p", "no:xdist", "-p", "no:xdist.looponfail"]
    command = ["-m", "pytest", *pytest_options, *tests] if program.is_test else [RUNNER, script]
    done = nursery.run(command, folder=tmp_path, environment=environment(tmp_path), timeout=60)
    assert done.returncode == 0, f"{program.where}\n{done.stdout}\n{done.stderr}"
    printed = done.stdout.splitlines()
    for line in program.output:
        pattern = line.replace("[", "[[]").replace("…", "*")
        assert any(fnmatch.fnmatchcase(given, pattern) for given in printed), (
            f"{program.where} does not print {line!r} but:\n{done.stdout}"
        )


@pytest.mark.parametrize("block", all_blocks("python"), ids=lambda block: block.where)
def test_the_block_compiles_and_its_direction_is_known(block: Block) -> None:
    compile(block.text, block.where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    known = block.direction in ("", "continues") or block.direction.startswith(("file ", "fragment, because "))
    assert known, f"{block.where}: unknown direction {block.direction!r}"


def test_fragments_are_rare() -> None:
    fragments = [block.where for block in all_blocks("python") if block.direction.startswith("fragment")]
    assert len(fragments) <= MOST_FRAGMENTS, f"write them so that they run: {fragments}"


def test_files_with_a_test_of_their_own_are_run_by_it() -> None:
    for name, (block, test) in file_blocks().items():
        text = (ROOT / "tests" / "docs" / test).read_text()
        assert name in text, f"{block.where}: {test} does not run {name}"
