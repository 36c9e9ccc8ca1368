"""The words of statuses and reasons are the same in the code and in the documents, and can be typed without quotes."""

from __future__ import annotations

import pathlib
import re

from stepfast import compatibility
from stepfast.model import status

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "reference" / "statuses.md"


def test_reasons_are_identifiers() -> None:
    assert status.REASONS == (
        "code", "timeout", "deadline", "expired", "workers_lost", "non_determinism", "cancelled", "undo_failed",
        "invalid_input",
        "continued",
    )  # fmt: skip
    assert all(reason.isidentifier() for reason in status.REASONS)


def test_every_word_that_is_stored_or_shown_is_an_identifier() -> None:
    """Whoever filters by one, in a shell or in SQL, types it without quotes."""
    words = [value for name, value in vars(status).items() if name.isupper() and isinstance(value, str)]
    words += [compatibility.FITS, compatibility.DIVERGES, compatibility.TOO_LONG, compatibility.UNKNOWN]
    assert {"undo_failed", "dag_step", "too_long"} <= set(words)
    assert [word for word in words if not word.isidentifier()] == []


def test_every_reason_is_in_the_reference() -> None:
    table = PAGE.read_text().partition("## Why a run ended")[2].partition("## A step")[0]
    listed = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert sorted(listed) == sorted(status.REASONS)
