"""Goal: scripts add live rows and plots to a page that is complete without them, and nothing else.

Method: pages of our macros in Chromium, with the page's policy, answered by the test; what the
scripts show is compared with what the server shows.
"""

from __future__ import annotations

import json
import re

import pytest

from gateway.http import plots, shown
from tests.browser.browser import Browser
from tests.browser.hostile_text import TEXTS
from tests.browser.paper import ORIGIN, events, page, serve

pytestmark = pytest.mark.process
AT_MS = 1_777_550_400_000
COLUMNS = [("offset", "Offset", "number"), ("value", "Value", "text"), ("is", "State", "state")]
LIVE = "{{ ui.live('Records', columns, rows, '/tail', 'record') }}"
PLOT = "{{ ui.plot('Bytes in', 'bytes/s', '/api/v1/history?series=bytes_in') }}"
HISTORY = {
    "series": "bytes_in",
    "unit": "bytes/s",
    "step_s": 10,
    "from_ms": AT_MS,
    "lines": [
        {"name": "gateway 0", "points": [1024, None, 4096, 2048]},
        {"name": "<img src=x>", "points": [1, 2, 3, None]},
    ],
}


@pytest.fixture(scope="module")
def browser():
    with Browser() as started:
        yield started


@pytest.fixture
def tab(browser):
    with browser.tab(ORIGIN) as opened:
        yield opened


def html(text):
    return lambda query: (200, "text/html", text)


def once(answer):
    """Answer with a stream at first, and then with others that send nothing."""
    left = [answer]
    return lambda query: left.pop() if left else events()


def open_live(tab, *sent, rows=()):
    live = page(LIVE, columns=COLUMNS, rows=list(rows))
    serve(tab, {"/": html(live), "/tail": once(events(*sent))})
    tab.open("/")
    return tab.page.locator("tbody tr")


def record(offset, value="v", state="ok"):
    return "record", {"offset": offset, "value": value, "is": state}


def test_records_of_a_tail_are_added_newest_first(tab):
    first = {"offset": 1, "value": "old", "is": "ok"}
    rows = open_live(tab, record(2), record(3000, "new", "lost"), rows=[first])
    rows.nth(2).wait_for()
    assert rows.nth(0).locator("th, td").all_inner_texts() == ["3,000", "new", "✕ lost"]
    assert [row.split("\t")[0] for row in rows.all_inner_texts()] == ["3,000", "2", "1"]
    assert tab.problems == []


def test_the_row_that_says_none_leaves_when_a_record_comes(tab):
    rows = open_live(tab, record(5))
    tab.page.locator("tr.new").wait_for()
    assert rows.all_inner_texts() == ["5\tv\t✓ ok"]


def test_a_tail_keeps_two_hundred_rows(tab):
    rows = open_live(tab, *map(record, range(300)))
    tab.page.get_by_role("rowheader", name="299").wait_for()
    assert rows.count() == 200


def test_hostile_records_of_a_tail_stay_text(tab):
    rows = open_live(tab, *(record(at, text) for at, text in enumerate(TEXTS)))
    tab.page.get_by_role("rowheader", name=str(len(TEXTS) - 1)).wait_for()
    assert tab.foreign() == []
    assert tab.problems == []
    shown_texts = [row.locator("td").first.text_content() for row in rows.all()[:20]]
    assert shown_texts == [str(shown.text(text).unescape()) for text in TEXTS[:-21:-1]]


def test_a_tail_says_how_many_records_it_skipped(tab):
    open_live(tab, ("skipped", {"count": 1200}), ("skipped", {"count": 34}))
    status = tab.page.locator(".live-bar [role=status]")
    tab.page.get_by_text("1,234 skipped").wait_for()
    assert status.is_visible()


def test_a_tail_that_fails_says_why(tab):
    open_live(tab, ("failed", {"code": "X", "message": "the topic <b>orders</b> is gone"}))
    said = tab.page.get_by_text("Ended: the topic <b>orders</b> is gone")
    said.wait_for()
    assert said.is_visible()


def test_a_tail_that_is_refused_adds_nothing_to_the_page(tab):
    body = json.dumps({"error": {"message": "<img src=x onerror=alert(1)><b>no</b>"}})
    live = page(LIVE, columns=COLUMNS, rows=[])
    serve(tab, {"/": html(live), "/tail": lambda query: (403, "application/json", body)})
    with tab.page.expect_response("**/tail"):
        tab.open("/")
    tab.page.locator(".htmx-request").wait_for(state="detached")
    assert tab.foreign() == []
    assert tab.page.locator("tbody tr").all_inner_texts() == ["none"]


def test_a_paused_tail_counts_what_it_does_not_show(tab):
    live = page(LIVE, columns=COLUMNS, rows=[])
    serve(tab, {"/": html(live), "/tail": once(events())})
    tab.open("/")
    tab.page.get_by_role("button", name="Pause").click()
    send = "each => each.dispatchEvent(new CustomEvent('record', {detail: {data: '{}'}}))"
    tab.page.eval_on_selector(".live", send)
    tab.page.get_by_text("Paused; 1 new since then").wait_for()
    assert tab.page.locator("tbody tr").all_inner_texts() == ["none"]
    tab.page.get_by_role("button", name="Go on").click()
    assert tab.page.locator("[role=status]").inner_text() == ""


def test_scripts_show_values_as_the_server_does(tab):
    serve(tab, {"/": html(page("<p>x</p>"))})
    tab.open("/")
    values = [0, 1, 7.26, 99.6, 100, 1023, 1024, 12_345, 172_799, 172_800, 9_999_999, 2**33, 0.3]
    kinds = ("number", "bytes", "rate", "text")
    for kind in kinds:
        found = tab.page.evaluate(
            "([values, kind]) => values.map((each) => words(each, kind))", [values, kind]
        )
        assert found == [str(shown.cell({"k": each}, "k", kind)) for each in values], kind
    for unit in ("bytes/s", "bytes", "records/s", "ms", "s"):
        found = tab.page.evaluate(
            "([values, unit]) => values.map((each) => withUnit(each, unit))", [values, unit]
        )
        assert found == [plots.value_text(each, unit) for each in values], unit
    assert tab.page.evaluate("visible('a\\u202eb\\u001bc\\u0000')") == shown.text("a\u202eb\x1bc\0")


def history(found):
    return lambda query: (200, "application/json", json.dumps(found))


def test_a_plot_is_drawn_by_the_server_and_then_by_a_script(tab):
    drawn = page(PLOT, HISTORY)
    assert re.search("<svg[^>]*role=.img.*polyline", drawn, re.DOTALL)
    seen = serve(tab, {"/": html(drawn), "/api/v1/history": history(HISTORY)})
    tab.open("/")
    image = tab.page.locator(".canvas [role=img]")
    image.locator("canvas").wait_for()
    assert image.get_attribute("aria-label") == (
        "Bytes in (bytes/s). Now gateway 0: 2 KiB/s; <img src=x>: –"
    )
    assert f"{ORIGIN}/api/v1/history?series=bytes_in" in seen
    assert tab.page.locator(".u-series").count() == 3
    assert tab.page.locator("img").count() == 0
    assert tab.problems == []
    assert tab.violations() == []


def test_a_reader_can_stop_the_updates(tab):
    serve(tab, {"/": html(page(PLOT, HISTORY)), "/api/v1/history": history(HISTORY)})
    tab.open("/")
    button = tab.page.get_by_role("button", name="Pause updates")
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    assert tab.page.evaluate("paused()")
    button.click()
    assert not tab.page.evaluate("paused()")


def test_a_plot_whose_history_cannot_be_had_stays_as_the_server_drew_it(tab):
    failed = {
        "/": html(page(PLOT, HISTORY)),
        "/api/v1/history": lambda query: (503, "text/plain", ""),
    }
    serve(tab, failed)
    with tab.page.expect_response("**/history*"):
        tab.open("/")
    assert tab.page.locator(".canvas svg polyline").count() > 0
    assert tab.page.locator("canvas").count() == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_plot_without_scripts_is_accessible_in_each_theme(browser, theme):
    with browser.tab(ORIGIN, theme=theme) as tab:
        serve(tab, {"/": html(page(PLOT, HISTORY)), "/api/v1/history": lambda query: (503, "", "")})
        tab.open("/")
        tab.page.get_by_text("as a table").click()
        assert tab.violations() == []
        assert tab.page.locator(".plot tbody tr").count() == 4


def test_typing_into_a_search_narrows_the_page_and_keeps_the_focus(tab):
    body = "{{ ui.search(asked, 'q', 'Topics') }}<p id=found>found {{ asked.query.get('q') }}</p>"

    def answer(query):
        return (
            200,
            "text/html",
            page(body, query=dict([query.strip("&").split("=")] if query else [])),
        )

    serve(tab, {"/": answer})
    tab.open("/")
    tab.page.get_by_role("searchbox").press_sequentially("ord")
    tab.page.get_by_text("found ord").wait_for()
    assert tab.page.evaluate("document.activeElement.name") == "q"
    assert tab.page.url.endswith("q=ord")
    assert tab.problems == []


def test_htmx_adds_no_style(tab):
    serve(tab, {"/": html(page("<p>x</p>"))})
    tab.open("/")
    assert tab.page.evaluate("[htmx.version, document.adoptedStyleSheets.length]") == ["4.0.1", 0]
    assert tab.page.locator("style").count() == 0


def test_what_htmx_would_evaluate_is_refused_by_the_policy(tab):
    injected = (
        "<button hx-on:click='window.evaluated = 1' onclick='window.evaluated = 2'>go</button>"
    )
    serve(tab, {"/": html(page(injected))})
    tab.open("/")
    tab.page.get_by_role("button", name="go").click()
    assert tab.page.evaluate("window.evaluated") is None
    assert [each for each in tab.problems if "script-src" in each]
