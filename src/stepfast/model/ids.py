"""Ids made by the client, so that a write whose reply was lost can be repeated.

UUIDv7: ordered by time, so that new rows land at the end of the index. The client's clock in them serves only this
locality; nothing is decided by it.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import time
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TypeGuard

from ..errors import ConfigurationError, RunNotFound

_last = 0
_stock: Iterator[tuple[int]] = iter(())
"""Numbers of the system's randomness, fetched a few hundred at a time: the next id cannot be worked out from earlier
ones. Each is given out once, also to several threads, because the iterator is C's."""

_SHOWN = 60
_CANONICAL = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def new_id() -> str:
    """A new UUIDv7 in its usual spelling; later calls in one process sort after earlier ones."""
    global _last
    # 48 bits of milliseconds and 12 of their fractions, as one counter that never goes back.
    ticks = time.time_ns() * 4096 // 1_000_000
    _last = ticks = ticks if ticks > _last else _last + 1
    value = ((ticks >> 12) << 16 | 0x7000 | ticks & 0xFFF) << 64 | 0x8000000000000000 | _bits() >> 2
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def new_seed() -> str:
    """A secret for the random values of runs. Those of one batch may share it, for their ids are mixed in."""
    return os.urandom(16).hex()


def _bits() -> int:
    """64 bits of the system's randomness."""
    global _stock
    for (value,) in _stock:
        return value
    _stock = struct.iter_unpack("Q", os.urandom(4096))
    return _bits()


def _forget_stock() -> None:
    global _stock
    _stock = iter(())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_stock)


def made_at(run_id: str) -> int | None:
    """When an id was made, in milliseconds of the maker's clock; None for one that does not say. Good enough
    to measure by, not to decide by."""
    return _milliseconds(run_id[:13]) if run_id[14:15] == "7" else None


@lru_cache(maxsize=1024)
def _milliseconds(beginning: str) -> int:
    """Ids that were made in the same millisecond begin alike, and many runs end within the second in which they
    began."""
    return int(beginning.replace("-", ""), 16)


def is_id(text: object) -> TypeGuard[str]:
    """Whether ``text`` is spelled as our ids are."""
    return isinstance(text, str) and _CANONICAL.fullmatch(text) is not None


def run_id_of(text: object) -> str:
    """The id of a run that a caller asks for. A text that is not an id may come from anywhere, as from the path of a
    request: no run has it."""
    if isinstance(text, str) and not is_id(text.lower()):
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        raise RunNotFound(repr(shown), ": that is not a run id (they look like 0197a1b2-…)")
    return check_id(text)


def check_id(text: object) -> str:
    """The id of a run as it is stored, whichever way it was spelled."""
    if not isinstance(text, str) or not is_id(text.lower()):
        raise ConfigurationError(f"{text!r} is not a run id (they look like 0197a1b2-…)")
    return text.lower()


def ids_beginning_with(text: str) -> tuple[str, str] | None:
    """The first and the last id that begin like this, spelled with hyphens or without; None if no id does."""
    digits = text.strip().lower().replace("-", "")
    if not 0 < len(digits) <= 32 or not set(digits) <= set("0123456789abcdef"):
        return None
    spelled = [digits.ljust(32, filling) for filling in "0f"]
    first, last = (f"{d[:8]}-{d[8:12]}-{d[12:16]}-{d[16:20]}-{d[20:]}" for d in spelled)
    return first, last


def child_id(parent: str, branch: str, position: int) -> str:
    """The id of the run that is started at an address in the code of another: the same whenever it is worked out. It
    keeps the parent's time, so that the two lie close together."""
    digest = hashlib.blake2b(f"{parent}/{branch}/{position}".encode(), digest_size=10).hexdigest()
    return f"{parent[:14]}7{digest[:3]}-{'89ab'[int(digest[3], 16) & 3]}{digest[4:7]}-{digest[7:19]}"


_TOKEN = re.compile(r"[0-9a-f]{32}")


def callback_token(secret: str, run_id: str, branch: str, position: int, name: str) -> str:
    """The token of the callback that is made at an address in the code of a run: the same on every replay. Only who
    knows the secret of the run can work it out."""
    made = "\0".join(("callback", run_id, branch, str(position), name))  # which no name holds
    return hashlib.blake2b(made.encode(), key=secret.encode(), digest_size=16).hexdigest()


def callback_id(token: object) -> str | None:
    """What is stored of a token: its hash, spelled as an id. None for a text that is no token."""
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        return None
    digest = hashlib.sha256(token.encode()).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"


_POSSIBLE_TOKEN = re.compile(r"(?=([0-9a-f]{32}))")


def without_tokens(text: str, tokens: Mapping[str, str] | None) -> str:
    """A text with what is stored of tokens in place of these."""
    if not tokens:
        return text
    for token in {found[1] for found in _POSSIBLE_TOKEN.finditer(text)} & tokens.keys():
        text = text.replace(token, tokens[token])
    return text


def successor_id(run_id: str) -> str:
    """The id of the run that this one goes on as, if it does."""
    return child_id(run_id, "~next", 0)
