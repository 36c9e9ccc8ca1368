"""Rules are cited by number: each cited one stands in docs/rules.md, and each one there is cited by a test."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CITED = re.compile(r"\b[Rr]ules? (\d+(?:(?:–|, | and )\d+)*)")


def written() -> set[int]:
    """The rules of the page."""
    return {int(number) for number in re.findall(r"^\| (\d+) \|", (ROOT / "docs/rules.md").read_text(), re.MULTILINE)}


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
