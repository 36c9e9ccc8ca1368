"""The types of attributes: each name has one, which is stored before the first value of the name."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import InvalidInput
from ...model.attributes import Attribute
from .base import COMMIT, Flow, ask, put


def name(attributes: Sequence[Attribute], most: int, joins: bool = False) -> Flow[dict[str, str]]:
    """Give names their types; the types that these names have then. ``joins``: within a transaction of the caller."""
    names = sorted({each.name for each in attributes})
    types = {row[0]: row[1] for row in (yield from ask("attribute_types", names))}
    new = sorted({(each.name, each.type) for each in attributes if each.name not in types})
    if not new:
        return types
    there = len((yield from ask("attribute_names")))
    if there + len(new) > most:
        raise InvalidInput(
            f"attribute {new[0][0]!r} is new, and there are {there} names of attributes; at most {most} are kept "
            "(setting max_attribute_names). A name is like a column: what differs from run to run is the value"
        )
    yield from put("name_attributes", list(dict(new).items()))
    if not joins:
        yield COMMIT  # so that what another process has stored is read
    return {row[0]: row[1] for row in (yield from ask("attribute_types", names))}
