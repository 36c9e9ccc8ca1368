"""Payloads: values to JSON text and back, typed by annotation. Never pickle.

What cannot make the round trip exactly is refused with its path, alike for every database: NaN and infinity,
lone surrogates, objects of unknown types, too deep, too large. NUL characters and integers of any size are kept.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import logging
import re
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from ..errors import InvalidInput, PayloadError
from ..settings import FORMAT, FORMAT_CODEC, Settings
from .payload_check import Rule, find_not_finite, find_unfit, model_is_open, model_keys, rule_for, unreadable
from .stored import read_json

_ATOMS = frozenset({type(None), bool, int, str})
"""Types that come back from JSON just as they went in, so that the live value needs no decoding."""
_INTEGER_DIGITS = 4300
"""Python, and msgspec with it, reads no longer integers than this."""
_LONG_INTEGER = re.compile(rb"-\d{%d}|\d{%d}" % (_INTEGER_DIGITS, _INTEGER_DIGITS + 1))
_DIGITS, _EVERY = bytes(i in b"0123456789" for i in range(256)), 512
_LONG_RUN = b"\x01" * (_INTEGER_DIGITS // _EVERY)
"""For seeing quickly that there are not so many digits in a row, not even in a string: among every 512th byte there
would be eight in a row."""


class Codec(Protocol):
    """One hook through which every stored payload passes: encryption, compression."""

    def encode(self, data: bytes, /) -> bytes:
        """From plain JSON to what is stored."""
        ...

    def decode(self, data: bytes, /) -> bytes:
        """From what is stored to plain JSON."""
        ...


class Payloads:
    """Encodes and decodes for one application, with its codec and limits."""

    def __init__(self, settings: Settings, codec: Codec | None = None, logger: logging.Logger | None = None) -> None:
        self.settings = settings
        self._codec = codec
        self.stand_in: Codec | None = None
        """What reads payloads of a codec that is not here, for readers; nothing is written through it."""
        self._logger = logger
        self._encode = msgspec.json.Encoder(enc_hook=_to_json).encode
        self._decoders: dict[Any, Callable[[bytes | str], Any]] = {}
        self._rules: dict[Any, Rule | None] = {}
        self.format = FORMAT if codec is None else FORMAT_CODEC
        self._harmless = min(settings.max_depth, settings.warn_payload, settings.max_payload)
        """JSON of this many bytes is within every limit."""
        self._harmless_arguments = min(self._harmless, settings.argument_bytes)

    def encode(self, value: Any, what: object) -> str:
        """JSON text of ``value``. ``what`` names it in errors, and is only then asked for its name."""
        raw = self._to_raw(value, what)
        if type(value) not in _ATOMS:
            _check_json(raw, what)
        return raw.decode() if self._codec is None else self._wrap(raw)

    def encode_arguments(self, value: Any, replace: Callable[[str], str] | None = None) -> str:
        """JSON text of the arguments of a call, for the activity log. Of large ones the size and a digest are kept
        (setting ``argument_bytes``). ``replace`` changes the text before it is stored."""
        plain = type(value) is dict and _ATOMS.issuperset(map(type, value.values()))
        if plain and replace is None and self._codec is None:
            try:
                raw = self._encode(value)
            except Exception:  # refused below, with its path
                pass
            else:
                if len(raw) <= self._harmless_arguments:
                    return raw.decode()
        raw = self._to_raw(value, "arguments", self.settings.argument_bytes)
        if not plain:
            _check_json(raw, "arguments")
        return self._wrap(raw if replace is None else replace(raw.decode()).encode())

    def encode_own(self, value: Any) -> str:
        """JSON text of what the engine itself writes, which is bounded where it is made: no limit applies."""
        return self._wrap(self._encode(value))

    def round_trip(self, value: Any, type_: Any, what: object) -> tuple[str, Any]:
        """The stored text, and the value as it will be read back: what a caller gets live and replayed."""
        kind = type(value)
        if kind in _ATOMS and (type_ is Any or type_ is kind):
            try:
                raw = self._encode(value)
            except Exception:  # refused below, with its path
                pass
            else:
                if len(raw) <= self._harmless and self._codec is None:
                    return raw.decode(), value
            return self._wrap(self._to_raw(value, what)), value
        raw = self._to_raw(value, what)
        try:
            read = self._decoder(type_)(raw)
        except msgspec.ValidationError as error:
            raise PayloadError(f"{what} does not fit its annotation: {error}") from None
        except (msgspec.DecodeError, UnicodeError) as error:
            raise _no_json(what, error) from None
        rule = None if type_ is Any else self._rule(type_)
        if rule is not None:
            problem = rule.problem(value, "$", False)
            if problem is not None:
                raise PayloadError(f"{what} does not fit its annotation: {problem}")
        return self._wrap(raw), read

    def bare(self, value: Any, what: object) -> str:
        """JSON text that does not pass through the codec, for readers elsewhere."""
        raw = self._to_raw(value, what)
        _check_json(raw, what)
        return raw.decode()

    def take_over(self, text: str, type_: Any = Any, what: str = "a payload") -> str:
        """The stored text of JSON of another program; refused if it does not fit its annotation or the limits."""
        raw = text.encode()
        if len(raw) > self._harmless:
            self._check_limits(raw, what)
        if type_ is not Any:
            self.take_in(text, type_, FORMAT, what)
        return self._wrap(raw)

    def check_input(self, value: Any, type_: Any, workflow: str) -> str:
        """The stored text of a run's input, refused if it does not fit the annotation."""
        what = f"the input of {workflow!r}"
        raw = self._to_raw(value, what)
        if type_ is Any:
            _check_json(raw, what)
        else:
            try:
                self._decoder(type_)(raw)
            except msgspec.ValidationError as error:
                raise InvalidInput(f"{what} does not fit: {error}") from None
            except (msgspec.DecodeError, UnicodeError) as error:
                raise _no_json(what, error) from None
            rule = self._rule(type_)
            problem = None if rule is None else rule.problem(value, "$", True)
            if problem is not None:
                raise InvalidInput(f"{what} does not fit: {problem}")
        return self._wrap(raw)

    def take_in(self, text: str, type_: Any, format_: int, what: str) -> Any:
        """The value behind a text that comes from outside: refused if something of it would be lost."""
        value = self.decode(text, type_, format_, what)
        rule = None if type_ is Any else self._rule(type_)
        problem = None if rule is None else rule.problem(self.plain(text, format_, what), "$", True)
        if problem is not None:
            raise PayloadError(f"{what} does not fit its annotation: {problem}")
        return value

    def decode(self, text: str, type_: Any, format_: int, what: str) -> Any:
        """The value behind a stored text. Fields that the annotation does not know are passed over: the code may have
        been changed since."""
        raw = self._unwrap(text, format_, what)
        try:
            return self._decoder(type_)(raw)
        except msgspec.ValidationError as error:
            raise PayloadError(f"{what} does not fit its annotation: {error}") from None
        except (msgspec.DecodeError, UnicodeError) as error:
            raise PayloadError(f"{what} is not readable JSON: {error}") from None
        except RecursionError:
            raise PayloadError(f"{what} is not readable JSON: it is nested too deeply") from None

    def plain(self, text: str | None, format_: int, what: str) -> Any:
        """The value behind a stored text, read without a type, for lists and logs; None stays None."""
        return None if text is None else self.decode(text, Any, format_, what)

    def shown(self, text: str | None, format_: int, what: str) -> Any:
        """The value behind a stored text, for people. One that cannot be read, because a hand or another codec wrote
        it, is shown as the reason: it must not keep the rest from being read. Where no codec is here, that is raised:
        the caller has to pass one."""
        try:
            return self.plain(text, format_, what)
        except PayloadError as error:
            if format_ == FORMAT_CODEC and (self._codec or self.stand_in) is None:
                raise
            return f"(cannot be read: {error})"
        except Exception as error:  # any error of a codec; its words may quote what it was given
            return f"(cannot be read: {type(error).__name__})"

    def text(self, text: str, format_: int, what: str) -> str:
        """The JSON behind a stored text, as it was written: digits of numbers and the order of fields are kept."""
        raw = self._unwrap(text, format_, what)
        return raw if isinstance(raw, str) else raw.decode()

    # -- one direction ---------------------------------------------------------------------------------------

    def _to_raw(self, value: Any, what: object, most: int | None = None) -> bytes:
        """JSON of ``value``. If it has more than ``most`` bytes, its largest members are replaced by digests."""
        try:
            raw = self._encode(value)
        except RecursionError:
            raise PayloadError(f"{what} is nested too deeply, or contains itself") from None
        except Exception as error:
            path, reason = _locate(value, error)
            raise PayloadError(f"{what} cannot be stored as JSON: {reason} - at `{path}`") from None
        if most is not None and len(raw) > most:
            raw = _shortened(raw, most, what)
        if len(raw) > self._harmless:
            self._check_limits(raw, what)
        if type(value) not in _ATOMS and b"null" in raw:
            self._refuse_nan(value, what)
        return raw

    def _wrap(self, raw: bytes) -> str:
        if self._codec is None:
            return raw.decode()
        return base64.b64encode(self._codec.encode(raw)).decode("ascii")

    def _check_limits(self, raw: bytes, what: object) -> None:
        size, limits = len(raw), self.settings
        if size > limits.warn_payload:
            if size > limits.max_payload:
                raise PayloadError(
                    f"{what} has {size:,} bytes of JSON; the limit is {limits.max_payload:,} (setting max_payload). "
                    "Keep large data elsewhere and pass its address"
                )
            if self._logger is not None:
                ids = getattr(what, "ids", None)  # what belongs to a run says to which
                self._logger.warning("%s is large: %d bytes of JSON", what, size, extra=ids)
        if raw.startswith(b'"'):
            return  # all of it is one string
        openings = sum(raw.count(bracket) for bracket in (b"[", b"{") if raw.find(bracket, 1) > 0)  # quicker if none
        if openings > limits.max_depth and is_deeper(raw, limits.max_depth):
            raise PayloadError(f"{what} is nested deeper than {limits.max_depth} levels (setting max_depth)")
        sampled = raw[::_EVERY].translate(_DIGITS)
        if _LONG_RUN in sampled and _LONG_INTEGER.search(_STRING.sub(b"", raw)):
            raise PayloadError(
                f"{what} cannot be stored as JSON: it has an integer of {_INTEGER_DIGITS} digits or more, "
                "which cannot be read back"
            )

    def _refuse_nan(self, value: Any, what: object) -> None:
        # The encoder writes NaN and infinity as null, which would silently come back as None.
        found = find_not_finite(value, _plain)
        if found is not None:
            path, number = found
            raise PayloadError(f"{what} cannot be stored as JSON: {number!r} is not a JSON number - at `{path}`")

    # -- the other -------------------------------------------------------------------------------------------

    def _unwrap(self, text: str, format_: int, what: str) -> bytes | str:
        if format_ == FORMAT:
            return text
        if format_ != FORMAT_CODEC:
            raise PayloadError(f"{what} has format {format_}, which is newer than this code: update Stepfast here")
        codec = self._codec or self.stand_in
        if codec is None:
            raise PayloadError(f"{what} was stored through a codec; pass the same one as Stepfast(codec=…)")
        return codec.decode(base64.b64decode(text))

    def _decoder(self, type_: Any) -> Callable[[bytes | str], Any]:
        try:
            return self._decoders[type_]
        except (KeyError, TypeError):
            decode = msgspec.json.Decoder(type_, dec_hook=_from_json).decode
            try:
                self._decoders[type_] = decode
            except TypeError:  # an unhashable annotation; rare, and only slower
                pass
            return decode

    def _rule(self, type_: Any) -> Rule | None:
        try:
            return self._rules[type_]
        except KeyError:
            rule = self._rules[type_] = rule_for(type_)
            return rule
        except TypeError:  # an unhashable annotation; rare, and only slower
            return rule_for(type_)


def check_type(type_: Any, what: str) -> None:
    """Refuse an annotation that payloads cannot be typed by, when the code is registered rather than later."""
    try:
        msgspec.json.Decoder(type_, dec_hook=_from_json)
        unknown = unreadable(type_)
    except TypeError as error:
        raise InvalidInput(f"{what} has an annotation that cannot be read from JSON: {error}") from None
    if unknown is not None:
        raise InvalidInput(
            f"{what} has an annotation that cannot be read from JSON: {unknown}. Annotate it with a dataclass, a "
            "TypedDict, a msgspec Struct, a pydantic model or plain JSON types; or with Any, to get plain JSON"
        )


def json_schema(type_: Any) -> str | None:
    """The JSON schema of an annotation, as text; None if it has none."""
    if type_ is Any:
        return None
    try:
        return msgspec.json.encode(
            _say_additional(msgspec.json.schema(type_, schema_hook=_schema_hook), False)
        ).decode()
    except (TypeError, NotImplementedError):
        return None


def is_deeper(raw: bytes, limit: int) -> bool:
    """Whether the arrays and objects of a JSON text are nested deeper than that. One pass at any depth."""
    brackets = _STRING.sub(b"", raw).translate(_STEPS, _NO_BRACKETS)
    if limit == 0:
        return bool(brackets)
    inner = brackets.replace(_LEAF, b"")  # most of them, as a rule, and quickly gone
    return any(map((limit - 1).__lt__, itertools.accumulate(memoryview(inner).cast("b"))))


_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_LEAF = b"\x01\xff"
_STEPS = bytes.maketrans(b"[]{}", _LEAF * 2)
"""An opening bracket as the signed byte 1, a closing one as -1: their running sum is the depth."""
_NO_BRACKETS = bytes(i for i in range(256) if i not in b"[]{}")


def _to_json(value: Any) -> Any:
    """For what msgspec does not know: pydantic models, where pydantic is installed."""
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return dump(mode="json")
    raise TypeError(f"objects of type {type(value).__qualname__} are not supported")


_skim = msgspec.json.Decoder(msgspec.Raw).decode
"""Reads JSON without making anything of it."""


def _check_json(raw: bytes, what: object) -> None:
    """Refuse what is no JSON: a ``msgspec.Raw`` in a value is written as it is."""
    try:
        _skim(raw)
        raw.decode()
    except (msgspec.DecodeError, UnicodeError) as error:
        raise _no_json(what, error) from None


_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_SMALL = 128
"""Bytes up to which a member stays as it is: a digest is hardly shorter."""


def _shortened(raw: bytes, most: int, what: object) -> bytes:
    """A JSON object in which the largest members are digests, as many of them as it takes for ``most`` bytes. Of other
    JSON the digest."""
    if not raw.startswith(b"{"):
        return _digest(raw)
    try:
        members = _members(raw)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise _no_json(what, error) from None
    left = len(raw)
    for name in sorted(members, key=lambda name: len(members[name]), reverse=True):
        if left <= most or len(members[name]) <= _SMALL:
            break
        before, members[name] = members[name], msgspec.Raw(_digest(members[name]))
        left -= len(before) - len(members[name])
    return msgspec.json.encode(members)


def _digest(raw: bytes | msgspec.Raw) -> bytes:
    """What is kept of a JSON text in its place."""
    return b'{"bytes":%d,"sha256":"%b"}' % (len(raw), hashlib.sha256(raw).hexdigest().encode())


def same_arguments(one: str, other: str) -> bool:
    """Whether two JSON texts are of the same arguments, whichever of them are digests."""
    if one == other:
        return True
    try:
        ours, theirs = _members(one), _members(other)
    except (msgspec.DecodeError, UnicodeError):
        return False
    return ours.keys() == theirs.keys() and all(map(_is_same, ours.values(), map(theirs.__getitem__, ours)))


def _is_same(one: bytes | msgspec.Raw, other: bytes | msgspec.Raw) -> bool:
    one, other = bytes(one), bytes(other)
    return one == other or one == _digest(other) or _digest(one) == other


def _no_json(what: object, error: Exception) -> PayloadError:
    return PayloadError(f"{what} cannot be stored as JSON: a msgspec.Raw in it is none ({error})")


def _plain(value: Any) -> Any:
    """The value as dicts, lists and atoms."""
    if type(value) is msgspec.Raw:
        return read_json(bytes(value), object, None)
    return msgspec.to_builtins(value, enc_hook=_to_json)


def _from_json(type_: Any, value: Any) -> Any:
    if type_ is object:  # as an annotation it means anything
        return value
    validate = getattr(type_, "model_validate", None)
    if validate is None:
        raise TypeError(f"objects of type {getattr(type_, '__qualname__', type_)} are not supported")
    try:
        return validate(value)
    except ValueError as error:  # pydantic's ValidationError is one
        details = getattr(error, "errors", None)
        if details is None:
            raise
        first = details()[0]
        path = "".join(f".{part}" if isinstance(part, str) else f"[{part}]" for part in first["loc"])
        raise ValueError(f"{first['msg']} ({type_.__name__}{path})") from None


def _schema_hook(type_: Any) -> dict[str, Any]:
    if type_ is object:
        return {"title": "anything"}
    schema = getattr(type_, "model_json_schema", None)
    if schema is None:
        raise NotImplementedError
    result: dict[str, Any] = _say_additional(schema(), True)
    if not model_is_open(type_) and result.get("properties", {}).keys() == set(model_keys(type_)):
        result["additionalProperties"] = False
    return result


def _say_additional(schema: Any, allowed: bool) -> Any:
    """The schema, where every object says whether it takes fields that it does not name."""
    if isinstance(schema, dict):
        if "properties" in schema and schema.get("type") == "object":
            schema.setdefault("additionalProperties", allowed)
        for part in schema.values():
            _say_additional(part, allowed)
    elif isinstance(schema, list):
        for part in schema:
            _say_additional(part, allowed)
    return schema


def _locate(value: Any, error: Exception) -> tuple[str, str]:
    """The first part of ``value`` that alone cannot be encoded, and why."""
    found = find_unfit(value, lambda part: msgspec.json.encode(part, enc_hook=_to_json))
    path, reason = ("$", error) if found is None else found
    if isinstance(reason, UnicodeEncodeError):
        return path, "a lone surrogate is not a character"
    return path, str(reason)
