"""The navigation of the site, read from compose/docs/mkdocs.yml."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import yaml

from tests.house import ROOT

CONFIG = ROOT / "compose/docs/mkdocs.yml"
_HEADING = re.compile(r"^# +(.+?)\s*$", re.MULTILINE)


class Place(NamedTuple):
    """A page in the navigation."""

    sections: tuple[str, ...]  # titles from the top, none for a page at the top
    title: str  # empty: the first heading of the page
    path: str  # of the Markdown file, relative to the pages


class Navigation(NamedTuple):
    """What the configuration names."""

    name: str
    description: str
    places: Sequence[Place]
    left_out: Sequence[str]  # patterns of pages that are in no menu


def navigation(text: str | None = None) -> Navigation:
    """Read a configuration, that of the tree by default."""
    found = yaml.safe_load(CONFIG.read_text() if text is None else text)
    return Navigation(
        found["site_name"],
        " ".join(found["site_description"].split()),
        list(_places(found["nav"], ())),
        found.get("not_in_nav", "").split(),
    )


def _places(items: Sequence[Any], sections: tuple[str, ...]) -> Iterator[Place]:
    for item in items:
        if isinstance(item, str):
            yield Place(sections, "", item)
            continue
        ((title, value),) = item.items()
        if isinstance(value, str):
            yield Place(sections, title, value)
        else:
            yield from _places(value, (*sections, title))


def faults(found: Navigation, pages: Collection[str]) -> Iterator[str]:
    """Return what is wrong with the navigation of these pages."""
    config = CONFIG.relative_to(ROOT)
    named = Counter(place.path for place in found.places)
    for path, count in named.items():
        if path not in pages:
            yield f"{config}: {path} is in the navigation and does not exist"
        if count > 1:
            yield f"{config}: {path} is in the navigation {count} times"
    for path in sorted(pages):
        if path not in named and not any(fnmatchcase(path, each) for each in found.left_out):
            yield f"{config}: {path} is neither in nav nor in not_in_nav"
    for pattern in found.left_out:
        if not any(fnmatchcase(path, pattern) for path in pages):
            yield f"{config}: no page is {pattern}, which not_in_nav has"


def heading(markdown: str) -> str:
    """Return the first heading of a page as plain text; empty if it has none."""
    found = _HEADING.search(markdown)
    return "" if found is None else found[1].replace("`", "")
