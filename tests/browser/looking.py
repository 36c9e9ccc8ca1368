"""A page in a browser, and what is wrong with it: errors of scripts, refusals of the content security policy, text that
cannot be read, parts that hang over the edge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from playwright.async_api import Page
    from playwright.async_api import expect as expect
else:

    def expect(*shown: Any) -> Any:
        """Playwright's own, which is imported when it is used."""
        from playwright.async_api import expect

        return expect(*shown)


# Every piece of text that is seen, with the contrast of its colour to what lies behind it, by the formula of WCAG 2.
_CONTRASTS = """
() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const known = new Map();
  const parse = (text) => known.get(text) ?? (known.set(text, measure(text)), known.get(text));
  const measure = (text) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = "#000"; canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour[3] > 0) layers.push(colour);
      if (colour[3] === 1) break;
    }
    const dark = getComputedStyle(document.documentElement).colorScheme.includes("dark")
      && matchMedia("(prefers-color-scheme: dark)").matches;
    return layers.reduceRight((below, top) => over(top, below), dark ? [18, 18, 18, 1] : [255, 255, 255, 1]);
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement, text = node.textContent.trim();
    if (!text || !element.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
    if (["TITLE", "STYLE", "SCRIPT", "OPTION", "DESC"].includes(element.tagName.toUpperCase())) continue;
    const style = getComputedStyle(element), drawn = element.closest("svg") !== null;
    const below = behind(element), colour = over(parse(drawn ? style.fill : style.color), below);
    const [high, low] = [light(colour), light(below)].sort((a, b) => b - a);
    const size = parseFloat(style.fontSize), large = size >= 24 || size >= 18.66 && style.fontWeight >= 700;
    found.push([text.slice(0, 40), (high + 0.05) / (low + 0.05), large]);
  }
  return found;
}
"""


class Contrast(NamedTuple):
    """How well a piece of text can be read."""

    text: str
    ratio: float
    large: bool

    @property
    def enough(self) -> bool:
        """By level AA: 4.5, and 3 for large letters."""
        return self.ratio >= (3.0 if self.large else 4.5)


async def contrasts(page: Page) -> list[Contrast]:
    return [Contrast(*found) for found in await page.evaluate(_CONTRASTS)]


async def shown_twice(page: Page) -> int:
    """How many heads of tables are seen although each line says by itself what its parts are."""
    seen = "(head) => head.getBoundingClientRect().width > 1 && getComputedStyle(head).clipPath === 'none'"
    return int(await page.evaluate(f"[...document.querySelectorAll('.list thead')].filter({seen}).length"))


_CUT = """
() => [...document.querySelectorAll("select")].flatMap((select) => [...select.options].map((option) => {
  select.value = option.value;
  const pen = document.createElement("canvas").getContext("2d");
  const style = getComputedStyle(select);
  pen.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  const arrow = 14;
  const room = select.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight) - arrow;
  return pen.measureText(option.text).width <= room ? null : `${select.name}: ${option.text}`;
})).filter((cut) => cut !== null)
"""


async def cut_options(page: Page) -> list[str]:
    """The options of selectors that cannot be read whole when they are chosen."""
    return list(await page.evaluate(_CUT))


async def overhang(page: Page) -> int:
    """By how many pixels the page is wider than the window."""
    return int(await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


class Complaints:
    """What a browser says while pages are open: errors of scripts, of the network, and of the security policy."""

    def __init__(self, page: Page) -> None:
        self.found: list[str] = []
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.found.append(f"error: {error}"))
        page.on("requestfailed", self._lost)

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.found.append(f"{message.type}: {message.text}")

    def _lost(self, request: Any) -> None:
        if "ERR_ABORTED" not in (request.failure or ""):  # a page that was left while it loaded
            self.found.append(f"lost: {request.url} {request.failure}")
