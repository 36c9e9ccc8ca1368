"""Play seeds: ``python -m tests.simulation 4711`` for one, with its story; ``--seeds 1000 --from 1`` for many."""

from __future__ import annotations

import argparse
import sys
import time

from tests.faults import story
from tests.simulation import scenario
from tests.simulation.verdict import judge
from tests.simulation.world import World


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("seed", nargs="?", type=int)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--from", dest="first", type=int, default=1)
    args = parser.parse_args()
    seeds = [args.seed] if args.seed is not None else range(args.first, args.first + args.seeds)
    began = time.process_time()
    bad = 0
    for seed in seeds:
        made = scenario.make(seed)
        outcome = World(made, str(seed)).play()
        violations = judge(outcome)
        if violations:
            bad += 1
            print(seed, *violations, sep="\n   ")
            if args.seed is not None:
                import pprint

                pprint.pprint(made)
                print(story.tell(outcome.evidence, violations))
    print(f"{len(seeds)} seeds, {bad} bad, {time.process_time() - began:.2f} s")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
