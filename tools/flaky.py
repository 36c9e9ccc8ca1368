"""Run some tests many times while other processes keep the cores busy: what flakes, flakes here.

python tools/flaky.py 50 tests/worker/test_stop.py -k grace
"""

from __future__ import annotations

import os
import subprocess
import sys

BUSY = [sys.executable, "-c", "while True: pass"]


def main(times: int, arguments: list[str]) -> int:
    """Run them all, whatever fails; how many of the rounds failed is the last line."""
    burners = [subprocess.Popen(BUSY) for _ in range(os.cpu_count() or 1)]
    failed = 0
    try:
        for number in range(1, times + 1):
            command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", *arguments]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                failed += 1
                print(done.stdout[-8000:], done.stderr[-2000:], sep="\n")
            print(
                f"round {number} of {times}: {done.stdout.strip().splitlines()[-1:] or done.stderr[-200:]}", flush=True
            )
    finally:
        for burner in burners:
            burner.kill()
    print(f"{times - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
