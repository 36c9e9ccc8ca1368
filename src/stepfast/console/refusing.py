"""Refusals as answers: a bare page, or JSON. They need no template, for they are also given to strangers."""

from __future__ import annotations

import html

from starlette.requests import Request
from starlette.responses import Response

from .answers import json_response
from .paths import base_of
from .refusals import Refused
from .rendering import plain
from .visit import wants_json

_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{status} · Stepfast</title>{style}</head>
<body class="refused"><main><h1>{status}</h1><p>{sentence}</p><p><a href="{base}/">The console</a></p></main></body>
</html>
"""


def response(request: Request, refused: Refused) -> Response:
    """The answer to a request that was refused. What it asked for is not repeated."""
    if wants_json(request):
        return json_response({"error": refused.sentence}, refused.status, refused.headers)
    base = html.escape(base_of(request.scope))
    # Strangers would be refused the style sheet too.
    style = "" if refused.status == 401 else f'<link rel="stylesheet" href="{base}/static/console.css">'
    sentence = html.escape(str(plain(refused.sentence)))
    page = _PAGE.format(status=refused.status, sentence=sentence, base=base, style=style)
    return Response(
        page.encode("utf-8", "backslashreplace"), refused.status, refused.headers,
        media_type="text/html; charset=utf-8",
    )  # fmt: skip
