"""Goal: pages of topics, groups and Spark come from memory, in pages of any order, with links that
hold any name and a command that a shell takes.

Method: the views over a mirror of gateways that answer from tables; the site has no client at all,
so a view that asks the cluster for its rows fails.
"""

from __future__ import annotations

import shlex
from types import SimpleNamespace

import pytest

from gateway.config import HttpConfig
from gateway.core.cluster_health import FAIL, OK, UNKNOWN, Check
from gateway.figures.mirror import Mirror
from gateway.figures.parts import share_of
from gateway.figures.timeline import Timeline
from gateway.http.pages import Asked, Refused
from gateway.http.rows_figures import PAGES
from gateway.http.views.events import events, stream
from gateway.http.views.groups import groups
from gateway.http.views.overview import sentence
from gateway.http.views.spark import spark
from gateway.http.views.topic import topic
from gateway.http.views.topics import topics
from gateway.process.assemble import _close_lazy_parts
from ledger.events import EventKind, note_event
from tests.gateway.drawn_page import Tags, Templates
from tests.gateway.figures_rig import (
    PaperCatalog,
    Remote,
    asking,
    figures,
    paper_context,
    topic_named,
)

QUERY = "spark-kafka-source-0f8fad5b-d9cb-469f-a165-70867728950e--1234-executor"
HOSTILE = 'a/b\'; rm -rf "$HOME" <script>%2F\n'


def asked(limit=50, cursor=None, path=None, **query):
    return Asked(path or {}, query, "User:ANONYMOUS", cursor=cursor, limit=limit)


class Pages:
    """A site whose views find everything in its context."""

    def __init__(self, catalog, *remotes):
        self.ctx = paper_context(catalog, *(each.node_id for each in remotes))
        mirror = Mirror(self.ctx, share_of(self.ctx), asking(*remotes))
        self.ctx.lazy["mirror"] = mirror
        self.ctx.lazy["timeline"] = Timeline(self.ctx, asking(*remotes))
        self.site = SimpleNamespace(ctx=self.ctx)

    async def __aenter__(self):
        return self.site

    async def __aexit__(self, *error):
        await _close_lazy_parts(self.ctx)


def many_topics(count):
    remote = Remote(1)
    names = [f"t{number:03d}" for number in range(count)]
    for number, name in enumerate(names):
        remote.leads(name, figures(0, end=number, size=1_000 - number, rate=float(number % 7)))
    return PaperCatalog(*map(topic_named, names)), remote


async def test_topics_are_sorted_and_paged_by_their_figures():
    async with Pages(*many_topics(120)) as site:
        found = await topics(asked(sort="records"), site)
        assert [row["name"] for row in found["rows"]] == [f"t{n:03d}" for n in range(119, 69, -1)]
        assert found["total"] == 120
        rest = await topics(asked(sort="records", cursor=found["next"], limit=500), site)
        assert rest["rows"][-1]["name"] == "t000"
        assert rest["next"] is None
        largest = await topics(asked(sort="size", limit=1), site)
        assert largest["rows"][0]["size_bytes"] == 1_000


async def test_topics_are_found_by_a_text_and_by_a_glob():
    async with Pages(*many_topics(120)) as site:
        found = await topics(asked(search="T11"), site)
        assert found["total"] == 10
        assert (await topics(asked(search="t?0[12]"), site))["total"] == 4


@pytest.mark.parametrize(
    "query", [{"sort": "colour"}, {"cursor": "nonsense"}, {"search": "x" * 256}]
)
async def test_a_bad_order_cursor_or_search_is_refused(query):
    async with Pages(*many_topics(1)) as site:
        with pytest.raises(Refused) as refused:
            await topics(asked(**query), site)
        assert refused.value.status == 400


async def test_a_topic_that_does_not_exist_is_not_found():
    async with Pages(*many_topics(1)) as site:
        with pytest.raises(Refused) as refused:
            await topic(asked(path={"topic": "nope"}), site)
        assert refused.value.status == 404


async def test_a_topic_shows_its_partitions_even_if_the_ledgers_are_not_within_reach():
    remote = Remote(1)
    remote.leads("t", figures(0, end=3), figures(2, end=4))

    async with Pages(PaperCatalog(topic_named("t", 3)), remote) as site:
        site.storage = _unreachable
        found = await topic(asked(path={"topic": "t"}, limit=2), site)
        assert [row["log_end_offset"] for row in found["rows"]] == [3, None]
        assert [row["state"] for row in found["rows"]] == ["offline", "offline"]
        assert found["next"] == "2"
        assert found["total"] == 3
        assert "within reach" in found["segments_missing"]
        assert found["records"] is None


async def _unreachable():
    from gateway.admin.client import Unreachable

    raise Unreachable("the ledgers are not within reach")


async def test_groups_and_queries_have_links_and_lags():
    remote = Remote(1)
    remote.leads("t", figures(0, start=5, end=20))
    remote.has_group(HOSTILE, {"t": ((0, 1),)})
    remote.has_group(QUERY, {"t": ((0, 18),)}, type="read-only", read_per_s=2.0, seen_ms=7)
    async with Pages(PaperCatalog(topic_named("t")), remote) as site:
        found = await groups(asked(sort="lag"), site)
        first, second = found["rows"]
        assert (first["group"], first["lag"]) == (HOSTILE, 15)
        assert first["group_href"].startswith("/groups/a%2Fb")
        assert (second["group"], second["lag"]) == (QUERY, 2)
        queries = await spark(asked(), site)
        (row,) = queries["rows"]
        assert row["kind"] == "streaming"
        assert row["next_offsets"] == ["t/0: 18"]
        assert (row["lag"], row["read_per_s"], row["last_fetch_ms"]) == (2, 2.0, 7)


def drawn(name, request, found):
    """The HTML of a page, and its tags."""
    page = next(each for each in PAGES if each.name == name)
    writing = SimpleNamespace(
        settings=HttpConfig(write=True), token="t", ctx=SimpleNamespace(local_cluster=None)
    )
    template = Templates(f'{{% include "{name}.html" %}}', site=writing)
    text = template.drawn(request, page=page, found=found)
    return text, Tags(text)


async def test_pages_show_hostile_names_as_text():
    remote = Remote(1)
    remote.leads("t", figures(0, start=5, end=20))
    remote.has_group(HOSTILE, {"t": ((0, 1),)})
    remote.has_group(f"{HOSTILE}2", {"t": ((0, 1),)}, type="read-only")
    note_event(EventKind.CHANGE, resource=HOSTILE)
    silent = Remote(2)
    silent.silent = True
    async with Pages(PaperCatalog(topic_named("t")), remote, silent) as site:
        site.storage = _unreachable
        shown = {
            "topics": (topics, asked(search=HOSTILE[:50])),
            "topic": (topic, asked(path={"topic": "t"})),
            "groups": (groups, asked(sort="lag")),
            "spark": (spark, asked()),
            "events": (events, asked(limit=5)),
        }
        for name, (view, request) in shown.items():
            text, tags = drawn(name, request, await view(request, site))
            assert "<script>%2F" not in text, name
            assert tags.bad == [], name
            assert "gateway " in text.partition("<footer>")[2], name
        text, _ = drawn("groups", asked(), await groups(asked(), site))
        assert "no answer within 1 s" in text
        assert "a%2Fb" in text


def test_each_page_names_a_command_whose_arguments_a_shell_takes_as_they_are():
    path = {"group": HOSTILE, "topic": "-x y"}
    words = {page.name: shlex.split(page.command(asked(path=path))) for page in PAGES}
    assert words["group"] == ["gateway", "group", "lag", HOSTILE]
    assert words["topic"] == ["gateway", "topic", "describe", "--", "-x y"]
    listed = next(page for page in PAGES if page.name == "topics")
    command = listed.command(asked(search="$(x)", sort="rate"))
    assert shlex.split(command)[-3:] == ["--sort", "rate", "*$(x)*"]
    assert all(each[0] == "gateway" for each in words.values())


def test_the_sentence_names_what_is_wrong_first():
    checks = [
        Check("a", OK),
        Check("b", UNKNOWN, "no disk is known"),
        Check("c", FAIL, "x is away"),
    ]
    assert sentence(checks) == "1 check failed: x is away."
    assert sentence(checks[:2]) == "No check failed, and 1 could not be made: no disk is known."
    assert sentence(checks[:1]) == "Every check is ok."


async def test_events_are_paged_backwards_and_by_kind():
    note_event(EventKind.ROLL, segment=1)
    for number in range(30):
        note_event(EventKind.FENCE, ledger=number)
    async with Pages(PaperCatalog()) as site:
        found = await events(asked(limit=10, kind="fence"), site)
        assert [row["ledger"] for row in found["rows"]] == list(range(29, 19, -1))
        older = await events(asked(limit=10, kind="fence", cursor=found["next"]), site)
        assert [row["ledger"] for row in older["rows"]] == list(range(19, 9, -1))
        with pytest.raises(Refused):
            await events(asked(kind="nonsense"), site)
        with pytest.raises(Refused):
            await events(asked(cursor="1-2"), site)


async def test_a_stream_sends_what_arrives_and_ends_with_its_reader():
    async with Pages(PaperCatalog()) as site:
        arriving = stream(asked(kind="fence"), site)
        assert (await anext(arriving))[0] == "begun"
        note_event(EventKind.ROLL, segment=1)
        note_event(EventKind.FENCE, ledger=77)
        name, row = await anext(arriving)
        assert (name, row["kind"], row["ledger"]) == ("event", "fence", 77)
        await arriving.aclose()
        with pytest.raises(Refused):
            stream(asked(kind="nonsense"), site)
