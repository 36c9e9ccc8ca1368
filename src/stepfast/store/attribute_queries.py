"""Queries about attributes of runs, and the types of their names."""

from __future__ import annotations

from collections.abc import Sequence

from ..model.attributes import Attribute, check_types
from .flows import attributes as flows
from .store_requests import StoreRequests


class AttributeQueries(StoreRequests):
    """Attributes of runs, by which they are found."""

    _named: dict[str, str]
    """The types of names that are known to be stored."""

    async def attribute_types(self, names: Sequence[str] | None = None) -> dict[str, str]:
        """The names of attributes that have a type, of these or of all, and which."""
        rows = await (self._fetch("attribute_names") if names is None else self._fetch("attribute_types", list(names)))
        return {row[0]: row[1] for row in rows}

    async def name_attributes(self, attributes: Sequence[Attribute]) -> None:
        """Give the names of these attributes their types, once per process. InvalidInput if one has another type, or if
        there are too many names."""
        if not all(self._named.get(each.name) == each.type for each in attributes):
            self._named |= await self._drive(flows.name, attributes, self._settings.max_attribute_names)
        check_types(attributes, self._named)

    async def check_attributes(self, attributes: Sequence[Attribute]) -> None:
        """Refuse attributes to look for that are of another type than their names."""
        if attributes and not all(self._named.get(each.name) == each.type for each in attributes):
            check_types(attributes, await self.attribute_types([each.name for each in attributes]))

    async def attributes_of(self, ids: Sequence[str]) -> dict[str, list[Attribute]]:
        """The attributes of those of some runs that have any."""
        found: dict[str, list[Attribute]] = {}
        for run_id, name, value in await self._fetch("attributes_of", list(ids)):
            found.setdefault(run_id, []).append(Attribute(name, value))
        return found
