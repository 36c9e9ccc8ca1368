"""Which runs of a limited queue may be taken: never more than the limits allow, never fewer (rule 36)."""

from __future__ import annotations

import itertools
from collections import Counter
from random import Random

import pytest

from stepfast.model.queue_config import Gate, Limits, Rate
from stepfast.model.rate_limiter import Candidate, Choice, Count, Room, Usage, choose, logged_at

KEYS = (None, "a", "b", "c")


def candidates(random: Random, count: int) -> list[Candidate]:
    return [
        Candidate(
            f"r{n}", "w", random.randrange(3), n, "v", random.randrange(50), random.choice(KEYS), random.random() < 0.7
        )
        for n in range(count)
    ]


def some_limits(random: Random) -> Limits:
    def maybe(most: int) -> int | None:
        return random.randint(1, most) if random.random() < 0.6 else None

    def rate(most: int) -> Rate | None:
        return Rate(random.randint(1, most), per=10) if random.random() < 0.6 else None

    return Limits(maybe(8), rate(8), maybe(3), rate(3))


def count(random: Random, rate: Rate | None) -> Count:
    started = random.randrange(6)
    return Count(random.randrange(4), started, 5_000 if rate is not None and started >= rate.count else None)


def case(seed: int) -> tuple[list[Candidate], Limits, Usage, Room]:
    random = Random(seed)
    limits = some_limits(random)
    keys = {key: count(random, limits.key_rate) for key in KEYS if key is not None and random.random() < 0.7}
    usage = Usage(1_000, count(random, limits.rate), keys)
    return (
        candidates(random, random.randrange(20)), limits, usage, Room(random.randrange(12), random.choice([60, 10**9])),
    )  # fmt: skip


def holds(taken: list[Candidate], limits: Limits, usage: Usage, room: Room) -> bool:
    """Whether all limits hold with these taken, said as plainly as can be."""
    of_key = Counter(run.key for run in taken)
    begun = Counter(run.key for run in taken if run.fresh)
    return (
        len(taken) <= room.runs
        and (limits.concurrency is None or not taken or usage.whole.running + len(taken) <= limits.concurrency)
        and (limits.rate is None or not begun or usage.whole.started + begun.total() <= limits.rate.count)
        and all(
            limits.key_concurrency is None or usage.keys.get(key, Count()).running + number <= limits.key_concurrency
            for key, number in of_key.items()
            if key is not None
        )
        and all(
            limits.key_rate is None or usage.keys.get(key, Count()).started + number <= limits.key_rate.count
            for key, number in begun.items()
            if key is not None
        )
    )


@pytest.mark.parametrize("block", range(10))
def test_as_many_are_taken_as_the_limits_allow_in_order(block: int) -> None:
    for seed in range(block * 200, block * 200 + 200):
        line, limits, usage, room = case(seed)
        choice = choose(line, limits, usage, room)
        assert holds(choice.taken, limits, usage, room), seed
        order = sorted(line, key=lambda run: (-run.priority, run.place))
        taken = list[Candidate]()
        for run in order:  # whoever was left could not have been taken when it was their turn
            full = bool(taken) and sum(each.size for each in taken) >= room.bytes
            if run in choice.taken:
                taken.append(run)
            else:
                assert full or not holds([*taken, run], limits, usage, room), seed
        assert taken == choice.taken, seed
        assert choice.left == (len(taken) < len(line)), seed


def run(number: int, key: str | None = None, fresh: bool = True) -> Candidate:
    return Candidate(f"r{number}", "w", 0, number, "v", 1, key, fresh)


def chosen(line: list[Candidate], limits: Limits, usage: Usage) -> Choice:
    return choose(line, limits, usage, Room(100, 10**9))


def test_what_a_rate_keeps_says_when_it_may_begin() -> None:
    limits = Limits(rate=Rate(2, per=10), key_rate=Rate(1, per=10))
    usage = Usage(0, Count(0, 2, 7_000), {"a": Count(0, 1, 9_000)})
    assert chosen([run(1)], limits, usage).next_at == 7_000
    assert chosen([run(1, "a")], limits, usage).next_at == 9_000
    assert chosen([run(1, "a"), run(2)], limits, usage).next_at == 7_000
    assert chosen([run(1, fresh=False)], limits, usage) == Choice([run(1, fresh=False)])


def test_starts_are_logged_no_earlier_than_they_were() -> None:
    for per in (0.001, 0.5, 60, 86_400):
        for now in (0, 1, 999, 12_345_678):
            at = logged_at(Rate(1, per=per), now)
            assert now <= at < now + max(1, per)  # a thousandth of the span, at most


def test_uncounted_runs_are_searched_for_less_often_the_longer_a_queue_is_limited() -> None:
    """And no more after five seconds: by then claims from before have committed."""
    since, now, found = 1_000_000, 1_000_000, []
    gate = Gate("order", limited_since=since)
    while now < since + 60_000:
        if gate.may_hold_uncounted(now):
            found.append(now - since)
            gate.counted_at = now
        now += 1
    assert found[0] == 0 and found[-1] >= 5000 and len(found) < 50
    assert all(after <= max(before * 5 // 4, before + 1) for before, after in itertools.pairwise(found))
