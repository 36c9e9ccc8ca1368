"""The array types in our statements, made known to the driver, which would otherwise look them up by itself.

Its lookup costs three round trips per connection, and calls functions by their bare names: on a connection whose
search_path is not ours, those of whoever could put something better fitting there (see `catalogue.py`). The numbers of
built-in types are the same on every server.
"""

from __future__ import annotations

import contextlib
from typing import Any

_ARRAYS = {"bool": (1000, 16), "int2": (1005, 21), "int4": (1007, 23), "int8": (1016, 20), "uuid": (2951, 2950)}
"""Name of the element, number of the array, number of the element. The driver knows text[] already."""

_TYPES = [
    {
        "oid": oid, "ns": "pg_catalog", "name": f"_{name}", "kind": b"b", "basetype": None, "elemtype": element,
        "elemdelim": b",", "range_subtype": None, "attrtypoids": None, "attrnames": None, "elemtype_name": name,
    }
    for name, (oid, element) in _ARRAYS.items()
]  # fmt: skip


def know_arrays(connection: Any) -> Any:
    """The connection, whose driver has no reason left to ask. A driver with other rooms inside asks as before."""
    with contextlib.suppress(AttributeError, TypeError, KeyError):
        connection._protocol.get_settings().register_data_types(_TYPES)
    return connection
