"""A disk of a few megabytes that can be filled and freed: a tmpfs, which only root may mount."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.needs import Program, leave_out

SMALL_DISK = Program("small disk", "a tmpfs of its own, which only root may mount")


class SmallDisk:
    """Mounted at a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        """Write until nothing more can be written."""
        with self._ballast.open("ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(b"\0" * size)

    def free(self) -> None:
        """There is space again."""
        self._ballast.unlink(missing_ok=True)


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[SmallDisk]:
    """For as long as the block lasts; without the right to mount one the test ends here."""
    folder.mkdir()
    options = f"size={megabytes}m,mode=1777"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        leave_out(SMALL_DISK)
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
