"""What passed through a codec that is not here: a value that says so stands in for it."""

from __future__ import annotations

from typing import Any

import msgspec

from ..errors import PayloadError
from ..model.payload import Codec, Payloads
from ..settings import FORMAT


class UnreadablePayload:
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


class TolerantPayloads(Payloads):
    """Payloads for those who only look: one that cannot be read does not keep the rest from being shown. The codec may
    not be here, its key may be another one, or somebody wrote into the table by hand."""

    @classmethod
    def like(cls, payloads: Payloads) -> TolerantPayloads:
        """Tolerant payloads with the settings and the codec of others."""
        made = cls(payloads.settings, payloads._codec, payloads._logger)
        made.stand_in = payloads.stand_in or UnreadablePayload()
        return made

    def decode(self, text: str, type_: Any, format_: int, what: str) -> Any:
        """The value, or one that says why there is none."""
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
        except Exception as error:  # whatever a codec raises; its words may quote what it was given
            return _told(f"the codec that is here cannot read it ({type(error).__name__})")
        return raw


class SafeCodec:
    """An application's codec for people at a prompt: whatever it raises becomes a sentence. A worker goes without:
    there a codec that fails costs an attempt, and may do better in the next one."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    @classmethod
    def around(cls, payloads: Payloads) -> None:
        """Let these payloads pass through it, if they pass through a codec at all."""
        if payloads._codec is not None and not isinstance(payloads._codec, cls):
            payloads._codec = cls(payloads._codec)

    def encode(self, data: bytes, /) -> bytes:
        """What the codec makes of it."""
        try:
            return self._codec.encode(data)
        except PayloadError:
            raise
        except Exception as error:  # its words may quote what it was given
            raise PayloadError(f"the application's codec cannot encode a payload ({type(error).__name__})") from None

    def decode(self, data: bytes, /) -> bytes:
        """What the codec makes of it."""
        try:
            return self._codec.decode(data)
        except PayloadError:
            raise
        except Exception as error:
            raise PayloadError(
                f"the application's codec cannot read what is stored ({type(error).__name__}); is its key the one that "
                "it was stored with?"
            ) from None


def _told(why: str) -> bytes:
    return msgspec.json.encode({"type": "Sealed", "message": why})
