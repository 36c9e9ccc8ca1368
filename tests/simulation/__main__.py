"""Play seeds.

python -m tests.simulation 4711                       one seed, with its story
python -m tests.simulation 4711 --without 'runs.1'    what is left of it without some parts
python -m tests.simulation --seeds 1000 --from 1      many; those that break a promise are made smaller and told
python -m tests.simulation --mutations                which seed finds which rule that was taken out
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time

from tests.simulation import mutations
from tests.simulation.seeds import kinds_of_seed, play, report, tell

_MOST_TOLD = 3


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="Play seeds of the simulation.")
    parser.add_argument("seed", nargs="?", type=int, help="one seed, told in full")
    parser.add_argument("--without", default="", help="parts of its scenario to be left out")
    parser.add_argument("--seeds", type=int, default=200, help="how many, if not one")
    parser.add_argument("--from", dest="first", type=int, default=1, help="the first of them")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--mutations", nargs="*", metavar="RULE", help="take rules out, and tell which seed notices")
    args = parser.parse_args()
    if args.mutations is not None:
        return find_mutations(args.mutations or list(mutations.ALL), args.first, args.seeds)
    if args.seed is not None:
        left_out = [part for part in args.without.split(",") if part]
        played = play(args.seed, left_out)
        print(tell(args.seed, left_out, played))
        return bool(played.violations)
    return play_many(range(args.first, args.first + args.seeds), args.jobs)


def play_many(seeds: range, jobs: int) -> int:
    """Play them all; tell of those that break a promise."""
    began, broken = time.monotonic(), []
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for seed, kinds in pool.imap_unordered(kinds_of_seed, seeds, chunksize=10):
            if kinds:
                broken.append(seed)
                print(f"seed {seed}: {', '.join(kinds)}", flush=True)
    for seed in sorted(broken)[:_MOST_TOLD]:
        print("", report(seed, play(seed).violations), sep="\n")
    print(f"{len(seeds)} seeds, {len(broken)} of them broken, {time.monotonic() - began:.0f} s")
    return bool(broken)


def find_mutations(names: list[str], first: int, count: int) -> int:
    """The table of README.md."""
    missed = 0
    for name in names:
        found = first_seed(name, first, count)
        missed += found is None
        told = "not found" if found is None else f"{found[0]} | {', '.join(found[1])}"
        print(f"| {name} | {mutations.what(name)} | {told} |", flush=True)
    return missed


def first_seed(name: str, first: int, count: int) -> tuple[int, list[str]] | None:
    """The first seed that notices that a rule is out, and what it says is broken."""
    with mutations.ALL[name]():
        for seed in range(first, first + count):
            kinds = kinds_of_seed(seed)[1]
            if kinds:
                return seed, kinds
    return None


if __name__ == "__main__":
    sys.exit(main())
