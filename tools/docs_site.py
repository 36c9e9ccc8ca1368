"""Hooks of the docs site: the API reference from docstrings, and repository files that documents link to.

mkdocs calls `on_files` and `on_page_markdown`; see mkdocs.yml. `make docs` is strict: a warning fails the build.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
API = "reference/api.md"
PUBLIC = (
    "stepfast",
    "stepfast.testing",
    "stepfast.remote",
    "stepfast.telemetry",
    "stepfast.console",
    "stepfast.settings",
)
"""The modules that users import from."""
OUTSIDE = re.compile(r"\]\((?P<path>(?:\.\./)+[\w./-]+)(?P<anchor>#[\w-]+)?\)")
LANGUAGES = {".py": "python", ".mjs": "javascript", ".json": "json", ".yml": "yaml", ".sql": "sql"}

log = logging.getLogger("mkdocs.hooks.docs_site")


def on_files(files: Any, config: Any) -> Any:
    """Add the API reference, and a page for each file of the repository that a document links to."""
    files.append(File.generated(config, API, content=api_reference()))
    for source in sorted({path for page in DOCS.rglob("*.md") for path in files_outside(page)}):
        files.append(File.generated(config, page_of(source), content=as_page(source)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links to files of the repository lead to their pages on the site."""
    here = DOCS / page.file.src_uri

    def inside(match: re.Match[str]) -> str:
        source = (here.parent / match["path"]).resolve()
        if source.is_relative_to(DOCS) or not source.is_relative_to(ROOT):
            return match[0]
        depth = len(Path(page.file.src_uri).parts) - 1
        return f"]({'../' * depth}{page_of(source)}{match['anchor'] or ''})"

    return OUTSIDE.sub(inside, markdown)


def files_outside(page: Path) -> set[Path]:
    """Return the files outside of docs/ that a document links to."""
    targets = ((page.parent / match["path"]).resolve() for match in OUTSIDE.finditer(page.read_text()))
    return {target for target in targets if target.is_file() and not target.is_relative_to(DOCS)}


def page_of(source: Path) -> str:
    """Return the path on the site of a file of the repository."""
    name = source.relative_to(ROOT).as_posix()
    return f"source/{name.removesuffix('.md')}.md"


def as_page(source: Path) -> str:
    """Return the text of a file as a page; links of a document lead to files that are not on the site, and vanish."""
    text = source.read_text()
    if source.suffix == ".md":
        return re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", text)
    fence = f"```{LANGUAGES.get(source.suffix, '')}\n{text.rstrip()}\n```\n"
    return f"# {source.relative_to(ROOT).as_posix()}\n\n{fence}"


def api_reference() -> str:
    """Return the page of the API reference; each public name without a docstring is a warning."""
    package = griffe.load("stepfast", search_paths=[str(ROOT / "src")], resolve_aliases=True)
    parts = ["# API reference\n\nEvery public name, from its docstring.\n"]
    for module in PUBLIC:
        member = package if module == "stepfast" else package[module.removeprefix("stepfast.")]
        parts.append(f"\n## {module}\n")
        for name in public_names(member):
            for undocumented in without_docstring(member[name], f"{module}.{name}"):
                log.warning("%s has no docstring", undocumented)
            parts.append(f"\n::: {module}.{name}\n")
    return "".join(parts)


def public_names(module: Any) -> list[str]:
    """Return what a module exports, or else the public classes and functions that it defines."""
    if module.exports:
        return sorted(str(name) for name in module.exports if str(name) in module.members)
    return sorted(name for name, member in module.members.items() if not name.startswith("_") and not member.is_alias)


def without_docstring(member: Any, name: str) -> Iterator[str]:
    """Yield a class or function that has no docstring, and the public methods of a class that have none."""
    target = member.final_target if member.is_alias else member
    if not (target.is_class or target.is_function):
        return  # plain values and aliases of types are described where they stand
    if not target.docstring:
        yield name
    if target.is_class:
        for part, method in target.members.items():
            if not part.startswith("_") and not method.is_alias and method.is_function:
                yield from without_docstring(method, f"{name}.{part}")
