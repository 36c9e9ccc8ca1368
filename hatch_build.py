"""The README as a package index shows it.

The documents come with the package (``stepfast docs``). Links of the README to files of this repository lead nowhere on
a package index: they become absolute where the documents have an address on the web, otherwise plain text. Images of
this repository are left out.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_ROOT = Path(__file__).parent
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?://|#)([^)]+)\)")
_IMAGE = re.compile(r"^!\[[^\]]*\]\((?!https?://)[^)]+\)\n\n?", re.MULTILINE)
_DIRECTION = re.compile(r"^<!-- docs: .+? -->\n", re.MULTILINE)


def readme(text: str, web: str) -> str:
    """The README without links that lead nowhere."""

    def link(found: re.Match[str]) -> str:
        words, target = re.sub(r"\s+", " ", found[1]), found[2]
        return f"[{words}]({web}{target.removeprefix('docs/')})" if web and target.startswith("docs/") else words

    return _LINK.sub(link, _IMAGE.sub("", _DIRECTION.sub("", text)))


class ReadmeMetadata(MetadataHookInterface):
    """Fills in the README, which ``pyproject.toml`` calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the README."""
        web = runpy.run_path(str(_ROOT / "src" / "stepfast" / "documents.py"))["WEB"]
        text = readme((_ROOT / "README.md").read_text(encoding="utf-8"), web)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
