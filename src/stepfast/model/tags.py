"""The tags of a run as they are stored: a JSON list of texts."""

from __future__ import annotations

from .stored import read_json


def read_tags(text: str | None) -> list[str]:
    """The tags in a row. A text that is no such list, because somebody wrote it by hand, is shown as it is: whoever
    lists runs is to see the others."""
    if not text:
        return []
    return read_json(text, list[str], [text])
