"""What is checked of the site as it was built: its links, and what it loads from elsewhere."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_ELSEWHERE = re.compile(r"^(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
_IN_CSS = re.compile(r"""(?:url\(\s*|@import\s+)["']?(?!data:)([^"')\s;]+)""")
# Links of a head that load nothing.
_ONLY_NAMED = {"canonical", "next", "prev", "alternate", "edit"}
# Classes for which the script of the theme would load a library from elsewhere.
_LOADING_CLASSES = {"mermaid", "glightbox", "pyodide", "ace_editor"}


class _Page(HTMLParser):
    """The ids, the links and the assets of one page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.assets: list[str] = []
        self.classes: set[str] = set()
        self._style = False  # inside of <style>

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self._style = tag == "style"
        self.classes.update(found.get("class", "").split())
        self.ids.update(found[name] for name in ("id", "name") if name in found)
        self.assets += _IN_CSS.findall(found.get("style", ""))
        if tag == "a":
            self.links += [found["href"]] if "href" in found else []
        elif tag == "link":
            only_named = _ONLY_NAMED.intersection(found.get("rel", "").split())
            (self.links if only_named else self.assets).append(found.get("href", ""))
        else:
            self.assets += [found[name] for name in ("src", "data", "poster") if found.get(name)]
            self.assets += [each.split()[0] for each in found.get("srcset", "").split(",") if each]
            if tag in ("use", "image") and "href" in found:
                self.assets.append(found["href"])

    def handle_endtag(self, tag: str) -> None:
        self._style = False

    def handle_data(self, data: str) -> None:
        if self._style:
            self.assets += _IN_CSS.findall(data)


def faults(site: Path) -> Iterator[str]:
    """Return links that lead nowhere, and what a page would load from another server."""
    pages = {path.relative_to(site).as_posix(): _parsed(path) for path in site.rglob("*.html")}
    for name, page in sorted(pages.items()):
        for asset in page.assets:
            if _ELSEWHERE.match(asset):
                yield f"{name} loads {asset}"
        for found in sorted(_LOADING_CLASSES & page.classes):
            yield f"{name} has the class {found}, for which a script loads a library"
        for target in {*page.links, *page.assets}:
            if not _leads(site, name, target, pages):
                yield f"{name} has a link to {target}, which is not there"
    for path in sorted(site.rglob("*.css")):
        for asset in _IN_CSS.findall(path.read_text()):
            if _ELSEWHERE.match(asset):
                yield f"{path.relative_to(site)} loads {asset}"


def _parsed(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text())
    page.close()
    return page


def _leads(site: Path, name: str, target: str, pages: dict[str, _Page]) -> bool:
    """Return whether a target is on the site, or elsewhere, which is not looked up."""
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return True
    path = unquote(parts.path)
    base = "" if path.startswith("/") else posixpath.dirname(name)
    there = posixpath.normpath(posixpath.join(base, path.lstrip("/"))) if path else name
    if (site / there).is_dir():
        there = posixpath.normpath(posixpath.join(there, "index.html"))
    if not (site / there).exists():
        return False
    fragment = unquote(parts.fragment)
    is_known = there not in pages or not fragment or fragment in pages[there].ids
    return is_known or fragment.startswith("__")  # of the theme's script
