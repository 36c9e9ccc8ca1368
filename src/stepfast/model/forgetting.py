"""Which records go with a transition of their run."""

from __future__ import annotations

from .records import Transition


def gone_with(move: Transition) -> list[tuple[str, int]]:
    """(branch, position) of the records that are deleted in the transaction of a transition: what the next attempt is
    to make anew (if the run has ended, that is kept for an operator's retry), and what diverging code has made."""
    return [*(move.forget if move.next_attempt else ()), *move.drop]
