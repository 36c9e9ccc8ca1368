"""The tags of a run as they are stored: a JSON list of texts."""

from __future__ import annotations

import msgspec


def read_tags(text: str | None) -> list[str]:
    """The tags in a row. A text that is no such list, because somebody wrote it by hand, is shown as it is: whoever
    lists runs is to see the others."""
    if not text:
        return []
    try:
        return msgspec.json.decode(text, type=list[str])
    except msgspec.MsgspecError:
        return [text]
