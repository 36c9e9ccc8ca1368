"""The check of commit messages."""

from __future__ import annotations

import pytest
from tools.commits import problems


def test_a_subject_with_an_area_and_a_body_passes() -> None:
    assert problems("journal: coalesce notify per flush\n\nA NOTIFY per record locked the server.\n") == []


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("journal: " + "x" * 64 + "\n\nWhy.\n", "73 characters"),
        ("Coalesce notify\n\nWhy.\n", "form"),
        ("journal: coalesce notify\n", "no body"),
        ("journal: coalesce notify\nWhy.\n", "no empty line"),
        ("journal: coalesce notify\n\n" + "why " * 21 + "\n", "longer than 80"),
    ],
)
def test_what_is_wrong_is_named(message: str, problem: str) -> None:
    [found] = problems(message)
    assert problem in found
