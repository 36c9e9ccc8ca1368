"""Values that try to be more than text: in HTML, attributes, addresses, headers, templates, scripts, SQL, screens."""

from __future__ import annotations

HOSTILE = [
    "<script>alert(1)</script>", "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>", "<svg/onload=alert`1`>", "</svg><script>alert(1)</script>",
    "</title><script>alert(1)</script>", "</textarea><script>alert(1)</script>",
    "</pre></code></td></tr></table><h1>mine</h1>", "</select></form><form action=//evil.example>",
    "</style><style>*{display:none}</style>", "<style>@import '//evil.example/x.css';</style>",
    "<iframe src=javascript:alert(1)></iframe>", "<object data=data:text/html,x></object>",
    "<embed src=//evil.example>", "<base href=//evil.example/>",
    "<meta http-equiv=refresh content=0;url=//evil.example>", "<link rel=stylesheet href=//evil.example/x.css>",
    "<a href=javascript:alert(1)>click</a>", "<form action=//evil.example><input name=token>",
    "<math><mtext></p><img src=x onerror=alert(1)>", "<template><script>alert(1)</script></template>",
    "<details open ontoggle=alert(1)>", "<body onload=alert(1)>", "<!-- ", "-->", "<![CDATA[",
    "]]><script>alert(1)</script>", "<?xml version='1.0'?>", "<!DOCTYPE html [<!ENTITY x 'y'>]>",
    '" onmouseover="alert(1)', "' onmouseover='alert(1)", '"><script>alert(1)</script>', "'><script>alert(1)</script>",
    "` onmouseover=`alert(1)", '" autofocus onfocus="alert(1)" x="', "x style=display:none",
    '" data-load="//evil.example', "javascript:alert(1)", "JaVaScRiPt:alert(1)",
    "data:text/html,<script>alert(1)</script>", "vbscript:msgbox(1)", "//evil.example/path", "\\\\evil.example",
    "https://evil.example@host/", "../../etc/passwd", "..%2f..%2fetc%2fpasswd", "%3Cscript%3Ealert(1)%3C/script%3E",
    "&lt;script&gt;alert(1)&lt;/script&gt;", "&#60;script&#62;alert(1)&#60;/script&#62;", "&amp;&quot;&#39;",
    "\\u003cscript\\u003e", "\\x3cscript\\x3e", "{{ 7 * 7 }}", "{% for x in ().__class__.__bases__ %}{% endfor %}",
    "{# comment #}", "${7*7}", "#{7*7}", "<%= 7 * 7 %>", "{{constructor.constructor('alert(1)')()}}", "%s%s%n%x",
    "{0.__class__}", "'; DROP TABLE runs; --", "' OR '1'='1", '" OR 1=1 --', "a\r\nSet-Cookie: x=1",
    "a\nLocation: //evil.example", "a\u2028alert(1)\u2029b", "\u202etxt.exe", "\u2066hidden\u2069",
    "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x08\x08\x08back", "\x7f\x9f", "\ufeffbom",
    "\uff1cscript\uff1ealert(1)\uff1c/script\uff1e", "＜script＞", "Ａ" * 40, "e\u0301" * 30, "👩‍👩‍👧‍👦", "ﷺ" * 10,
    " leading and trailing ", "\ttabs\tand  blanks", "a, b, c", "null", "undefined", "__proto__", "constructor", "NaN",
    "-1", "0x7fffffff", "999999999999999999999999",
]  # fmt: skip
