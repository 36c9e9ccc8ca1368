"""Codecs that are easily seen: nothing readable is left of what they encode."""

from __future__ import annotations

import os


class Backwards:
    """Turns every payload around."""

    def encode(self, data: bytes, /) -> bytes:
        return data[::-1]

    decode = encode


class Salted:
    """Encodes the same payload otherwise each time."""

    def encode(self, data: bytes, /) -> bytes:
        return os.urandom(4) + data

    def decode(self, data: bytes, /) -> bytes:
        return data[4:]
