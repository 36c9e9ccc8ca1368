"""The documents, which come with the package: their pages, their text, and how a message cites them."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

WEB = ""
"""Where the documents are on the web, with a slash at the end; empty while they are nowhere. Messages that cite a page
and the links of the README on a package index take it from here."""

_HEADING = re.compile(r"(#{1,6}) +(.+?)\s*$")
_DIRECTION = re.compile(r"^\s*<!-- docs: .+? -->\n", re.MULTILINE)


class Section(NamedTuple):
    """A heading and what follows it, up to the next heading."""

    page: str
    anchor: str
    heading: str
    level: int
    text: str

    @property
    def name(self) -> str:
        """As ``read`` takes it: the page, and the anchor of a part of it."""
        return self.page if self.level == 1 else f"{self.page}#{self.anchor}"


def cite(name: str) -> str:
    """How a message names a page, or a part of one (``how-to/limits#rates``), where a reader can open it."""
    page, _, anchor = name.partition("#")
    return f"{WEB}{page}.md{'#' * bool(anchor)}{anchor}" if WEB else f"`stepfast docs {name}`"


def pages() -> dict[str, str]:
    """The pages, and the title of each."""
    folder = _folder()
    names = sorted(str(file.relative_to(folder).with_suffix("").as_posix()) for file in folder.rglob("*.md"))
    return {name: next(iter(_sections(name))).heading for name in sorted(names, key=lambda name: ("/" in name, name))}


def find(name: str) -> list[str]:
    """The pages that a name means: the page itself, or those whose last part it is."""
    wanted, known = name.removesuffix(".md").removeprefix("docs/"), pages()
    return [wanted] if wanted in known else [each for each in known if each.rpartition("/")[2] == wanted]


def read(page: str, anchor: str = "") -> str | None:
    """The text of a page; with an anchor, that of the section with all below it, or None if there is none."""
    sections = _sections(page)
    if not anchor:
        return "\n".join(section.text for section in sections)
    at = next((i for i, section in enumerate(sections) if section.anchor == anchor), None)
    if at is None:
        return None
    below = [sections[at]]
    for section in sections[at + 1 :]:
        if section.level <= sections[at].level:
            break
        below.append(section)
    return "\n".join(section.text for section in below)


def search(words: str) -> list[tuple[Section, str]]:
    """The sections that have all of these words, and a line of each. First those whose heading has most of them, then
    those that say them most often."""
    wanted = words.lower().split()
    found = []
    for page in pages() if wanted else ():
        for section in _sections(page):
            text, heading = section.text.lower(), f"{page} {section.heading}".lower()
            if all(word in text or word in heading for word in wanted):
                in_heading = sum(word in heading for word in wanted)
                found.append((-in_heading, -sum(map(text.count, wanted)), section))
    return [(section, _line(section, wanted)) for *_, section in sorted(found, key=lambda each: each[:2])]


def _line(section: Section, wanted: list[str]) -> str:
    """The line below the heading that has most of the words."""
    lines = [line.strip() for line in section.text.splitlines()[1:] if line.strip(" `|-")]
    return max(lines, key=lambda line: sum(word in line.lower() for word in wanted), default="")


@functools.cache
def _folder() -> Path:
    """Return the folder of the documents: in an installed package, or in a checkout."""
    here = Path(__file__).resolve().parent
    places = (here / "docs", here.parents[1] / "docs")
    return next((place for place in places if (place / "README.md").is_file()), places[0])


@functools.cache
def _sections(page: str) -> tuple[Section, ...]:
    text = _DIRECTION.sub("", (_folder() / f"{page}.md").read_text(encoding="utf-8"))
    return tuple(_split(page, text.splitlines()))


def _split(page: str, lines: list[str]) -> Iterator[Section]:
    heads = []
    inside = False
    for number, line in enumerate(lines):
        if line.lstrip().startswith("```"):
            inside = not inside
        match = None if inside else _HEADING.match(line)
        if match is not None:
            heads.append((number, len(match[1]), match[2]))
    ends = [number for number, *_ in heads[1:]] + [len(lines)]
    for (number, level, heading), end in zip(heads, ends, strict=True):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        yield Section(page, anchor, heading.replace("`", ""), level, "\n".join(lines[number:end]))
