"""The file llms.txt of the site: its title, a sentence, and the pages with a sentence each.

https://llmstxt.org describes the form. The links lead to the Markdown of the pages, which lies
beside their HTML.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from tests.site.navigation import Navigation, heading

_LINK = re.compile(r"!?\[([^\]]+)\]\([^)]*\)")
_TAG = re.compile(r"(`[^`]*`)|</?\w[^>]*>")  # outside of code
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_FENCED = re.compile(r"^```.*?^```\s*$", re.DOTALL | re.MULTILINE)
_NO_PROSE = re.compile(r"^(#|\||!|>|```|[-*+] |\d+\. |:?---)")
_SENTENCE = re.compile(r"(.+?[.?!])(?=\s|$)")


def text(found: Navigation, read: Callable[[str], str]) -> str:
    """Return the text; `read` returns the Markdown of a page."""
    return "\n".join([f"# {found.name}", "", f"> {found.description}", *_lists(found, read)]) + "\n"


def _lists(found: Navigation, read: Callable[[str], str]) -> Iterator[str]:
    section: tuple[str, ...] | None = None
    for place in found.places:
        if place.sections != section:
            section = place.sections
            yield from ("", f"## {': '.join(section) or 'Start'}", "")
        markdown = read(place.path)
        title = place.title or heading(markdown)
        said = sentence(markdown)
        yield f"- [{title}]({place.path})" + (f": {said}" if said else "")


def sentence(markdown: str) -> str:
    """Return the first sentence of a page as plain text; empty if it has no prose."""
    plain = _FENCED.sub("", _COMMENT.sub("", markdown))
    for paragraph in re.split(r"\n\s*\n", plain):
        if paragraph.strip() and not _NO_PROSE.match(paragraph.strip()):
            words = " ".join(_TAG.sub(r"\1", _LINK.sub(r"\1", paragraph)).split())
            first = _SENTENCE.match(words)
            return words if first is None else first[1]
    return ""
