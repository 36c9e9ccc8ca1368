"""Payloads that cannot be read here, because their codec is missing: a note replaces them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ..errors import PayloadError
from ..model.payload import Codec, Payloads
from ..settings import FORMAT


class UnreadablePayload:
    """A codec in place of that of the application's code: payloads are shown as not readable."""

    def encode(self, data: bytes, /) -> bytes:
        """Never called: writing uses no codec, or the real one."""
        raise PayloadError("payloads can be written through a codec only with the code: give --app module:app")

    def decode(self, data: bytes, /) -> bytes:
        """Return a note, in the shape of an error, so that it can replace one too."""
        return b'{"type":"Sealed","message":"stored through a codec; --app module:app shows it"}'


def is_sealed(value: object) -> bool:
    """Whether this is the note for a payload that cannot be read."""
    return isinstance(value, dict) and value.get("type") == "Sealed" and value.keys() == {"type", "message"}


class TolerantPayloads(Payloads):
    """Payloads for reading: one that cannot be read is replaced by a note that says why. The codec may be missing or
    have another key, or the row may have been written by hand."""

    @classmethod
    def like(cls, payloads: Payloads) -> TolerantPayloads:
        """Return tolerant payloads with the same settings and codec."""
        made = cls(payloads.settings, payloads._codec, payloads._logger)
        made.stand_in = payloads.stand_in or UnreadablePayload()
        return made

    def decode(self, text: str, type_: Any, format_: int, what: str) -> Any:
        """Return the value, or a note that says why it cannot be read."""
        try:
            return super().decode(text, type_, format_, what)
        except PayloadError as error:
            return self._decoder(type_)(_told(str(error)))

    def _unwrap(self, text: str, format_: int, what: str) -> bytes | str:
        if format_ == FORMAT:
            return text
        try:
            raw = super()._unwrap(text, format_, what)
            msgspec.json.decode(raw)
        except PayloadError as error:
            return _told(str(error))
        except Exception as error:  # any error of a codec; its message may quote the payload
            return _told(f"the codec that is here cannot read it ({type(error).__name__})")
        return raw


class SafeCodec:
    """An application's codec for the command line: its errors become messages. Workers do not use it: there an error of
    the codec fails the attempt, and the next one may succeed."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    @classmethod
    def around(cls, payloads: Payloads) -> None:
        """Wrap the codec of these payloads, if they have one."""
        if payloads._codec is not None and not isinstance(payloads._codec, cls):
            payloads._codec = cls(payloads._codec)

    def encode(self, data: bytes, /) -> bytes:
        """Encode a payload by the codec."""
        return self._called(self._codec.encode, data, "cannot encode a payload ({})")

    def decode(self, data: bytes, /) -> bytes:
        """Decode a payload by the codec."""
        what = "cannot read what is stored ({}); is its key the one that it was stored with?"
        return self._called(self._codec.decode, data, what)

    def _called(self, call: Callable[[bytes], bytes], data: bytes, what: str) -> bytes:
        try:
            return call(data)
        except PayloadError:
            raise
        except Exception as error:  # its message may quote the payload
            raise PayloadError(f"the application's codec {what.format(type(error).__name__)}") from None


def _told(why: str) -> bytes:
    return msgspec.json.encode({"type": "Sealed", "message": why})
