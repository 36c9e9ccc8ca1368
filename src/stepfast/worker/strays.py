"""Strays: runs that name a worker without its knowledge, because the reply to a claim was lost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from .questions import Questions

Held = tuple[str, int]
"""A run, and the number of the claim that holds it."""


class Strays:
    """A run is taken for a stray when it was seen twice, because the first sight may be older than our knowledge."""

    def __init__(self) -> None:
        self._seen: dict[Held, int] = {}
        """What was seen once → how many claims we had asked for by then."""

    def find(
        self,
        held: Mapping[str, int],
        is_known: Callable[[str, int], bool],
        questions: Questions,
    ) -> list[Held]:
        """What the database says we hold, and is neither at hand nor on its way out (``is_known``), nor on its way in
        by a claim that is not answered yet."""
        claims, unanswered = questions.last, questions.unanswered
        seen = {each: self._seen.get(each, claims) for each in held.items() if not is_known(*each)}
        answered_below = math.inf if unanswered is None else unanswered
        again = [stray for stray, since in seen.items() if stray in self._seen and since < answered_below]
        self._seen = {stray: since for stray, since in seen.items() if stray not in again}
        return sorted(again)

    def forget(self) -> None:
        """Nothing that named us is ours any more."""
        self._seen.clear()
