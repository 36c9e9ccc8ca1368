"""A drawing as a file of its own, which brings its colours along."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from .markup import Markup


@cache
def stylesheet() -> str:
    """The colours of all drawings, light and dark. The console serves it, for it allows no style within a page."""
    return (Path(__file__).parent / "drawing.css").read_text()


def standalone(svg: Markup) -> str:
    """A drawing with its colours inside, to be written to a file. The stylesheet is ours and holds no markup."""
    head, _, rest = svg.partition(">")
    return f"{head}><style>{stylesheet()}</style>{rest}\n"
