"""`python -m bench`: measure Stepfast beside the alternatives, and print the ratios."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path

from rich.console import Console

from bench import curves, pairs, report
from bench.checkouts import checkouts
from bench.engines import ENGINES
from bench.runner import Outcome, Runner, known
from bench.scenarios import SCENARIOS, load_scenario
from bench.servers import Servers


def main() -> None:
    """Parse the command line, measure, show."""
    options = parse()
    console = Console(width=None if sys.stdout.isatty() else 140)
    if options.pairs:
        measure_pairs(options, console)
        return
    if options.curves:
        curves.measure(options.curves, options.full, options.only, options.repeats, progress)
        return
    outcomes: list[Outcome] = []
    begin = time.perf_counter()
    with Servers() as servers:
        postgres = servers.version()
        console.print(report.machine(postgres), highlight=False)
        with console.status("") as status:
            runner = Runner(servers, options.quick, options.engines, options.repeats, status.update)
            for name in options.only or SCENARIOS:
                scenario = load_scenario(name)
                if options.quick and not options.only and not scenario.in_quick:
                    continue
                outcome = runner.run(scenario)
                if outcome.takes or outcome.failures:
                    outcomes.append(outcome)
                    report.show(console, outcome)
    report.show_goals(console, outcomes)
    console.print(f"took {time.perf_counter() - begin:.0f} s")
    if options.json:
        options.json.write_text(json.dumps(report.as_json(outcomes, postgres, options.quick), indent=1))


def measure_pairs(options: argparse.Namespace, console: Console) -> None:
    """Measure two checkouts beside each other."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the copies are removed
    count, a, b = options.pairs
    names = options.only or pairs.PAIRED
    # Statistics that are gathered in the background cost as much as a take, at a time that nothing decides.
    with checkouts(a, b, a) as found, Servers(autovacuum="off") as servers:
        copies = dict(zip(pairs.SIDES, found, strict=True))
        machine = report.machine(servers.version())
        console.print(machine, highlight=False)
        runner = pairs.PairRunner(servers, copies, options.quick, options.minutes * 60, progress)
        done = runner.run(names, count)
    report.show_pairs(console, done, copies)
    if options.json:
        options.json.write_text(json.dumps(pairs.as_json(done, copies, machine, options.quick), indent=1))
    if not all(of_scenario.takes for of_scenario in done.values()):
        sys.exit(1)


def progress(line: str) -> None:
    """One line on stderr, at once."""
    print(line, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a rough picture in under two minutes")
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"of {', '.join(SCENARIOS)}")
    parser.add_argument("--engines", metavar="A,B", help=f"of {', '.join(ENGINES)}")
    parser.add_argument("--repeats", type=int, metavar="N", help="takes of each measurement (full: 3, quick: 1)")
    parser.add_argument(
        "--pairs",
        nargs=3,
        metavar=("N", "A", "B"),
        help="measure N interleaved pairs of two checkouts, each a commit or a folder; "
        f"--only takes {', '.join(pairs.PAIRED)}",
    )
    parser.add_argument(
        "--minutes", type=float, default=30.0, metavar="M", help="begin no take of a pair later than this (30)"
    )
    parser.add_argument(
        "--curves",
        type=Path,
        metavar="FOLDER",
        help="measure curves beside raw SQL, and put figures and pictures into this folder; "
        f"--only takes {', '.join(curves.CURVES)}",
    )
    parser.add_argument("--full", action="store_true", help="curves with their longest points (hours)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every take to this file")
    options = parser.parse_args()
    if options.pairs:
        count, *sides = options.pairs
        if not count.isdecimal() or not int(count):
            parser.error(f"--pairs takes a number of pairs first, not {count!r}")
        options.pairs = (int(count), *sides)
    names = pairs.PAIRED if options.pairs else curves.CURVES if options.curves else SCENARIOS
    options.only = known(options.only or [], names, "scenario")
    options.engines = known(options.engines.split(","), ENGINES, "engine") if options.engines else None
    options.repeats = options.repeats or (1 if options.quick else 3)
    return options


if __name__ == "__main__":
    main()
