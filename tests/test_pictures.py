"""Goal: the drawings and the pictures of terminals are safe, load nothing, and are shown.

Method: each SVG of docs/images is parsed, and its elements, attributes and styles are looked at.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from tests.browser.terminal import COMMANDS, as_svg
from tests.documents import documents
from tests.drawings import DRAWINGS
from tests.house import ROOT

IMAGES = ROOT / "docs/images"
NAMESPACE = "{http://www.w3.org/2000/svg}"
TERMINALS = [f"terminal-{name}.svg" for name in COMMANDS]
EACH = pytest.mark.parametrize("name", [*DRAWINGS, *TERMINALS])
_ELSEWHERE = re.compile(r"https?:|//|url\((?!#)|@import|@font-face")


def faults(text: str) -> list[str]:
    """What an SVG has that would run, or that would be loaded."""
    found: list[str] = []
    for element in ElementTree.fromstring(text).iter():
        name = element.tag.removeprefix(NAMESPACE)
        if name in ("script", "foreignObject", "image", "a", "iframe"):
            found.append(name)
        for attribute, value in element.attrib.items():
            is_code = attribute.startswith("on") or "href" in attribute
            if is_code or _ELSEWHERE.search(value):
                found.append(attribute)
        if name == "style":
            found += _ELSEWHERE.findall(element.text or "")
    return found


@EACH
def test_a_picture_holds_no_script_and_names_nothing_outside(name):
    assert (IMAGES / name).exists(), "run: make screenshots"
    text = (IMAGES / name).read_text()
    assert faults(text) == []
    assert text.count("http") == text.count('xmlns="http://www.w3.org/2000/svg"')
    assert len(text) < 200_000


@EACH
def test_a_picture_is_shown_in_a_document(name):
    assert any(f"images/{name})" in document.text for document in documents())


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_has_colours_for_dark_and_words_for_readers_of_the_screen(name):
    root = ElementTree.fromstring((IMAGES / name).read_text())
    style = root.find(f"{NAMESPACE}style")
    assert style is not None and "prefers-color-scheme: dark" in (style.text or "")
    for kind in ("title", "desc"):
        words = root.find(f"{NAMESPACE}{kind}")
        assert words is not None and words.text


@pytest.mark.parametrize("name", COMMANDS)
def test_a_picture_of_a_terminal_shows_its_command(name):
    text = (IMAGES / f"terminal-{name}.svg").read_text()
    assert f"gateway&#160;{COMMANDS[name].words[0]}" in text or f"gateway {name}" in text


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("<svg><script>1</script></svg>", "script"),
        ('<svg><rect onclick="x()"/></svg>', "onclick"),
        ('<svg><use href="http://a/b"/></svg>', "href"),
        ('<svg><rect fill="url(http://a/b)"/></svg>', "fill"),
        ("<svg><style>@import 'a.css';</style></svg>", "@import"),
        ("<svg><style>a { src: url('f.woff') }</style></svg>", "url("),
    ],
)
def test_a_planted_fault_of_a_picture_is_found(text, fault):
    assert fault in faults(text.replace("<svg>", f'<svg xmlns="{NAMESPACE[1:-1]}">'))


def test_text_of_a_terminal_keeps_colours_and_runs_nothing():
    link = "\x1b]8;;http://a/b\x1b\\link\x1b]8;;\x1b\\"
    hostile = f"\x1b[31mred\x1b[0m <script>alert(1)</script> ]]> {link}"
    text = as_svg(hostile, "a & b", 80, "planted")
    assert faults(text) == []
    assert "red" in text and "alert" in text and "#cc555a" in text
