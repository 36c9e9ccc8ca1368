"""Many files, a few at a time: each is a branch with steps of its own, and what is done stays done.

One of the files cannot be read. First the errors are wanted among the results, and the rest is reported. Then the run
is to fail instead; the file is repaired, an operator says `retry`, and only that one file is read again.

    python examples/map_files.py
    STEPFAST_URL=postgresql://… python examples/map_files.py
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from stepfast import Context, NonRetryableError, RunFailed, Stepfast

app = Stepfast(os.environ.get("STEPFAST_URL", "sqlite://"))

FILES = 60
LIMIT = 8

reads: Counter[str] = Counter()
at_once = most_at_once = 0


@dataclass
class Folder:
    """The input: where the files are, and what to do about those that cannot be read."""

    path: str
    skip_bad: bool


@dataclass
class Words:
    """What is found in a file."""

    file: str
    count: int


async def list_files(folder: str) -> list[str]:
    """A step too: a file that comes later must not change what a replay walks over."""
    return sorted(str(path) for path in Path(folder).glob("*.txt"))


async def read(path: str) -> str:
    """The slow part."""
    global at_once, most_at_once
    reads[Path(path).name] += 1
    at_once += 1
    most_at_once = max(most_at_once, at_once)
    try:
        await asyncio.sleep(0.005)
        return Path(path).read_text("utf-8")
    except UnicodeDecodeError as error:
        raise NonRetryableError(f"{Path(path).name} is not text: {error.reason}") from None
    finally:
        at_once -= 1


def count(path: str, text: str) -> Words:
    """Plain code; it runs in a thread."""
    return Words(Path(path).name, len(text.split()))


async def one_file(ctx: Context, path: str) -> Words:
    """The branch of one file. Its context counts its own steps, whatever the other branches do."""
    text = await ctx.step(read, path)
    return await ctx.step(count, path, text)


@app.workflow(max_attempts=1)
async def count_words(ctx: Context, folder: Folder) -> str:
    """Results come in the order of the files, not in the order in which they were ready."""
    paths = await ctx.step(list_files, folder.path)
    if folder.skip_bad:
        found = await ctx.map(one_file, paths, limit=LIMIT, return_errors=True)
        good = [words for words in found if isinstance(words, Words)]
        bad = [str(error) for error in found if isinstance(error, Exception)]
    else:
        good, bad = await ctx.map(one_file, paths, limit=LIMIT), []
    return f"{sum(words.count for words in good)} words in {len(good)} files" + "".join(f"; {line}" for line in bad)


async def main(folder: Path) -> None:
    """Twice over the same folder."""
    for number in range(FILES):
        (folder / f"{number:03}.txt").write_text("word " * number)
    (folder / "013.txt").write_bytes(b"\xff\xfe\x00")
    async with app, app.worker():
        lenient = await app.start(count_words, Folder(str(folder), skip_bad=True))
        print(await lenient.result(timeout=60))
        print("files open at once, at most:", most_at_once)
        print(len(await lenient.steps()), "records")

        reads.clear()
        strict = await app.start(count_words, Folder(str(folder), skip_bad=False))
        try:
            await strict.result(timeout=60)
        except RunFailed as error:
            print("failed:", error.message)
        print("read before it failed:", len(reads), "files")  # all are settled before the error surfaces
        reads.clear()
        (folder / "013.txt").write_text("word " * 13)
        await strict.retry()
        print("after the repair:", await strict.result(timeout=60))
        print("read again:", dict(reads))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="stepfast-files-") as name:
        asyncio.run(main(Path(name)))
