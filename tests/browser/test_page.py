"""Goal: each page is accessible, needs no script, and runs none of others.

Method: one gateway and one Chromium. Every page of rows.PAGES is opened at its path in EXAMPLES,
and judged by axe-core, by the console and policy of the browser, by the Tab key, and without
scripts. The commit judges two of the four pairs of theme and size of the pages that people open
most, the proof all of all.
"""

from __future__ import annotations

import functools
import gzip
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from gateway.http.rows import PAGES
from tests.browser.browser import DESKTOP, NARROWEST, PHONE, Browser, assets_of
from tests.browser.hostile_text import TEXTS
from tests.browser.rig import EXAMPLES, HOSTILE_EXAMPLES, OF_LOCAL_CLUSTERS, PageRig
from tests.peers.install import ROOT
from tests.sim.seeds import first_at_commit

pytestmark = pytest.mark.process
ALL = [page.name for page in PAGES]
PAGE_BYTES_MAX = 60_000  # of a page and all its files, gzipped
ASSETS_LATER = {"/static/uplot.min.js", "/static/uplot.min.css"}  # which site.js asks for
REFUSED = "console: Failed to load resource: the server responded with a status of 4"
# The commit judges these, and `make proof` each page.
FIRST = ("overview", "topics", "groups", "security", "record")
EACH_PAGE = pytest.mark.parametrize(
    "name", first_at_commit(sorted(ALL, key=lambda name: name not in FIRST), len(FIRST))
)


class Visit:
    """What one tab found at one page. A visit serves several tests: loading costs most."""

    def __init__(self, browser, origin, name):
        with browser.tab(origin) as tab:
            self.status = tab.open(EXAMPLES[name]).status
            self.problems = [each for each in tab.problems if not each.startswith(REFUSED)]
            self.hidden = list(walk(tab))
            self.unreached = tab.unreached()
            self.violations = {"light, wide": tab.violations()}
            tab.page.emulate_media(color_scheme="dark")
            tab.resize(PHONE)
            self.violations["dark, narrow"] = tab.violations()
            tab.resize(NARROWEST)
            self.width = tab.width()
            self.parts = parts_of(tab)
        with browser.tab(origin, scripts=False) as tab:
            tab.open(EXAMPLES[name])
            self.parts_without_scripts = parts_of(tab)
            self.heading = tab.page.locator("h1").inner_text()
            self.bars = tab.page.locator(".live-bar:visible").count()


def walk(tab):
    """Press Tab until it returns to the begin. Yields what does not show that it has the focus."""
    for step in range(2 * len(tab.unreached()) + 20):
        tab.page.keyboard.press("Tab")
        found = tab.focused()
        if found["body"] or found["index"] < step:
            return
        if not (found["outlined"] and found["shown"]):
            yield found


def parts_of(tab):
    """Return how many of each part a page has."""
    names = (
        "main h1",
        "main h2",
        "main table:not(.plot *)",
        "main form",
        "nav[aria-label=Pages] a",
    )
    return {name: tab.page.locator(name).count() for name in names}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with PageRig(tmp_path_factory.mktemp("page")) as started:
        yield started


@pytest.fixture(scope="module")
def browser():
    with Browser() as started:
        yield started


@pytest.fixture(scope="module")
def visit(browser, site):
    """A function that returns the visit of a page, by its name."""
    return functools.cache(lambda name: Visit(browser, site.origin, name))


def test_every_page_has_an_example():
    assert [page.name for page in PAGES if page.name not in EXAMPLES] == [], "add it to EXAMPLES"


@EACH_PAGE
def test_the_browser_reports_no_error(visit, name):
    assert visit(name).status == (404 if name in OF_LOCAL_CLUSTERS else 200)
    assert visit(name).problems == []


@EACH_PAGE
@pytest.mark.parametrize("look", ["light, wide", "dark, narrow"])
def test_axe_finds_no_violation(visit, name, look):
    assert visit(name).violations[look] == []


@EACH_PAGE
@pytest.mark.proof
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["wide", "narrow"])
def test_axe_finds_no_violation_in_a_page_loaded_with_each_look(browser, site, name, theme, size):
    with browser.tab(site.origin, theme=theme, size=size) as tab:
        tab.open(EXAMPLES[name])
        assert tab.violations() == []


@EACH_PAGE
def test_a_narrow_window_does_not_scroll_sideways(visit, name):
    assert visit(name).width <= NARROWEST[0]


@EACH_PAGE
def test_the_tab_key_reaches_everything_and_shows_where_it_is(visit, name):
    assert visit(name).hidden == []
    assert visit(name).unreached == []


def test_the_first_key_skips_the_menu(browser, site):
    with browser.tab(site.origin) as tab:
        tab.open("/")
        tab.page.keyboard.press("Tab")
        assert tab.focused()["words"] == "Skip to the content"
        tab.page.keyboard.press("Enter")
        tab.page.keyboard.press("Tab")
        inside = "document.querySelector('main').contains(document.activeElement)"
        assert tab.page.evaluate(inside)


@EACH_PAGE
def test_without_scripts_the_same_is_there_to_read(visit, name):
    found = visit(name)
    assert found.parts_without_scripts == found.parts
    assert found.heading.strip()
    assert found.bars == 0


@EACH_PAGE
def test_a_hostile_query_runs_nothing(browser, site, name):
    path, _, query = EXAMPLES[name].partition("?")
    texts = TEXTS[:: len(TEXTS) // 12]
    given = "&".join(
        f"{key}={quote(text)}" for key, text in zip("abcdefghijkq", texts, strict=False)
    )
    with browser.tab(site.origin) as tab:
        for more in (f"{given}&q={quote(TEXTS[1])}", f"cursor={quote(TEXTS[2])}"):
            tab.open(f"{path}?{query}&{more}")
            assert tab.foreign() == []
        assert [each for each in tab.problems if not each.startswith(REFUSED)] == []


@pytest.mark.parametrize("name", [page.name for page in PAGES if page.name in HOSTILE_EXAMPLES])
def test_hostile_records_groups_and_clients_run_nothing(browser, site, name):
    with browser.tab(site.origin) as tab:
        assert tab.open(HOSTILE_EXAMPLES[name]).status == 200
        assert tab.foreign() == []
        assert tab.problems == []


def test_a_page_that_does_not_exist_says_so_and_is_accessible(browser, site):
    with browser.tab(site.origin) as tab:
        assert tab.open("/?limit=0").status == 400
        assert tab.page.locator("h1").inner_text() == "limit must be 1 to 500"
        assert tab.violations() == []


@EACH_PAGE
def test_a_page_and_its_files_are_small(site, name):
    def fetch(path):
        with urlopen(site.origin + path, timeout=60) as answer:
            return answer.read()

    if name in OF_LOCAL_CLUSTERS:  # its 404 has the size of any other
        name = "overview"
    html = fetch(EXAMPLES[name])
    sizes = {"html": len(gzip.compress(html))}
    for path in assets_of(html.decode()) | ASSETS_LATER:
        sizes[path] = len(gzip.compress(fetch(path)))
    assert len(sizes) > 5
    assert sum(sizes.values()) <= PAGE_BYTES_MAX, sizes


@pytest.mark.parametrize("name", ALL)
def test_a_page_has_pictures_in_the_docs(name):
    pictures = [ROOT / "docs" / "images" / f"{name}-{theme}.png" for theme in ("light", "dark")]
    assert [each.name for each in pictures if not each.exists()] == [], "run: make screenshots"
    assert all(each.stat().st_size < 120_000 for each in pictures)
