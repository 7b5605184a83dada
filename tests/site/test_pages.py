"""Goal: the site has every page, no broken link, and loads nothing from another server.

Method: the navigation is compared with the tree; pages are staged and checked from small texts; one
run builds the whole site as `make docs` does.
"""

from __future__ import annotations

import pytest

from tests.house import ROOT, tree_files
from tests.site import built, llms
from tests.site.build import build
from tests.site.navigation import Navigation, Place, faults, heading, navigation
from tests.site.staging import page, places

KNOWN = places(["docs/A.md", "docs/sub/B.md", "docs/images/a.svg", "README.md", "CHANGELOG.md"])
TREE = {*KNOWN, "gateway/a.py", "compose", "compose/b.yaml"}


def staged(text: str, path: str = "docs/A.md", source: str = "") -> str:
    return page(text, path, KNOWN, TREE.__contains__, source).removesuffix("\n")


# the navigation


def test_every_page_is_in_the_navigation_once_or_is_left_out_by_name():
    pages = [place for place in places(tree_files()).values() if place.endswith(".md")]
    assert list(faults(navigation(), pages)) == []


def test_the_list_of_contents_has_every_page_of_the_first_level():
    text = (ROOT / "docs/contents.md").read_text()
    pages = [path.name for path in (ROOT / "docs").glob("*.md") if path.name != "contents.md"]
    assert [name for name in sorted(pages) if f"]({name})" not in text] == []


def planted(*paths: str, left_out: tuple[str, ...] = ()) -> Navigation:
    return Navigation("a", "b.", [Place((), "", path) for path in paths], left_out)


@pytest.mark.parametrize(
    ("found", "pages", "fault"),
    [
        (planted("A.md", "B.md"), ["A.md"], "B.md is in the navigation and does not exist"),
        (planted("A.md"), ["A.md", "C.md"], "C.md is neither in nav nor in not_in_nav"),
        (planted("A.md", "A.md"), ["A.md"], "A.md is in the navigation 2 times"),
        (planted("A.md", left_out=("d/*.md",)), ["A.md"], "no page is d/*.md"),
    ],
)
def test_a_page_that_is_missing_left_out_or_named_twice_is_found(found, pages, fault):
    (line,) = faults(found, pages)
    assert fault in line


def test_sections_may_be_inside_of_sections():
    text = "site_name: a\nsite_description: b\nnav: [A.md, {S: [{T: [B.md, {'C': C.md}]}]}]"
    assert list(navigation(text).places) == [
        Place((), "", "A.md"),
        Place(("S", "T"), "", "B.md"),
        Place(("S", "T"), "C", "C.md"),
    ]


# the pages


@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        ("[b](sub/B.md#x)", "docs/A.md", "[b](sub/B.md#x)"),
        ("[a](../A.md)", "docs/sub/B.md", "[a](../A.md)"),
        ("[r](../README.md#start)", "docs/A.md", "[r](project/README.md#start)"),
        ("[b](docs/sub/B.md)", "README.md", "[b](../sub/B.md)"),
        ("![a](docs/images/a.svg)", "README.md", "![a](../images/a.svg)"),
        ("[c](CHANGELOG.md)", "README.md", "[c](CHANGELOG.md)"),
        ("[`f`](../gateway/a.py)", "docs/A.md", '<span title="gateway/a.py">`f`</span>'),
        ("[k](sub/B.md#kill--9) [k](#kill--9)", "docs/A.md", "[k](sub/B.md#kill-9) [k](#kill-9)"),
        ("[of\ntwo](../README.md)", "docs/A.md", "[of\ntwo](project/README.md)"),
        ("[c](../compose)", "docs/A.md", '<span title="compose">c</span>'),
        ("[x](gone.md)", "docs/A.md", "[x](gone.md)"),
        ("[w](https://example.org/a) [h](#here)", "docs/A.md", None),
    ],
)
def test_links_lead_to_pages_of_the_site(text, path, expected):
    assert staged(text, path) == (expected or text)


def test_links_to_code_lead_to_where_it_is_published():
    found = staged("[`f`](../gateway/a.py)", source="https://example.org/tree/main/")
    assert found == "[`f`](https://example.org/tree/main/gateway/a.py)"


def test_a_block_keeps_its_language_only_and_its_text():
    text = "```sh not run: why\n[a](../gateway/a.py)\n```\n````python not run: b\n```\n````"
    assert staged(text) == "```sh\n[a](../gateway/a.py)\n```\n````python\n```\n````"


# llms.txt


def test_llms_txt_has_each_page_of_the_navigation_with_its_first_sentence():
    found = Navigation(
        "Site", "What it is.", [Place((), "", "A.md"), Place(("S",), "T", "B.md")], ()
    )
    pages = {"A.md": "# `A` page\n\n![x](y)\n\nOne [link](B.md)\nhere. Two.\n", "B.md": "# B\n"}
    assert llms.text(found, pages.__getitem__) == (
        "# Site\n\n> What it is.\n\n## Start\n\n- [A page](A.md): One link here.\n"
        "\n## S\n\n- [T](B.md)\n"
    )


def test_a_sentence_comes_from_prose_only():
    text = "# A\n\n```text\nno. code\n```\n<!-- no. -->\n| no. | a |\n\nYes."
    assert llms.sentence(text) == "Yes."
    assert llms.sentence("`/a/<b>` is <span>it</span>. No.") == "`/a/<b>` is it."
    assert llms.sentence("# A\n\n- a list.") == ""
    assert heading("text\n# A `b`\n# C") == "A b"


# the site as it was built


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('<script src="https://example.org/a.js"></script>', "loads https://example.org/a.js"),
        ('<link rel="stylesheet" href="//example.org/a.css">', "loads //example.org/a.css"),
        ('<img srcset="http://example.org/a.png 2x">', "loads http://example.org/a.png"),
        ('<p style="background: url(http://example.org/a)">', "loads http://example.org/a"),
        ('<style>@import "http://example.org/a";</style>', "loads http://example.org/a"),
        ('<pre class="mermaid"></pre>', "has the class mermaid"),
        ('<a href="gone.html">a</a>', "has a link to gone.html"),
        ('<a href="#gone">a</a>', "has a link to #gone"),
        ('<img src="gone.png">', "has a link to gone.png"),
    ],
)
def test_a_planted_fault_of_the_site_is_found(tmp_path, text, fault):
    (tmp_path / "index.html").write_text(text)
    assert any(fault in line for line in built.faults(tmp_path))


def test_links_to_pages_headings_and_other_sites_are_right(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/index.html").write_text('<h2 id="x">X</h2><a href="../a%20b.html">a</a>')
    (tmp_path / "a b.html").write_text(
        '<a href="sub/#x"></a><a href="https://example.org"></a><link rel="next" href="sub/">'
    )
    assert list(built.faults(tmp_path)) == []


def test_a_style_that_loads_from_elsewhere_is_found(tmp_path):
    (tmp_path / "a.css").write_text("a { src: url(https://example.org/f) } b { src: url(data:x) }")
    assert list(built.faults(tmp_path)) == ["a.css loads https://example.org/f"]


@pytest.mark.process
@pytest.mark.slow
def test_the_site_is_built_without_a_fault(tmp_path):
    assert build(ROOT, tmp_path) == []
    site = tmp_path / "site"
    lines = (site / "llms.txt").read_text().splitlines()
    for line in lines:
        if line.startswith("- ["):
            assert ".md): " in line, f"{line} has no sentence"
    for place in navigation().places:
        assert (site / place.path).exists()
    assert (site / "ARCHITECTURE.html").stat().st_size > 10_000
    assert "<table>" in (site / "errors.html").read_text()
