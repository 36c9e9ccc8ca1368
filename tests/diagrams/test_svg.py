"""Elements: whatever is put into one stays text."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepfast.diagrams.svg import Markup, element, escaped

HOSTILE = [
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "' onload='alert(1)", "]]><x/>",
    "</title></svg><script>", "<!--", "&lt;b&gt;", "&#x3c;b&#x3e;", "javascript:alert(1)", "\x00\x1b[31m\x7f\x9b",
    "\ud800 lone", "\u202egnp.exe", "{{7*7}}${x}", "\ufffe\uffff",
]  # fmt: skip


def test_an_element() -> None:
    made = element("text", "a < b", element("tspan", "c"), x=1.0, text_anchor="end", class_="n", href=None, y=2.25)
    assert made == '<text x="1" text-anchor="end" class="n" y="2.2">a &lt; b<tspan>c</tspan></text>'
    assert element("g") == "<g/>"


def test_templates_leave_it_as_it_is() -> None:
    assert element("g").__html__() == "<g/>"
    assert not hasattr("<g/>", "__html__")


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text(text: str) -> None:
    found = ElementTree.fromstring(element("a", text, element("title", text), href=text, class_=text))
    assert [child.tag for child in found] == ["title"]
    assert set(found.attrib) == {"href", "class"}
    assert found.text == found.findtext("title")


@given(st.text())
def test_any_text_makes_well_formed_xml(text: str) -> None:
    found = ElementTree.fromstring(element("a", text or "x", title=text))
    assert len(found) == 0
    assert set(found.attrib) == {"title"}


def test_escaping_once_is_enough() -> None:
    assert isinstance(escaped("<"), Markup)
    assert element("a", escaped("<")) == "<a>&lt;</a>"
