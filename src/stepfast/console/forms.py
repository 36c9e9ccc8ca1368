"""The bodies of forms: bounded, urlencoded, read without a library."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request

from .refusals import Refused

MOST_BYTES = 1_000_000
MOST_FIELDS = 200
PATIENCE = 10.0
"""Seconds that a form may take to come."""
_KIND = "application/x-www-form-urlencoded"


class Form(dict[str, str]):
    """The fields of a form; of one that is given twice, the last."""

    def required(self, name: str) -> str:
        """A field that must be there, and not be empty."""
        value = self.get(name, "")
        if not value:
            raise Refused(400, f"the form has no {name!r}")
        return value

    def optional(self, name: str) -> str | None:
        """A field that may be left empty."""
        return self.get(name) or None


async def read_form(request: Request) -> Form:
    """The form that came with a request; an empty body is an empty form."""
    raw = await _body(request)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if raw and kind != _KIND:
        raise Refused(415, f"a form must come as {_KIND}")
    try:
        pairs = parse_qsl(
            raw.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS, encoding="utf-8", errors="strict"
        )
    except ValueError:  # too many fields, or no UTF-8
        raise Refused(400, "the form cannot be read: it must be urlencoded UTF-8") from None
    refuse_nul(text for pair in pairs for text in pair)
    return Form({name: value.replace("\r\n", "\n") for name, value in pairs})  # as browsers send the ends of lines


def refuse_nul(texts: Iterable[str]) -> None:
    """Refuse a NUL character, in a form or an address: Postgres can neither hold one nor compare with it."""
    if any("\0" in text for text in texts):
        raise Refused(400, "there is a NUL character in this, which no database can hold")


async def _body(request: Request) -> bytes:
    """No more than is allowed is kept, whatever the length was said to be, and nobody is waited for without end."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(PATIENCE):
            async for part in request.stream():
                size += len(part)
                if size > MOST_BYTES:
                    raise Refused(413, f"a form may have {MOST_BYTES:,} bytes")
                parts.append(part)
    except TimeoutError:
        raise Refused(408, f"the form did not come to its end within {PATIENCE:g} s") from None
    except ClientDisconnect:
        raise Refused(400, "the form did not come to its end") from None
    return b"".join(parts)
