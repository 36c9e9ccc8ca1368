"""The documents and the repository agree: links, commands, rules, promises and file names."""

from __future__ import annotations

import ast
import itertools
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main

from stepfast.cli import cli
from tests.docs.pages import ROOT, Block, all_blocks, anchors, links, pages

MODULES = sorted(
    path
    for folder in ("src", "tests", "tools", "bench", "examples")
    for path in (ROOT / folder).rglob("*.py")
    if path.read_text().strip()
)


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    for target in links(page):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{page.name} points to {target}, which is not there"
        assert found.is_relative_to(ROOT), f"{page.name} points out of the repository: {target}"
        if anchor:
            assert anchor in anchors(found), (
                f"{page.name} points to {target}; {found.name} has {sorted(anchors(found))}"
            )


def test_every_document_can_be_reached() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        targets = [(page.parent / target.partition("#")[0]).resolve() for target in links(page) if "://" not in target]
        waiting += [path for path in targets if path.suffix == ".md" and path not in reached and path.exists()]
    missing = [page for page in pages() if page not in reached and page.is_relative_to(ROOT / "docs")]
    assert not missing


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_a_worker_that_imports_the_example_of_the_readme_does_not_run_it() -> None:
    [example] = [block for block in all_blocks("python") if block.page == ROOT / "README.md"]
    body = ast.parse(example.text).body
    assert not [node for node in body if isinstance(node, ast.Expr)]
    assert isinstance(body[-1], ast.If) and ast.unparse(body[-1].test) == "__name__ == '__main__'"


def test_every_module_opens_with_its_duty() -> None:
    opening = re.compile(r'(#[^\n]*\n|\s)*r?"""\s*\S')
    bare = [str(path.relative_to(ROOT)) for path in MODULES if not opening.match(path.read_text())]
    assert bare == [], f"these have no docstring: {bare}"


ARCHITECTURE = ROOT / "ARCHITECTURE.md"
PACKAGE = ROOT / "src" / "stepfast"


def package_lines() -> dict[str, str]:
    """Return the rows of the table of packages, by folder relative to the package (``.`` for itself)."""
    rows = re.findall(r"^\| `([\w/]+)/` \| (.+)$", ARCHITECTURE.read_text(), re.MULTILINE)
    return {"." if name == "stepfast" else name: text for name, text in rows}


def test_the_architecture_has_a_line_for_every_package() -> None:
    packages = {str(path.parent.relative_to(PACKAGE)) for path in PACKAGE.rglob("__init__.py")}
    assert set(package_lines()) == packages


def test_every_file_that_the_architecture_names_exists() -> None:
    named = [
        PACKAGE / folder / name for folder, text in package_lines().items() for name in re.findall(r"`(\w+\.py)`", text)
    ]
    prose = re.sub(r"^\|.*$", "", ARCHITECTURE.read_text(), flags=re.MULTILINE)
    for path in re.findall(r"`(\w+(?:/\w+)*\.py)`", prose):
        named.append((ROOT if path.startswith(("tools/", "tests/")) else PACKAGE) / path)
    assert len(named) > 100
    assert [path for path in named if not path.is_file()] == []


def test_the_architecture_is_short() -> None:
    assert len(ARCHITECTURE.read_text().splitlines()) <= 200


# -- commands ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", all_blocks("console"), ids=lambda block: block.where)
def test_commands_exist(block: Block) -> None:
    commands = [line[2:] for line in block.text.splitlines() if line.startswith("$ ")]
    assert commands, f"{block.where}: the commands of a console block begin with `$ `"
    for command in commands:
        check_command(shlex.split(command, comments=True))


def check_command(words: list[str]) -> None:
    """What we can know of a command: our own verbs, options, targets, extras and examples exist."""
    program, *arguments = itertools.takewhile(lambda word: word not in (">", "|"), words)
    if program == "stepfast":
        check_verb(arguments)
    elif program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert next(word for word in arguments if "=" not in word) in targets, words
    elif program == "pip":
        known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        wanted = re.search(r"stepfast\[(.+)\]", arguments[-1])
        assert wanted is None or set(wanted[1].split(",")) <= set(known), words
    elif program == "python" and arguments[0].startswith(("examples/", "tools/")):
        assert (ROOT / arguments[0]).exists(), words


def check_verb(arguments: list[str]) -> None:
    """Parse it as the command line would, without doing it."""
    group: Any = typer.main.get_command(cli)
    verb, *rest = arguments
    assert verb in group.commands, f"there is no verb {verb!r}"
    group.commands[verb].make_context(verb, rest)


def test_the_files_that_contributors_are_sent_to_are_there() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    table = page.partition("## Where is it?")[2].partition("\n## ")[0]
    named = re.findall(r"`([\w/]+\.py)`", table)
    assert len(table.strip().splitlines()) > 25
    assert [name for name in named if not (ROOT / "src" / "stepfast" / name).exists()] == []


# -- promises and what tries to break them


GUARANTEES = (ROOT / "docs/guarantees.md").read_text()
PROMISES, EVIDENCE = GUARANTEES.split("## What tries to break them")
_ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \| ([^|]*) \|$", re.MULTILINE)
STORMS, ROWS = (
    {row[0]: row for row in _ROW.findall(table)}
    for table in (EVIDENCE.split("| storm |")[1].split("\n\n")[0], EVIDENCE.split("| storm |")[0])
)


def test_every_promise_has_tests() -> None:
    promised = re.findall(r"^\*\*(\d+)\. ", PROMISES, re.MULTILINE)
    assert sorted(map(int, promised)) == list(range(1, len(promised) + 1))
    assert set(promised) <= set(ROWS)


def test_every_test_that_is_named_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", EVIDENCE)
    assert len(named) > 70
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_storm_that_is_named_is_told_of() -> None:
    for promise, _, what in list(ROWS.values())[1:]:
        named = set(what.partition(";")[0].split(", ")) - {"all storms", "seeds", "none"}
        assert named <= set(STORMS), promise


# -- rules are cited by number


CITED = re.compile(r"\b[Rr]ules? (\d+(?:(?:–|, | and )\d+)*)")


def written() -> set[int]:
    numbers = re.findall(r"^\| (\d+) \|", (ROOT / "docs/rules.md").read_text(), re.MULTILINE)
    assert len(numbers) == len(set(numbers)), "a number is used twice"
    return {int(number) for number in numbers}


def cited(folder: str) -> dict[int, str]:
    """The rules that the files of a folder name, and one of the places."""
    found: dict[int, str] = {}
    for file in sorted((ROOT / folder).rglob("*.py")):
        for numbers in CITED.findall(file.read_text()):
            for number in _numbers(numbers):
                found.setdefault(number, str(file.relative_to(ROOT)))
    return found


def _numbers(text: str) -> list[int]:
    """The numbers in ``6``, ``6, 7 and 9`` or ``6–9``."""
    numbers: list[int] = []
    for part in re.split(r", | and ", text):
        first, _, last = part.partition("–")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def test_every_cited_rule_is_written_down() -> None:
    rules = written()
    unknown = {number: place for number, place in (cited("tests") | cited("src")).items() if number not in rules}
    assert not unknown


def test_every_rule_is_cited_by_a_test() -> None:
    assert not written() - set(cited("tests"))
