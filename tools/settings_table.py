"""Write the table of settings in the documents from the code, so that neither can say what the other does not.

python tools/settings_table.py          print it
python tools/settings_table.py --write  put it into docs/reference/settings.md
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
import re
import sys
from pathlib import Path

from stepfast.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "stepfast" / "settings.py"
PAGE = ROOT / "docs" / "reference" / "settings.md"
BEGIN, END = "<!-- settings: begin -->", "<!-- settings: end -->"
SECTION = re.compile(r"^ {4}# -- (?P<name>.+)$")


def table() -> str:
    """One table per section of the class, in its order."""
    reasons, sections = comments(), headings()
    defaults = {field.name: getattr(Settings(), field.name) for field in dataclasses.fields(Settings)}
    lines: list[str] = []
    for name, default in defaults.items():
        if name in sections:
            lines += ["", f"## {sections[name].capitalize()}", "", "| setting | default | in the environment | |"]
            lines += ["|---|---|---|---|"]
        lines.append(f"| `{name}` | {shown(default)} | `STEPFAST_{name.upper()}` | {reasons.get(name, '')} |")
    return "\n".join(lines).strip() + "\n"


def comments() -> dict[str, str]:
    """The string below each field."""
    body = next(node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.ClassDef)).body
    found = {}
    for pair in itertools.pairwise(body):
        match pair:
            case (ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text)))):
                found[name] = " ".join(text.split())
    return found


def headings() -> dict[str, str]:
    """The first field of each section → the section."""
    found, waiting = {}, ""
    for line in SOURCE.read_text().splitlines():
        section = SECTION.match(line)
        field = re.match(r"^ {4}(\w+): ", line)
        if section:
            waiting = section["name"]
        elif field and waiting:
            found[field[1]], waiting = waiting, ""
    return found


def shown(value: object) -> str:
    """A default as people read it."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value % 1024 == 0 and value:
        kilo = value // 1024
        return f"{kilo // 1024} MB" if kilo % 1024 == 0 else f"{kilo} kB"
    if isinstance(value, float) and value >= 86400:
        return f"{value:.0f} ({value / 86400:g} days)"
    return f"{value:g}" if isinstance(value, float) else f"{value:,}".replace(",", " ")


def filled(page: str) -> str:
    """The page with the table of today."""
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n\n{table()}\n{END}{after}"


def main(arguments: list[str]) -> int:
    """Print or write."""
    if "--write" in arguments:
        PAGE.write_text(filled(PAGE.read_text()))
    else:
        print(table(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
