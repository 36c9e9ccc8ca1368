"""Check the subjects of new commits: `area: imperative summary`, at most 72 characters, and a body that says why.

python tools/commits.py BASE    checks the commits that are on HEAD and not on BASE
"""

from __future__ import annotations

import re
import subprocess
import sys

LONGEST_SUBJECT = 72
LONGEST_LINE = 80
SUBJECT = re.compile(r"[a-z][a-z0-9_./, -]*: \S")


def problems(message: str) -> list[str]:
    """Return what is wrong with a commit message."""
    subject, _, body = message.strip().partition("\n")
    found = []
    if len(subject) > LONGEST_SUBJECT:
        found.append(f"the subject has {len(subject)} characters, more than {LONGEST_SUBJECT}")
    if not SUBJECT.match(subject):
        found.append("the subject has not the form `area: imperative summary`")
    if not body.strip():
        found.append("there is no body that says why")
    elif body[0] != "\n":
        found.append("there is no empty line between the subject and the body")
    long = [line for line in body.splitlines() if len(line) > LONGEST_LINE and " " in line.strip()]
    return [*found, *(f"a line of the body is longer than {LONGEST_LINE} characters: {line[:40]}…" for line in long)]


def commits_since(base: str) -> dict[str, str]:
    """Return the new commits, merges left out: short id and message."""
    command = ["git", "log", "--no-merges", "--format=%h%n%B%x00", f"{base}..HEAD"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    entries = (entry.strip().partition("\n") for entry in output.split("\0") if entry.strip())
    return {commit: message for commit, _, message in entries}


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    found = [(commit, problem) for commit, text in commits_since(arguments[0]).items() for problem in problems(text)]
    for commit, problem in found:
        print(f"{commit}: {problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
