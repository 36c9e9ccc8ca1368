"""What ``stepfast doctor`` looks at on Postgres."""

from __future__ import annotations

import time
from typing import Any

from ..protocol import Check
from .connections import HELD

ENCODING_ADVICE = "use one made with ENCODING 'UTF8' TEMPLATE template0"


async def checks(connection: Any, facts: str, behind_pooler: bool, wakes: bool) -> list[Check]:
    """Version, clock, durability, room for connections, and how we are connected; ``facts`` is the question."""
    sent = time.time()
    row = await connection.fetchrow(facts)
    skew = row["now"] - (sent + time.time()) / 2
    return [
        Check("server", row["number"] >= 120000, f"PostgreSQL {row['text']}", "use PostgreSQL 12 or later"),
        *_unsupported(row["encoding"], row["citus"]),
        *_unwritable(row["read_only"]),
        _clock(skew),
        _durability(row["durability"]),
        _room(row["connections"], row["max_connections"]),
        _wake_ups(behind_pooler, wakes),
    ]


def _unsupported(encoding: str, citus: bool) -> list[Check]:
    """What Stepfast does not work with. Of Citus only those hear who have it."""
    found = [Check("encoding", encoding == "UTF8", f"the database's is {encoding}", ENCODING_ADVICE)]
    if citus:
        advice = "schemas and tables that Citus distributes are not supported yet: use a database without it"
        found.append(Check("citus", False, "the extension Citus is in this database", advice))
    return found


def _unwritable(read_only: bool) -> list[Check]:
    """Of this only those hear who are connected to a server that does not take writes."""
    if not read_only:
        return []
    advice = "name all servers in the URL, and ask for the one that takes writes: ?target_session_attrs=read-write"
    return [Check("writes", False, "this server is read-only: a standby, or a primary that was one", advice)]


def _clock(skew: float) -> Check:
    advice = "only the server's clock decides, but logs will be hard to read: check the time service"
    return Check("clock", abs(skew) < 5, f"the server is {skew:+.3f} s from here", advice)


def _durability(levels: str) -> Check:
    """``levels``: those of fsync and of synchronous_commit."""
    durable = levels.startswith("on") and not levels.endswith("off")
    advice = "a crash of the server may lose what was acknowledged: turn them on"
    return Check("durability", durable, f"fsync, synchronous_commit: {levels}", advice)


def _room(used: int, most: int) -> Check:
    advice = f"a worker holds up to {HELD}, beside its pools: raise max_connections or put a pooler in between"
    return Check("pool", most - used >= HELD, f"{used} of {most} connections in use", advice)


def _wake_ups(behind_pooler: bool, wakes: bool) -> Check:
    cause = "a pooler in transaction mode stands in between: " if behind_pooler else ""
    return Check(
        "wake_ups",
        wakes or behind_pooler,
        "LISTEN/NOTIFY works" if wakes else "LISTEN does not deliver",
        cause + "workers poll instead; connect directly, or in session mode, to be woken",
    )
