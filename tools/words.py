"""Refuse retired words in documents and code: each has a plain technical replacement.

Words are compared without regard to case, also as parts of identifiers: `nobody_serves` and `NobodyServes` are refused.
Folders are searched for `.md`, `.py` and `.sql` files.

python tools/words.py FILE_OR_FOLDER…
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

RETIRED = {
    "anew": "again",
    "anybody": "a caller, client, worker, operator or process",
    "everybody": "all callers, clients, workers, operators or processes",
    "heed": "apply",
    "heir": "continuation",
    "hush": "silence",
    "meanwhile": "while …, in between",
    "nobody": "no caller, client, worker, operator or process",
    "somebody": "a caller, client, worker, operator, person or process",
    "whatever": "any, all that, regardless of",
    "whoever": "the caller, client, worker, operator or process that",
    "wish": "request, bulk action",
}
"""Retired words and what to write instead."""

INFLECTED = {
    form: word
    for word, endings in {"heed": ("s", "ed", "ing"), "heir": ("s",), "hush": ("es", "ed", "ing"),
                          "wish": ("es", "ed", "ing")}.items()
    for form in (word + ending for ending in endings)
}  # fmt: skip

ALLOWED: dict[str, tuple[str, ...]] = {
    "docs/how-to/monitoring.md": ("StepfastNobodyServes",),  # the name of an alert in deploy/
}
"""Places that may keep a retired word: for a file, texts of its lines. An entry without such a line is refused, too."""

SUFFIXES = (".md", ".py", ".sql")
PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
"""A word, or a part of an identifier between underscores or changes of case."""


def check(paths: Iterable[Path], allowed: Mapping[str, tuple[str, ...]] = ALLOWED) -> list[str]:
    """Return a line for each retired word, and for each allowed place that has none."""
    found = []
    for path in files(paths):
        found += check_file(path, allowed.get(path.as_posix(), ()))
    return found


def files(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the files to check: those that are named, and those in folders by their suffixes."""
    for path in paths:
        if path.is_dir():
            yield from sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES)
        else:
            yield path


def check_file(path: Path, allowed: tuple[str, ...]) -> list[str]:
    """Return a line for each retired word of a file, and for each allowed text without one."""
    found, unused = [], set(allowed)
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        words = retired_words(line)
        places = {text for text in allowed if text in line}
        if places and words:
            unused -= places
            continue
        found += [f"{path}:{number}: {word!r} is retired: write {RETIRED[root]}" for word, root in words]
    found += [f"tools/words.py: {path} has no retired word in a line with {text!r}" for text in sorted(unused)]
    return found


def retired_words(line: str) -> list[tuple[str, str]]:
    """Return the retired words of a line as they are written, each with its entry in the table."""
    parts = [(part, part.lower()) for part in PART.findall(line)]
    return [(part, INFLECTED.get(word, word)) for part, word in parts if word in RETIRED or word in INFLECTED]


def main(arguments: list[str]) -> int:
    if not arguments:
        print("words: name files or folders to check", file=sys.stderr)
        return 2
    paths = [Path(argument) for argument in arguments]
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        print(f"words: there is no {', '.join(missing)}", file=sys.stderr)
        return 2
    found = check(paths)
    for line in found:
        print(line, file=sys.stderr)
    print(f"words: {sum(1 for _ in files(paths))} files, {len(found)} places refused")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
