"""Tracebacks as people want to read them: the frames of their own code, without those of the library around it."""

from __future__ import annotations

import re
from pathlib import Path
from types import TracebackType

_FRAME = re.compile(r'^(?P<margin>[ |]*)File "(?P<file>[^"]*)", line \d+')
_HEAD = re.compile(r"^[ |+-]*(?:Exception Group )?Traceback \(most recent call last\):$")
_OWN = re.compile(
    r"[/\\](?:site-packages|dist-packages|src)[/\\]stepfast[/\\]|[/\\]stepfast[/\\](?:engine|worker|store)[/\\]"
)
"""Files of the library, wherever it was installed when the error was recorded; a project may have the same name."""


_PACKAGE = str(Path(__file__).parents[1])


def own_frames(trace: TracebackType | None, most: int) -> TracebackType | None:
    """The innermost frames of a live traceback that are the user's code, so many at most. All frames where none is."""
    frames, at = list[TracebackType](), trace
    while at is not None:
        if not at.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            frames.append(at)
        at = at.tb_next
    shown = None
    for frame in reversed(frames[-most:]):
        shown = TracebackType(shown, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return shown or trace


def own_code_only(traceback: str) -> str:
    """A traceback without the frames of Stepfast itself. A part of which no frame is left keeps only its last lines."""
    shown: list[str] = []
    margin: str | None = None  # of the frame that is being left out
    for line in traceback.splitlines():
        frame = _FRAME.match(line)
        if frame is not None:
            margin = frame["margin"] if _OWN.search(frame["file"]) else None
        elif margin is not None and not line.startswith(f"{margin}  "):
            margin = None
        if margin is None:
            shown.append(line)
    return "\n".join(_without_empty_heads(shown))


def _without_empty_heads(lines: list[str]) -> list[str]:
    """A line that announces frames is left out where none follows."""
    return [
        line
        for line, after in zip(lines, [*lines[1:], ""], strict=False)  # of nothing, nothing
        if not _HEAD.match(line) or _FRAME.match(after)
    ]
