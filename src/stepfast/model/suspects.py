"""Suspects: how many of the runs that workers died with are tried at once.

When a worker dies nobody knows which of its runs was to blame, so each of them counts a loss. With its second loss a
run is a suspect. A worker tries suspects in groups, and the more losses they have, the smaller are the groups: half of
its slots at first, then fewer by equal ratios, and alone for the last time before a run would be a dead letter. So the
one that kills its process takes fewer neighbours along each time, and dies alone in the end. The others clear
themselves by their first new record, or by coming to a wait, which makes room for the next.

Everything is worked out from the losses in the rows: no worker has to know what others try.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction

from ..settings import SUSPECT_LOSSES


def may_wait_in_memory(losses: int) -> bool:
    """Whether a run may keep its slot while it waits for a moment. One that workers have died with gives it back at its
    first wait: that clears it, while the death of its worker for another reason would count as one more loss."""
    return losses == 0


def group_size(losses: int, max_losses: int, slots: int) -> int:
    """How many runs with so many losses a worker tries at once."""
    last = max_losses - 1
    if losses >= last:
        return 1
    first = float(max(1, slots // 2))
    return max(1, round(math.pow(first, (last - losses) / (last - SUSPECT_LOSSES))))


def room_for_suspects(unproved: Iterable[int], max_losses: int, slots: int) -> list[int]:
    """How many more suspects a worker may take: of those with two losses, with three, and so on; the last number holds
    for all that have more. ``unproved`` are the losses of the suspects it holds that have made no new record yet: one
    out of a group of ten fills a tenth of the room, one that is to be tried alone all of it."""
    left = 1 - sum(Fraction(1, group_size(losses, max_losses, slots)) for losses in unproved)
    levels = range(SUSPECT_LOSSES, max(SUSPECT_LOSSES, max_losses - 1) + 1)
    return [max(0, int(left * group_size(losses, max_losses, slots))) for losses in levels]
