"""Chromium without windows, driven by playwright, and tabs that note everything that goes wrong.

A tab notes errors and warnings of the console, exceptions, violations of the page's policy,
dialogs, requests to any other host, and requests for images.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from playwright.sync_api import Dialog, Page, Request, Response, sync_playwright

from tests.peers import install
from tests.peers.processes import Lifecycle

Theme = Literal["light", "dark"]
Size = tuple[int, int]

DESKTOP: Size = (1280, 800)
PHONE: Size = (390, 844)
NARROWEST: Size = (320, 640)
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22a", "wcag22aa"]
_ARGUMENTS = ["--font-render-hinting=none", "--force-color-profile=srgb", "--disable-gpu"]
_WATCH = """addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`))"""
_WAIT_MS_MAX = 20_000

# What no page of ours has: only text of others could have become it.
FOREIGN = """() => [...document.querySelectorAll(
    "img, iframe, object, embed, base, style, math, meta[http-equiv], main link, [style],"
    + "script:not([src^='/static/'])"
  )].filter((each) => !each.closest(".uplot"))
  .concat([...document.querySelectorAll("*")].filter((each) =>
    [...each.attributes].some(({name, value}) => name.startsWith("on") || name.startsWith("hx-on")
      || /^(?:hx-sse:connect|sse-connect|href|action|src)$/.test(name)
        && !/^[/?#]|^data:,$/.test(value))))
  .map((each) => each.outerHTML.slice(0, 200))"""


@functools.cache
def _axe() -> str:
    return install.axe().read_text()


class Browser(Lifecycle):
    """One Chromium. Its tabs share nothing but the process."""

    def start(self) -> Self:
        self._playwright = sync_playwright().start()
        try:
            self._chromium = self._playwright.chromium.launch(
                executable_path=install.chromium(), args=_ARGUMENTS
            )
        except BaseException:
            self._playwright.stop()
            raise
        return self

    def stop(self) -> None:
        self._chromium.close()
        self._playwright.stop()

    def tab(
        self, origin: str, *, theme: Theme = "light", size: Size = DESKTOP, scripts: bool = True
    ) -> Tab:
        """Return a new tab, for a `with`, with cookies and storage of its own."""
        context = self._chromium.new_context(
            color_scheme=theme,
            viewport={"width": size[0], "height": size[1]},
            java_script_enabled=scripts,
            reduced_motion="reduce",
            locale="en-GB",
            timezone_id="UTC",
        )
        context.set_default_timeout(_WAIT_MS_MAX)
        context.add_init_script(_WATCH)
        return Tab(context.new_page(), origin)


class Tab:
    """One page of a browser at one site, and the problems that it met."""

    def __init__(self, page: Page, origin: str) -> None:
        self.page = page
        self.origin = origin
        self.problems: list[str] = []
        page.on("console", lambda said: self._on_console(said.type, said.text))
        page.on("pageerror", lambda error: self.problems.append(f"exception: {error}"))
        page.on("dialog", self._on_dialog)
        page.on("request", self._on_request)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.page.context.close()

    def open(self, path: str) -> Response:
        """Go to a page, and wait until it and its scripts are loaded."""
        answer = self.page.goto(self.origin + path, wait_until="load")
        assert answer is not None
        return answer

    def resize(self, size: Size) -> None:
        """Change the size of the window, in CSS pixels."""
        self.page.set_viewport_size({"width": size[0], "height": size[1]})

    def violations(self) -> list[str]:
        """Return what axe-core finds against WCAG 2.2 A and AA."""
        self.page.evaluate(f"window.axe || (() => {{ {_axe()} }})()")
        found = self.page.evaluate(
            "(tags) => axe.run(document, {runOnly: {type: 'tag', values: tags},"
            " resultTypes: ['violations']}).then((found) => found.violations)",
            WCAG,
        )
        return [
            f"{each['id']} at {node['target']}: {node['failureSummary']}"
            for each in found
            for node in each["nodes"]
        ]

    def width(self) -> int:
        """Return the width of the whole document, which scrolls sideways if it is wider."""
        return int(self.page.evaluate("document.documentElement.scrollWidth"))

    def foreign(self) -> list[str]:
        """Return the elements that only text of others can have made."""
        return list(self.page.evaluate(FOREIGN))

    def focused(self) -> dict[str, Any]:
        """Return the element with the focus: an index that it keeps, its words, how it is shown."""
        return dict(self.page.evaluate(_FOCUSED))

    def unreached(self) -> list[str]:
        """Return the elements that the Tab key should reach, and that never had the focus."""
        return list(self.page.evaluate(_UNREACHED))

    def _on_console(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.problems.append(f"console: {text}")

    def _on_dialog(self, dialog: Dialog) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith(("data:", f"{self.origin}/")):
            self.problems.append(f"request: {request.url}")
        elif request.resource_type in ("image", "media", "object"):
            self.problems.append(f"request: {urlsplit(request.url).path}")


_FOCUSED = """() => {
  const each = document.activeElement;
  window.walked ||= [];
  if (!window.walked.includes(each)) window.walked.push(each);
  const style = getComputedStyle(each);
  const place = each.getBoundingClientRect();
  return {
    index: window.walked.indexOf(each),
    body: each === document.body,
    words: (each.textContent || each.value || each.name || "").trim().slice(0, 60),
    outlined: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
    shown: place.width > 1 && place.height > 1 && place.bottom > 0 && place.top < innerHeight,
  };
}"""
_UNREACHED = """() => [...document.querySelectorAll(
    "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']"
  )].filter((each) => each.checkVisibility() && !each.disabled
    && !(each.closest("details:not([open])") && !each.matches("summary"))
    && !(window.walked || []).includes(each)).map((each) => each.outerHTML.slice(0, 200))"""
_ASSET = re.compile(r'(?:href|src)="(/static/[^"]+)"')


def assets_of(html: str) -> set[str]:
    """Return the files that a page names."""
    return set(_ASSET.findall(html))
