"""What passed through a codec that is not here: a value that says so stands in for it."""

from __future__ import annotations

from ..errors import PayloadError


class Sealed:
    """Stands in for a codec that only the application's code has: what passed through it is shown as not readable."""

    def encode(self, data: bytes, /) -> bytes:
        """Never called: whoever writes goes without a codec, or with the real one."""
        raise PayloadError("payloads can be written through a codec only with the code: give --app module:app")

    def decode(self, data: bytes, /) -> bytes:
        """A value that says so, in the shape of an error, so that it can stand for one too."""
        return b'{"type":"Sealed","message":"stored through a codec; --app module:app shows it"}'


def is_sealed(value: object) -> bool:
    """Whether this stands for a value that cannot be read without the code."""
    return isinstance(value, dict) and value.get("type") == "Sealed" and value.keys() == {"type", "message"}
