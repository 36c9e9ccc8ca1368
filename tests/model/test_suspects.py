"""How many suspects are tried at once: fewer with each loss, and alone for the last time."""

from __future__ import annotations

import pytest

from stepfast.model.health import group_size, room_for_suspects


def test_groups_shrink_from_half_of_the_slots_to_one() -> None:
    assert [group_size(losses, 5, 100) for losses in range(2, 7)] == [50, 7, 1, 1, 1]
    assert [group_size(losses, 8, 64) for losses in range(2, 8)] == [32, 16, 8, 4, 2, 1]


@pytest.mark.parametrize("slots", [1, 2, 7, 100, 5000])
@pytest.mark.parametrize("max_losses", range(1, 12))
def test_the_last_try_before_a_dead_letter_is_made_alone(max_losses: int, slots: int) -> None:
    sizes = [group_size(losses, max_losses, slots) for losses in range(2, max(3, max_losses))]
    assert sizes[-1] == 1
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] <= max(1, slots // 2)


def test_room_is_shared_by_all_suspects_at_hand() -> None:
    assert room_for_suspects([], 5, 100) == [50, 7, 1]
    assert room_for_suspects([2] * 25, 5, 100) == [25, 3, 0]
    assert room_for_suspects([2] * 50, 5, 100) == [0, 0, 0]
    assert room_for_suspects([3, 3], 5, 100) == [35, 5, 0]
    assert room_for_suspects([4], 5, 100) == [0, 0, 0]
    assert room_for_suspects([9, 9], 5, 100) == [0, 0, 0], "more than there should be is still no room"


def test_with_few_losses_allowed_suspects_are_alone_or_there_are_none() -> None:
    assert room_for_suspects([], 3, 100) == [1]
    assert room_for_suspects([], 1, 100) == [1]
