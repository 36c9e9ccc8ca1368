"""A timeline as SVG: well formed, told to those who cannot see it, and harmless whatever a step is called."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from stepfast.diagrams import Markup, lay_out, standalone, stylesheet, timeline_svg
from tests.drawing.scenes import a_failure, a_run, a_step, an_error, numbered
from tests.drawing.test_markup import HOSTILE

SVG = "{http://www.w3.org/2000/svg}"


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def texts(svg: str) -> list[str]:
    return ["".join(text.itertext()) for text in parsed(svg).iter(f"{SVG}text")]


def drawn(**fields: object) -> Markup:
    steps = numbered([a_step("charge", 1, 3), a_step("mail", 3, 5, kind="call", child="c/1")])
    return timeline_svg(lay_out(a_run(), steps), lambda child: f"/runs/{child}?a=1&b=2")


def test_it_says_what_it_is() -> None:
    root = parsed(drawn())
    assert root.tag == f"{SVG}svg" and root.get("role") == "img"
    assert root.get("aria-label") == root.findtext(f"{SVG}title")
    assert (root.get("aria-label") or "").endswith("of checkout: completed, 2 steps")
    assert root.get("viewBox") == "0 0 1000 138"


def test_names_times_and_links() -> None:
    assert {"checkout", "charge", "mail call", "2 s", "10 s"} <= set(texts(drawn()))
    (link,) = parsed(drawn()).iter(f"{SVG}a")
    assert link.get("href") == "/runs/c/1?a=1&b=2"


def test_without_addresses_there_are_no_links() -> None:
    steps = [a_step("mail", 3, 5, kind="call", child="c1")]
    assert "<a " not in timeline_svg(lay_out(a_run(), steps))


def test_colours_come_from_classes_only() -> None:
    run = a_run(ended=False, status="running")
    steps = numbered([a_step("a", 0, 2, "failed", error=an_error()), a_step("b", 2, None, "waiting", kind="signal")])
    svg = timeline_svg(lay_out(run, steps, [a_failure("a", 0, 1)]))
    assert "style" not in svg and "rgb" not in svg
    assert 'class="sf-bar sf-failed"' in svg and 'class="sf-now"' in svg and "url(#sf-wait-waiting)" in svg


def test_a_long_name_is_cut_and_told_in_full() -> None:
    name = "a name that is far too long for the column that names stand in"
    svg = timeline_svg(lay_out(a_run(), [a_step(name, 0, 1)]))
    assert any(text.endswith("…") and name.startswith(text[:-1]) for text in texts(svg))
    assert any(name in (title.text or "") for title in parsed(svg).iter(f"{SVG}title"))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_change_nothing_but_text(text: str) -> None:
    def tags(word: str) -> list[str]:
        steps = [
            a_step(word, 0, 1, "failed", error=an_error(word, word), kind=word, child=word, detail=word, lost_to=word),
            a_step(word, 1, 2, kind="undo", branch=word),
        ]
        run = a_run(workflow=word, error=an_error(word, word), id=word)
        root = parsed(timeline_svg(lay_out(run, steps, [a_failure(word, 0, 1, error=an_error(word, word))])))
        assert all(not name.startswith("on") for each in root.iter() for name in each.attrib)
        return [each.tag for each in root.iter()]

    assert tags(text) == tags("harmless")


def test_a_file_brings_its_colours_along() -> None:
    text = standalone(drawn())
    style = parsed(text).findtext(f"{SVG}style")
    assert style == stylesheet()
    assert "<" not in stylesheet() and "&" not in stylesheet() and "url(" not in stylesheet()


def test_five_thousand_steps_stay_small() -> None:
    steps = [a_step("fetch", n / 10, n / 10 + 1, branch=f"0.{n}") for n in range(5000)]
    assert len(timeline_svg(lay_out(a_run(600), steps))) < 10_000
    loop = numbered([a_step(f"step {n % 2}", n, n + 1) for n in range(5000)])
    assert len(timeline_svg(lay_out(a_run(5000), loop))) < 600_000
