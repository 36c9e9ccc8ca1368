"""Reads the documents: their fenced blocks, the directions above the blocks, headings and links.

A direction is an HTML comment on the line above a fenced block, so that readers do not see it:

    <!-- docs: continues -->              this Python block goes on where the one before it on the page ended
    <!-- docs: file shop.py -->           also the content of a file that later blocks of the page may import
    <!-- docs: file x.py, run by y.py --> the same, but not run by itself: the test of that name runs it
    <!-- docs: output -->                 these lines are printed by the Python block before; `…` stands for anything
    <!-- docs: sqlite -->                 this SQL is for SQLite; without a direction it is for Postgres
    <!-- docs: fragment, because … -->    not run, only compiled: the reason is part of the direction

A Python block without a direction is run by itself, in a process and a folder of its own. It may use `await` at the top
level, as `python -m asyncio` allows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\s*$")
DIRECTION = re.compile(r"^\s*<!-- docs: (?P<text>.+?) -->\s*$")
HEADING = re.compile(r"^#{1,6} +(?P<text>.+?)\s*$")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")


@dataclass
class Block:
    page: Path
    line: int
    language: str
    text: str
    direction: str = ""

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass
class Program:
    """Python blocks of one page that belong together, the files they need and the lines they must print."""

    blocks: list[Block]
    files: dict[str, str] = field(default_factory=dict)
    output: list[str] = field(default_factory=list)

    @property
    def where(self) -> str:
        """The place of the first block."""
        return self.blocks[0].where

    @property
    def is_test(self) -> bool:
        """Whether it is a file for pytest."""
        return self.blocks[0].direction.startswith("file test_")

    @property
    def source(self) -> str:
        """The blocks as one file, each on the line it has in the page, so that errors point there."""
        lines: list[str] = []
        for block in self.blocks:
            lines += [""] * (block.line - len(lines))
            lines += block.text.splitlines()
        return "\n".join(lines) + "\n"


def pages() -> list[Path]:
    return sorted(
        [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/*.md"), *ROOT.glob("contract/*.md")]
    )


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    opened: Block | None = None
    indent = direction = ""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = FENCE.match(line)
        if opened is not None:
            if line.strip() == "```":
                found.append(opened)
                opened = None
            else:
                opened.text += line.removeprefix(indent) + "\n"
        elif fence is not None:
            indent = fence["indent"]
            opened = Block(page, number, fence["language"], "", direction)
            direction = ""
        else:
            match = DIRECTION.match(line)
            direction = match["text"] if match else ""
    if opened is not None:
        raise AssertionError(f"{page}: the block that begins in line {opened.line} is not closed")
    return found


def all_blocks(language: str) -> list[Block]:
    """The blocks of one language, over all documents."""
    return [block for page in pages() for block in blocks(page) if block.language == language]


def needs_frameworks(page: Path) -> bool:
    """Whether its examples run where frameworks are installed (`make test-integrations`)."""
    return page.parent == ROOT / "docs" / "integrations"


def programs(*, frameworks: bool = False) -> list[Program]:
    """What is to be run: on the pages on frameworks, or on all others."""
    found: list[Program] = []
    for page in pages():
        if needs_frameworks(page) != frameworks:
            continue
        files: dict[str, str] = {}
        current: Program | None = None
        for block in blocks(page):
            name, _, test = block.direction.removeprefix("file ").partition(", run by ")
            if block.direction.startswith("file "):
                files[name] = block.text
                if not test:
                    current = Program([block], dict(files))
                    found.append(current)
            elif block.direction == "output":
                assert current is not None, f"{block.where}: there is no program whose output this could be"
                current.output += block.text.splitlines()
            elif block.language == "python" and not block.direction.startswith("fragment"):
                if block.direction == "continues":
                    assert current is not None, f"{block.where}: there is no block to go on from"
                    current.blocks.append(block)
                else:
                    current = Program([block])
                    found.append(current)
                current.files = dict(files)
    return found


def file_blocks() -> dict[str, tuple[Block, str]]:
    """The files that documents show and a test of their own runs: name → (block, test)."""
    found = {}
    for block in all_blocks("python"):
        name, _, test = block.direction.removeprefix("file ").partition(", run by ")
        if block.direction.startswith("file ") and test:
            found[name] = (block, test)
    return found


def anchors(page: Path) -> set[str]:
    """The anchors that the headings of a page make, in the usual spelling."""
    found = set()
    inside = False
    for line in page.read_text().splitlines():
        if line.lstrip().startswith("```"):
            inside = not inside
        match = None if inside else HEADING.match(line)
        if match:
            text = re.sub(r"[^\w\- ]", "", match["text"].lower())
            found.add(text.strip().replace(" ", "-"))
    return found


def links(page: Path) -> list[str]:
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [match["target"] for match in LINK.finditer(re.sub(r"`[^`\n]*`", "", text))]
