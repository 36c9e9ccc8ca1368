"""The documents as they come with the package: listed, printed, searched and cited."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stepfast import documents
from stepfast.cli import cli
from tests.docs import pages as checked
from tests.docs.pages import ROOT


def docs(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(cli, ["docs", *arguments])
    assert result.exit_code == code, result.output
    return result


def test_every_page_is_listed_with_its_title() -> None:
    names = {str(page.relative_to(ROOT / "docs").with_suffix("")) for page in (ROOT / "docs").rglob("*.md")}
    assert set(documents.pages()) == names
    listed = docs().stdout
    assert "how-to/limits" in listed
    assert "Pause and limit queues" in listed


def test_a_page_is_printed_without_the_directions_of_its_tests() -> None:
    text = docs("tutorial").stdout
    assert text.startswith("# Tutorial\n")
    assert "<!-- docs" not in text
    assert docs("limits").stdout == docs("docs/how-to/limits.md").stdout
    assert docs("--json", "limits").stdout.startswith('{"page":"how-to/limits","text":"# Pause')


def test_a_part_is_printed_with_all_below_it() -> None:
    text = docs("operations#connections").stdout
    assert text.startswith("## Connections\n")
    assert "### A pool of your own" in text
    assert "## Leases" not in text


def test_the_parts_are_those_that_links_lead_to() -> None:
    for page in documents.pages():
        anchors = {section.anchor for section in documents._sections(page)}
        assert anchors == checked.anchors(ROOT / "docs" / f"{page}.md")


def test_a_search_finds_the_parts_that_have_all_words() -> None:
    assert docs("--search", "pool own").stdout.splitlines()[1].startswith("operations#a-pool-of-your-own")
    assert docs("--search", "POOL own").stdout == docs("--search", "pool own").stdout
    assert "no part of the documents has all of these words" in docs("--search", "zebra pool").stderr
    assert docs("--search", "").stdout == ""


@pytest.mark.parametrize(
    ("page", "told"),
    [
        ("limit", "no page 'limit'; did you mean how-to/limits"),
        ("qqqqqqq", "`stepfast docs` lists them"),
        ("operations#nothing", "the page operations has no part #nothing"),
    ],
)
def test_a_page_that_is_not_there_is_refused(page: str, told: str) -> None:
    assert told in docs(page, code=3).stderr


def test_what_messages_cite_is_there() -> None:
    found = []
    for file, text in sources():
        for node in ast.walk(ast.parse(text)) if "cite(" in text else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "cite":
                [name] = node.args
                assert isinstance(name, ast.Constant), f"{file}:{node.lineno}: cite takes the page itself"
                page, _, anchor = str(name.value).partition("#")
                assert documents.find(page) == [page], f"{file}:{node.lineno}: there is no page {page!r}"
                assert documents.read(page, anchor), f"{file}:{node.lineno}: {page} has no part {anchor!r}"
                found.append(name.value)
    assert len(found) > 2


def test_no_message_cites_a_file() -> None:
    """After ``pip install`` there is no such path."""
    assert [file.name for file, text in sources() if re.search(r"docs/[\w/-]+\.md", text)] == []


def sources() -> Iterator[tuple[Path, str]]:
    for file in (ROOT / "src").rglob("*.py"):
        yield file, file.read_text()


def test_a_citation_is_an_address_once_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert documents.cite("how-to/limits") == "`stepfast docs how-to/limits`"
    monkeypatch.setattr(documents, "WEB", "https://docs.invalid/")
    assert documents.cite("how-to/limits#rates") == "https://docs.invalid/how-to/limits.md#rates"


def test_the_package_names_no_address_but_that_one() -> None:
    project = tomllib.loads(Path(ROOT, "pyproject.toml").read_text())["project"]
    assert project.get("urls", {}) == ({"Documentation": documents.WEB} if documents.WEB else {})
