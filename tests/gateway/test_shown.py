"""Goal: pages show figures, times, states and links so that people read them right.

Method: one value after the other; the macros rendered, read back by an HTML parser, and searched
for what the policy of the page forbids.
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
from starlette.requests import Request

from gateway.figures.slices import Slices
from gateway.http import compressed, plotted, shown
from gateway.http.pages import Asked, Page, on_cluster
from tests.gateway.drawn_page import TEMPLATES, Tags, Templates

ASKED = Asked({"topic": "a/b"}, {"q": "<x>", "cursor": "c1"}, "User:ANONYMOUS", cursor="c1")
HOSTILE = '"><img src=x onerror=alert(1)>'


def macro(call, site=None, **values):
    """Draw one macro."""
    page = '{% import "_macros.html" as ui %}{{ ui.' + call + " }}"
    return Templates(page, site=site).drawn(ASKED, **values)


@pytest.mark.parametrize(
    ("show", "value", "words"),
    [
        (shown.number, 1234567, "1,234,567"),
        (shown.number, 1.5, "1.50"),
        (shown.size, 0, "0 B"),
        (shown.size, 1023, "1,023 B"),
        (shown.size, 1024, "1.0 KiB"),
        (shown.size, 5 * 1024**4, "5.0 TiB"),
        (shown.rate, 0, "0 /s"),
        (shown.rate, 12.34, "12.3 /s"),
        (shown.rate, 5000, "5,000 /s"),
        (shown.duration, 12, "12 ms"),
        (shown.duration, 1.25, "1.2 ms"),
        (shown.duration, 2500, "2.5 s"),
        (shown.duration, 125_000, "2 min 5 s"),
        (shown.duration, 7_500_000, "2 h 5 min"),
        (shown.duration, 90_000_000, "1 d 1 h"),
    ],
)
def test_a_figure_has_its_unit(show, value, words):
    assert str(show(value)) == words


async def test_a_page_that_is_drawn_in_slices_is_the_same_page():
    page = """{% import "_macros.html" as ui %}
    {{ ui.table("All", [("name", "Name", "link"), ("lag", "Lag", "number")], rows) }}
    {% for each in rows %}{{ ui.plot(each.name, "ms", "/history") }}{% endfor %}"""
    rows = [{"name": f"<{n}>", "name_href": f"/{n}", "lag": n or None} for n in range(70)]
    drawn = Templates(page).plots
    values = {"asked": ASKED, "rows": rows}
    assert not drawn.knows("paper.html")
    whole = drawn.rendered("paper.html", **values)
    assert drawn.knows("paper.html")
    assert await drawn.rendered_in_slices("paper.html", **values) == whole
    assert len(whole.places) == 70


async def test_a_large_table_is_drawn_in_steps_of_few_rows(monkeypatch):
    page = """{% import "_macros.html" as ui %}
    {{ ui.table("All", [("name", "Name", "text")], rows) }}
    {{ ui.table("Few", [("name", "Name", "text")], rows[:3]) }}"""
    drawn = Templates(page).plots
    values = {"asked": ASKED, "rows": [{"name": f"<!-- {n} rows 0-->"} for n in range(70)]}
    whole = drawn.rendered("paper.html", **values)
    steps, rests = [], []
    monkeypatch.setattr("gateway.figures.slices.SLICE_S", -1.0)
    draw, rest = plotted.rows, Slices.rest

    def step(columns, found):
        steps.append(len(found))
        return draw(columns, found)

    async def rested(slices):
        rests.append(len(steps))
        await rest(slices)

    monkeypatch.setattr(plotted, "rows", step)
    monkeypatch.setattr(Slices, "rest", rested)
    assert await drawn.rendered_in_slices("paper.html", **values) == whole
    assert sum(steps) == 73
    assert max(steps) <= plotted.ROWS_AT_ONCE
    # A rest follows each step with rows of the large table.
    assert {*range(2, len(steps) + 1)} <= {*rests}


async def test_a_body_is_compressed_in_steps_and_read_as_it_was(monkeypatch):
    monkeypatch.setattr("gateway.figures.slices.SLICE_S", -1.0)
    rests = []
    rest = Slices.rest

    async def rested(slices):
        rests.append(slices)
        await rest(slices)

    monkeypatch.setattr(Slices, "rest", rested)
    body = b"".join(b"%d rows\n" % number for number in range(6_000))
    asked = Request({"type": "http", "headers": [(b"accept-encoding", b"gzip")]})
    answer = await compressed.response_in_slices(asked, body, "text/html")
    assert gzip.decompress(answer.body) == body
    assert answer.headers["content-encoding"] == "gzip"
    assert len(rests) == -(-len(body) // compressed.PIECE_BYTES)
    plain = await compressed.response_in_slices(
        Request({"type": "http", "headers": []}), body, "text/html"
    )
    assert plain.body == body
    assert "content-encoding" not in plain.headers


@pytest.mark.parametrize("kind", ["number", "bytes", "rate", "ms", "time", "state"])
def test_what_is_unknown_is_no_zero_and_is_read_aloud(kind):
    text = shown.cell({"figure": None}, "figure", kind)
    assert "unknown</span>" in text
    assert "0" not in text


def test_a_text_that_is_not_there_is_none():
    assert "none</span>" in shown.cell({}, "finding", "text")
    assert "unknown</span>" in shown.ago(None)


def test_a_time_is_utc_and_readable_by_programs():
    text = '<time datetime="2026-05-01T12:00:00.500+00:00">2026-05-01 12:00:00 UTC</time>'
    assert str(shown.moment(1_777_636_800_500)) == text
    assert str(shown.moment(10**30)) == str(10**30)


@pytest.mark.parametrize("kind", ["text", "link", "number", "bytes", "ms", "rate", "time", "state"])
@pytest.mark.parametrize("value", [None, 0, True, 1.5, "<b>", "x" * 100, ["a", "<"], float("nan")])
def test_a_cell_of_a_table_is_a_cell_alone(value, kind):
    row = {"key": value, "key_href": "/a?b&c"}
    alone = shown.cell(row, "key", kind)
    number = ' class="number"' if kind in shown.NUMERIC else ""
    expected = f'<tr><th scope="row"{number}>{alone}</th><td{number}>{alone}</td></tr>\n'
    assert shown.rows([("key", "Key", kind)] * 2, [row]) == expected
    assert "<b>" not in alone
    assert 'href="/a?b&amp;c"' in alone


def test_a_state_is_a_word_with_a_symbol():
    found = {word: re.sub("<[^>]+>", "", shown.state(word)) for word in ("ok", "silent", "lost")}
    assert found == {"ok": "✓ ok", "silent": "▲ silent", "lost": "✕ lost"}
    assert "state-plain" in shown.state("closed")
    assert "state-warn" in shown.state("PREPARING_REBALANCE")
    assert "&lt;b&gt;" in shown.state("<b>")


def test_scripts_know_the_same_states():
    known = json.loads(shown.KINDS_OF_STATES)
    assert known == {word: shown.kind_of_state(word) for word in known}
    assert {word for word, kind in known.items() if kind == "fail"} == shown.FAIL


def test_characters_that_cannot_be_seen_are_shown_as_escapes():
    assert shown.text("a\x00\x1b[31m\u202eb\n") == "a\\x00\\x1b[31m\\u202eb\n"


@pytest.mark.parametrize(
    "href", ["javascript:alert(1)", "//evil.example", "/\\evil.example", "https://evil.example", ""]
)
def test_a_link_leads_to_no_other_site(href):
    assert shown.local(href) == "#"


def test_a_table_heads_its_rows_and_columns_and_is_reached_by_keyboard():
    text = macro(
        "table('Topics', [('name', 'Name', 'link'), ('size', 'Size', 'bytes')], rows)",
        rows=[{"name": HOSTILE, "name_href": "/topics/a", "size": None}],
    )
    tags = Tags(text)
    assert tags.names.count("img") == 0
    assert HOSTILE in tags.words
    assert 'role="region" tabindex="0" aria-label="Topics"' in text
    assert '<th scope="row"><a href="/topics/a">' in text
    assert 'class="number"><span class="unknown">' in text


def test_a_table_without_rows_says_so():
    assert '<td colspan="1">none</td>' in macro("table('T', [('a', 'A', 'text')], [])")


def test_the_next_rows_keep_what_was_asked():
    text = macro("pager(found, asked)", found={"rows": [{}], "next": "c&2", "total": 7})
    assert 'href="?q=%3Cx%3E&amp;cursor=c%262" rel="next"' in text
    assert 'href="?q=%3Cx%3E" rel="first"' in text
    assert "1 of 7 rows" in text
    last = macro("pager(found, asked)", found={"rows": [], "next": None, "total": None})
    assert 'rel="next"' not in last


def test_a_search_begins_at_the_first_rows_and_shows_its_words():
    text = macro("search(asked, 'q', 'Find')")
    assert 'value="&lt;x&gt;"' in text
    assert "cursor" not in text


class Site:
    """What forms take from a site."""

    token = "secret"

    class settings:
        write = True


class ReadOnly(Site):
    """A site without --http-write."""

    class settings:
        write = False


FIELDS = [
    {"name": "copies", "label": "Copies", "kind": "number", "value": 3, "hint": "1 to 5"},
    {"name": "value", "label": "Value", "kind": "textarea", "value": "</textarea><script>"},
    {"name": "codec", "label": "Codec", "kind": "select", "options": ["none", "zstd"]},
]


def test_a_form_has_the_token_labels_and_the_name_to_confirm():
    text = macro("form('/topics/a', 'Delete', fields, 'a')", fields=FIELDS, site=Site)
    tags = Tags(text)
    assert '<input type="hidden" name="token" value="secret">' in text
    assert "script" not in tags.names
    labels = re.findall(r'label for="([^"]+)"', text)
    assert len(labels) == 4
    assert set(labels) <= set(re.findall(r' id="([^"]+)"', text))
    assert "To confirm, type a" in text


def test_without_writes_there_is_no_form():
    text = macro("form('/topics/a', 'Delete', fields, 'a')", fields=FIELDS, site=ReadOnly)
    assert text.strip() == ""


def test_a_page_leads_to_its_json():
    page = Page("/topics/{topic}", "topic", "Topic", on_cluster, None, None)
    assert shown.json_href(page, ASKED) == "/api/v1/topics/a%2Fb?q=%3Cx%3E&cursor=c1"
    home = page._replace(path="/")
    assert shown.json_href(home, ASKED._replace(query={})) == "/api/v1/overview"


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("*.html")), ids=lambda path: path.name)
def test_a_template_has_nothing_that_the_policy_forbids(path: Path):
    """No style or handler, nothing that htmx would evaluate, no text that is not escaped."""
    text = path.read_text()
    assert re.findall(r"\s(?:style|on[a-z]+)\s*=", text) == []
    assert re.findall(r"<style|<script(?! src=\"/static/)|javascript:|\bjs:|hx-on", text) == []
    assert re.findall(r"\|\s*safe\b|autoescape|Markup|hx-vals|hx-headers", text) == []
