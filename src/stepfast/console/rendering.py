"""Templates into HTML. Everything that is put into one is escaped, and what a screen would obey is spelled out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup, escape

from .. import __version__
from ..model.cron import clock
from ..monitoring.text import ago, brief, count, executor, lasting, shortened, waited_for
from ..monitoring.unreadable import is_sealed
from ..reports import RunInfo
from . import static_files
from .navigation import NAVIGATION
from .paths import parts_of

if TYPE_CHECKING:
    from .visit import Visit

THEMES = ("light", "dark")
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
"""Control characters, and those that turn the direction of a line: shown as they are, they could make a text look like
another one."""
_CODE = re.compile(r"`([^`]+)`")


def render(visit: Visit, template: str, shown: Mapping[str, Any]) -> str:
    """The template with what it is given, and what every page needs."""
    theme = visit.request.cookies.get("stepfast_theme", "")
    always = {
        "visit": visit,
        "url": visit.url,
        "theme": theme if theme in THEMES else "",
        "static": lambda name: f"{visit.base}/static/{name}?v={static_files.FILES[name].tag}",
        "version": __version__,
        "navigation": NAVIGATION,
        "here": next(iter(parts_of(visit.request.scope)), ""),
    }
    return _environment.get_template(template).render({**always, **shown})


def plain(value: Any) -> Any:
    """What is written into a template, as text that a screen shows and does not obey."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", value)
    return value


def _sent(value: str) -> Markup:
    """The value of a field, which a browser sends back: as it is, or it would name something else."""
    return escape(value)


def _moment(when: datetime | None) -> str:
    return "" if when is None else clock(when)


def _iso(when: datetime | None) -> str:
    return "" if when is None else when.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _standing(run: RunInfo) -> str:
    """Why a run ended, or what it waits for, in a word or two."""
    return run.reason or (waited_for(run.waiting_for) if run.waiting_for else "")


def _sentence(text: str) -> Markup:
    """A sentence of ours, with what stands between backticks as code. Not for one that quotes what others wrote."""
    parts = _CODE.split(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(plain(part)) if number % 2 else plain(part)
        for number, part in enumerate(parts)
    )


def _capped(number: int, most: int) -> str:
    """A number that was counted up to a bound: ``10 000+``."""
    return f"{number:,}".replace(",", "\u202f") + ("+" if number >= most else "")


def _bytes(number: int) -> str:
    """A size as people say it: ``12 kB``, ``3.4 MB``."""
    size, units = float(number), ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.3g} {units[0]}" if size < 100 else f"{size:.0f} {units[0]}"


def _make() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("stepfast.console"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=plain,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        moment=_moment, iso=_iso, ago=ago, executor=executor, lasting=lasting, brief=brief, shortened=shortened,
        standing=_standing, count=count, sent=_sent, sentence=_sentence, capped=_capped, bytes=_bytes,
    )  # fmt: skip
    made.tests["sealed"] = is_sealed
    return made


_environment = _make()
