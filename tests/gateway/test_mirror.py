"""Goal: any gateway shows the whole cluster: each partition once, silent gateways as silent.

Method: a mirror among gateways that answer from tables, on virtual time, through JSON.
"""

from __future__ import annotations

import asyncio

import pytest

from gateway.cluster.port import Leader
from gateway.figures.mirror import Mirror
from gateway.figures.parts import share_of
from gateway.figures.timeline import KEPT, Timeline
from gateway.process.assemble import _close_lazy_parts
from ledger.events import EventKind, note_event
from tests.gateway.figures_rig import (
    PaperCatalog,
    Remote,
    asking,
    figures,
    paper_context,
    topic_named,
)
from tests.gateway.paper_cluster import member


class Looking:
    """A mirror over these gateways. Leave it to end its tasks."""

    def __init__(self, catalog, *remotes):
        self.ctx = paper_context(catalog, *(each.node_id for each in remotes))
        self.mirror = Mirror(self.ctx, share_of(self.ctx), asking(*remotes))

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        await self.mirror.close()
        await _close_lazy_parts(self.ctx)

    async def fresh(self):
        await asyncio.sleep(4)  # older figures are not returned
        return await self.mirror.fresh()


def two_gateways(partitions=3):
    return PaperCatalog(topic_named("t", partitions), topic_named("u", 1)), Remote(1), Remote(2)


async def test_a_topic_is_the_sum_over_the_gateways_that_lead_it():
    catalog, one, two = two_gateways()
    one.leads("t", figures(0, end=10, size=100), figures(2, end=20, size=200))
    two.leads("t", figures(1, end=5, size=50))
    async with Looking(catalog, one, two) as looking:
        mirror = await looking.fresh()
        row = mirror.topic("t")
        assert (row.records, row.size_bytes, row.segments) == (35, 350, 3)
        assert (row.records_per_s, row.bytes_per_s, row.silent) == (3.0, 30.0, False)
        assert [each.partitions for each in mirror.members()] == [0, 2, 1]


async def test_a_partition_that_two_gateways_report_while_it_moves_counts_once():
    catalog, one, two = two_gateways(1)
    one.leads("t", figures(0, end=10, size=100))
    two.leads("t", figures(0, end=12, size=120))
    async with Looking(catalog, one, two) as looking:
        looking.ctx.cluster.leaders[0] = Leader(2, 5)
        mirror = await looking.fresh()
        row = mirror.topic("t")
        assert (row.records, row.size_bytes, row.records_per_s) == (12, 120, 1.0)


async def test_an_answer_that_comes_again_counts_once():
    catalog, one, two = two_gateways(1)
    one.leads("t", figures(0, end=10))
    async with Looking(catalog, one, two) as looking:
        await looking.fresh()
        one.process = "began anew"  # it sends all its rows again
        one.leads("t", figures(0, end=11))
        mirror = await looking.fresh()
        assert mirror.topic("t").records == 11


async def test_what_no_gateway_reported_is_unknown_and_not_zero():
    catalog, one, two = two_gateways()
    one.leads("t", figures(0), figures(1))
    async with Looking(catalog, one, two) as looking:
        row = (await looking.fresh()).topic("t")
        assert (row.records, row.size_bytes, row.records_per_s, row.known_partitions) == (
            None,
            None,
            None,
            2,
        )


async def test_a_silent_gateway_keeps_its_last_figures_and_has_no_rates():
    catalog, one, two = two_gateways()
    one.leads("t", figures(0), figures(1), figures(2))
    async with Looking(catalog, one, two) as looking:
        await looking.fresh()
        one.silent = True
        mirror = await looking.fresh()
        row = mirror.topic("t")
        assert (row.records, row.size_bytes, row.silent) == (30, 300, True)
        assert row.records_per_s is row.bytes_per_s is None
        silence = mirror.silent()[1]
        assert "no answer" in silence.reason
        assert silence.age_s > 3
        one.silent = False
        row = (await looking.fresh()).topic("t")
        assert (row.records_per_s, row.silent) == (3.0, False)


async def test_a_gateway_that_never_answered_is_silent_and_its_topics_are_unknown():
    catalog, one, two = two_gateways()
    one.silent = True
    async with Looking(catalog, one, two) as looking:
        mirror = await looking.fresh()
        row = mirror.topic("t")
        assert row.records is None
        assert row.silent
        assert mirror.silent()[1].age_s is None
        assert [each.partitions for each in mirror.members()] == [0, None, 0]


async def test_a_gateway_that_left_is_forgotten_and_what_it_led_counts_at_its_new_leader():
    catalog, one, two = two_gateways(1)
    one.leads("t", figures(0, end=10))
    async with Looking(catalog, one, two) as looking:
        await looking.fresh()
        looking.ctx.cluster.alive = [member(0), member(2)]
        assert (await looking.fresh()).topic("t").records is None
        two.leads("t", figures(0, end=10))
        mirror = await looking.fresh()
        assert mirror.topic("t").records == 10
        assert mirror.silent() == {}


async def test_an_answer_that_cannot_be_read_makes_a_gateway_silent():
    catalog, one, two = two_gateways()
    one.answer = lambda body: _answered(
        {"process": "p", "whole": True, "rows": [["t"]], "gone": []}
    )
    async with Looking(catalog, one, two) as looking:
        mirror = await looking.fresh()
        assert "cannot be read" in mirror.silent()[1].reason


async def _answered(body):
    return body


async def test_topics_come_and_go_with_the_catalog():
    catalog, one, two = two_gateways(1)
    one.leads("t", figures(0))
    async with Looking(catalog, one, two) as looking:
        assert set((await looking.fresh()).topics.rows) == {"t", "u"}
        catalog.set(topic_named("t", 2), topic_named("new", 1))
        mirror = await looking.fresh()
        assert set(mirror.topics.rows) == {"t", "new"}
        assert mirror.topic("t").records is None  # its new partition is not known yet


# --- groups --------------------------------------------------------------------------------------


async def test_a_group_lags_behind_partitions_of_all_gateways_and_not_below_their_start():
    catalog, one, two = two_gateways(2)
    one.leads("t", figures(0, start=50, end=60))
    two.leads("t", figures(1, start=0, end=30))
    two.has_group("g", {"t": ((0, 10), (1, 25))})
    async with Looking(catalog, one, two) as looking:
        mirror = await looking.fresh()
        row = mirror.group("g")
        assert row.lag == 10 + 5  # from the start, 50, and not from 10
        one.leads("t", figures(0, start=50, end=100))
        assert (await looking.fresh()).group("g").lag == 50 + 5


async def test_a_lag_is_unknown_without_the_end_of_one_partition():
    catalog, one, two = two_gateways(2)
    one.leads("t", figures(0))
    one.has_group("g", {"t": ((0, 1), (1, 1))})
    one.has_group("not read yet", None)
    one.has_group("committed nothing", {})
    async with Looking(catalog, one, two) as looking:
        mirror = await looking.fresh()
        assert mirror.group("g").lag is None
        assert mirror.group("not read yet").lag is mirror.group("not read yet").partitions is None
        assert mirror.group("committed nothing").lag is None


async def test_a_group_counts_as_its_coordinator_has_it():
    catalog, one, two = two_gateways(1)
    one.leads("t", figures(0, end=100))
    one.has_group("g", {"t": ((0, 10),)}, claimed=False, state="Empty", members=0)
    two.has_group("g", {"t": ((0, 90),)}, members=3)
    async with Looking(catalog, one, two) as looking:
        row = (await looking.fresh()).group("g")
        assert (row.state, row.members, row.lag) == ("Stable", 3, 10)
        assert len((await looking.fresh()).groups.rows) == 1


async def test_a_query_of_spark_is_joined_from_the_gateways_that_it_reads_from():
    catalog, one, two = two_gateways(2)
    one.leads("t", figures(0, end=100))
    two.leads("t", figures(1, end=50))
    more = {"type": "read-only", "read_per_s": 2.0}
    one.has_group("q", {"t": ((0, 90),)}, clients=("a", "b"), seen_ms=5, **more)
    two.has_group("q", {"t": ((1, 45),)}, clients=("b", "c"), seen_ms=9, **more)
    async with Looking(catalog, one, two) as looking:
        mirror = await looking.fresh()
        row = mirror.group("q")
        assert (row.lag, row.partitions, row.members) == (15, 2, 3)
        assert (row.read_per_s, row.seen_ms) == (4.0, 9)
        assert mirror.positions("q") == {"t": ((0, 90), (1, 45))}
        assert set(mirror.queries.rows) == {"q"}


async def test_a_group_of_a_silent_coordinator_is_silent():
    catalog, one, two = two_gateways(1)
    two.leads("t", figures(0, end=100))
    one.has_group("g", {"t": ((0, 10),)}, read_per_s=5.0)
    async with Looking(catalog, one, two) as looking:
        await looking.fresh()
        one.silent = True
        row = (await looking.fresh()).group("g")
        assert (row.lag, row.read_per_s, row.silent) == (90, None, True)


# --- what it costs -------------------------------------------------------------------------------


async def test_the_questions_do_not_grow_with_the_topics_and_pages_ask_none():
    asked = {}
    for count in (10, 1_000):
        catalog = PaperCatalog(*(topic_named(f"t{n:04d}") for n in range(count)))
        one, two = Remote(1), Remote(2)
        for number in range(count):
            (one, two)[number % 2].leads(f"t{number:04d}", figures(0))
        async with Looking(catalog, one, two) as looking:
            await looking.fresh()
            one.questions.clear()
            mirror = await looking.mirror.fresh()
            for order in ("name", "rate", "size", "records"):
                page = await mirror.topics.page(order, None, 50)
                assert page.total == count
            assert one.questions == []
            await asyncio.sleep(5.5)
            asked[count] = len(one.questions)
    assert asked[10] == asked[1_000]
    assert asked[10] <= 12


async def test_nothing_is_asked_when_nobody_looks():
    catalog, one, two = two_gateways()
    async with Looking(catalog, one, two) as looking:
        await looking.fresh()
        await asyncio.sleep(30)
        one.questions.clear()
        await asyncio.sleep(60)
        assert one.questions == []


# --- events --------------------------------------------------------------------------------------


class Ring:
    """The events of another gateway."""

    def __init__(self, process="p"):
        self.process = process
        self.events = []

    def add(self, at_ms, kind="roll"):
        self.events.append({"number": len(self.events) + 1, "at_ms": at_ms, "kind": kind})

    async def ask(self, asked, body):
        rows = [each for each in self.events if each["number"] > body["after"]]
        return {"process": self.process, "events": rows[-body["last"] :][:10]}


async def test_events_of_all_gateways_are_merged_by_time_and_each_is_there_once():
    ctx = paper_context(PaperCatalog(), 1)
    ring = Ring()
    timeline = Timeline(ctx, ring.ask)
    try:
        for at_ms in (1, 3, 2):
            ring.add(at_ms)
        await timeline.fresh()
        note_event(EventKind.ROLL, segment=1)
        for _ in range(3):
            await asyncio.sleep(4)
            await timeline.fresh()
        found, _ = timeline.before(None, 10_000)
        others = [each.place for each in found if each.place[1] == 1]
        assert others == [(3, 1, 2), (2, 1, 3), (1, 1, 1)]
        places = [each.place for each in found]
        assert places == sorted(places, reverse=True)
        assert any(each.facts.get("segment") == 1 for each in found)
    finally:
        await timeline.close()


async def test_a_gateway_that_began_anew_starts_its_events_over():
    ctx = paper_context(PaperCatalog(), 1)
    ring = Ring()
    timeline = Timeline(ctx, ring.ask)
    try:
        ring.add(1)
        ring.add(2)
        await timeline.fresh()
        ring.events.clear()
        ring.process = "q"
        ring.add(9)
        await asyncio.sleep(4)
        await timeline.fresh()
        assert [each.place for each in timeline.before(None, 1)[0]] >= [(9, 1, 1)]
        assert (9, 1, 1) in [each.place for each in timeline.before(None, 10_000)[0]]
    finally:
        await timeline.close()


async def test_a_reader_of_the_stream_gets_each_event_and_the_memory_has_a_bound():
    ctx = paper_context(PaperCatalog(), 1)
    ring = Ring()
    timeline = Timeline(ctx, ring.ask)
    try:
        await timeline.fresh()
        arrival = timeline.arrivals
        ring.add(5)
        await asyncio.sleep(4)
        await timeline.fresh()
        found, dropped = timeline.since(arrival)
        assert [each.place for each in found if each.place[1] == 1] == [(5, 1, 1)]
        assert dropped == 0
        for number in range(3 * KEPT):
            timeline._add(1, "p", {"number": number, "at_ms": number, "kind": "roll"})
        assert len(timeline) <= 2 * KEPT
        assert timeline.since(arrival)[1] > 0
    finally:
        await timeline.close()


async def test_names_of_a_refresh_that_failed_are_in_the_pages_of_the_next_one():
    names = [f"t{number}" for number in range(8)]
    one, two = Remote(1), Remote(2)
    async with Looking(PaperCatalog(*map(topic_named, names)), one, two) as looking:
        for number, name in enumerate(names):
            one.leads(name, figures(0, rate=float(number)))
            one.has_group(f"g-{name}", {name: ((0, number),)})
        mirror = await looking.fresh()
        await mirror.topics.page("rate", None, 10)
        await mirror.groups.page("lag", None, 10)
        for number, name in enumerate(names):
            one.leads(name, figures(0, rate=float(100 - number)))
            one.has_group(f"g-{name}", {name: ((0, 10 - number),)})
        two.leads("t3", figures(0, rate=7.0))  # whose leader is asked for
        leader_of = looking.ctx.cluster.leader

        def fails(key):
            looking.ctx.cluster.leader = leader_of
            raise LookupError(key)

        looking.ctx.cluster.leader = fails
        with pytest.raises(LookupError):
            await mirror._refresh()
        await mirror._refresh()
        topics = await mirror.topics.page("rate", None, 10)
        rates = [each.records_per_s for each in topics.rows]
        assert rates == [100.0, 99.0, 98.0, 97.0, 96.0, 95.0, 94.0, 93.0]
        groups = await mirror.groups.page("lag", None, 10)
        assert [each.lag for each in groups.rows] == [7, 6, 5, 4, 3, 2, 1, 0]


async def test_a_topic_that_cannot_be_merged_keeps_no_others_from_the_pages():
    one = Remote(1)
    two = Remote(2)
    async with Looking(PaperCatalog(*map(topic_named, ("bad", "good"))), one, two) as looking:
        mirror = await looking.fresh()
        for name in ("bad", "good"):
            one.leads(name, figures(0, rate=5.0))
        two.leads("bad", figures(0, rate=7.0))  # whose leader is asked for

        def fails(key):
            raise LookupError(key)

        looking.ctx.cluster.leader = fails
        for _ in range(2):
            with pytest.raises(LookupError):
                await mirror._refresh()
        await mirror._refresh()
        topics = await mirror.topics.page("rate", None, 10)
        assert {each.name: each.records_per_s for each in topics.rows}["good"] == 5.0
