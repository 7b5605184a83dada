"""Goal: lists of groups have the lag in seconds, at a cost that no number of topics raises.

Method: a mirror of gateways that answer from tables, and the views over it; a topic over real
streams whose records have times.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from gateway.cluster.port import Leader
from gateway.config import MetricsLimits
from gateway.core.figures import largest
from gateway.figures.mirror import Mirror
from gateway.figures.parts import mirror_of, share_of
from gateway.figures.share import IDLE_PERIOD_S
from gateway.http.pages import Asked
from gateway.http.views.groups import groups
from gateway.http.views.spark import spark
from gateway.metrics import group_ages, history, record_times
from gateway.process.assemble import _close_lazy_parts
from ledger.errors import MetadataUnavailable
from tests.gateway.figures_rig import (
    PaperCatalog,
    Remote,
    asking,
    figures,
    paper_context,
    sharing_gateway,
    topic_named,
)
from tests.gateway.stream_cluster import batch
from tests.gateway.test_share import commit

TOPICS = 30


class Site:
    """The views of gateway 0 over others, which lead the partitions of their own number."""

    def __init__(self, catalog, *remotes):
        self.ctx = paper_context(catalog, *(each.node_id for each in remotes))
        self.ctx.cluster.leaders = {each.node_id: Leader(each.node_id, 1) for each in remotes}
        ask = asking(*remotes)
        self.ctx.lazy["mirror"] = Mirror(self.ctx, share_of(self.ctx), ask)
        self.ctx.lazy["peer questions"] = SimpleNamespace(ask=ask, keep_only=ignored, close=ignored)

    async def __aenter__(self):
        await self.ctx.lazy["mirror"].fresh()
        return self

    async def __aexit__(self, *_):
        await _close_lazy_parts(self.ctx)

    def age(self, time_ms):
        return round((self.ctx.clock.now_ms() - time_ms) / 1000, 3)


async def ignored(*_):
    """Close nothing."""


def cluster(names=("t",)):
    catalog = PaperCatalog(*(topic_named(name, 3) for name in names))
    one, two = Remote(1), Remote(2)
    for name in names:
        one.leads(name, figures(0), figures(1))
        two.leads(name, figures(2, start=4))
    return catalog, one, two


def asked(limit=50):
    return Asked({}, {}, "User:ANONYMOUS", limit=limit)


async def rows_of(site, view=groups, limit=50):
    found = await view(asked(limit), site)
    return {row["group"]: row for row in found["rows"]}


async def test_a_group_lags_by_its_oldest_unread_record_at_any_gateway():
    catalog, one, two = cluster()
    one.times[("t", 1, 5)], two.times[("t", 2, 7)] = -4_000, -9_000
    one.has_group("g", {"t": ((0, 10), (1, 5), (2, 7))})
    one.has_group("read", {"t": ((0, 10), (1, 10))})
    one.has_group("committed nothing", {})
    one.has_group("unknown", None)
    async with Site(catalog, one, two) as site:
        rows = await rows_of(site)
        assert rows["g"]["lag_s"] == site.age(-9_000)
        assert rows["read"]["lag_s"] == 0.0
        assert rows["committed nothing"]["lag_s"] is rows["unknown"]["lag_s"] is None


async def test_a_lag_is_unknown_if_the_time_of_one_record_is():
    catalog, one, two = cluster()
    one.times[("t", 1, 5)] = -4_000
    one.has_group("g", {"t": ((1, 5), (2, 7))})
    one.has_group("here", {"t": ((1, 5),)})
    async with Site(catalog, one, two) as site:
        rows = await rows_of(site)
        assert (rows["g"]["lag_s"], rows["here"]["lag_s"]) == (None, site.age(-4_000))


async def test_a_list_asks_each_gateway_a_few_times_however_many_topics_and_groups_there_are():
    names = [f"topic-{number}" for number in range(TOPICS)]
    catalog, one, two = cluster(names)
    for number in range(200):
        places = dict.fromkeys(names[: 1 + number % 3], ((1, number % 10), (2, 5)))
        one.has_group(f"g{number:03}", places)
    async with Site(catalog, one, two) as site:
        one.questions.clear()
        two.questions.clear()
        await rows_of(site, limit=200)
        for each in (one, two):
            assert 1 <= each.questions.count("record_times") <= record_times._REQUESTS_MAX


async def test_a_silent_gateway_is_asked_once_for_a_list():
    names = [f"topic-{number}" for number in range(TOPICS)]
    catalog, one, two = cluster(names)
    for name in names:
        one.times[(name, 1, 3)] = -1_000
    for number in range(10):
        one.has_group(f"g{number}", dict.fromkeys(names, ((2, number),)))
    one.has_group("here", {names[0]: ((1, 3),)})
    async with Site(catalog, one, two) as site:
        two.silent = True
        two.questions.clear()
        rows = await rows_of(site)
        assert rows["here"]["lag_s"] == site.age(-1_000)
        assert rows["g1"]["lag_s"] is None
        assert two.questions.count("record_times") == 1


async def test_positions_beyond_the_bound_are_unknown_and_never_0(monkeypatch):
    monkeypatch.setattr(group_ages, "POSITIONS_MAX", 2)
    catalog, one, two = cluster()
    one.times |= {("t", 0, 1): -1_000, ("t", 1, 1): -2_000}
    one.has_group("a", {"t": ((0, 1), (1, 1))})
    one.has_group("b", {"t": ((0, 1),)})
    one.has_group("c", {"t": ((0, 10),)})
    one.leads("t", figures(0), figures(1))
    async with Site(catalog, one, two) as site:
        site.ctx.cluster.leaders[0] = Leader(1, 1)
        rows = await rows_of(site)
        assert rows["a"]["lag_s"] == site.age(-2_000)
        assert (rows["b"]["lag_s"], rows["c"]["lag_s"]) == (None, 0.0)


@pytest.mark.real_loop
async def test_other_tasks_run_while_large_groups_are_looked_at():
    catalog, one, two = cluster()
    one.leads("t", *(figures(index) for index in range(2_000)))
    for number in range(20):
        one.has_group(f"g{number}", {"t": tuple((index, 10) for index in range(2_000))})
    turns = 0

    async def others():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with Site(catalog, one, two) as site:
        names = [f"g{number}" for number in range(20)]
        task = asyncio.create_task(others())
        lags = await group_ages.lags_in_seconds(site.ctx, site.ctx.lazy["mirror"], names)
        task.cancel()
    assert (set(lags.values()), len(lags)) == ({0.0}, 20)
    assert turns > 5


async def test_a_query_of_spark_has_its_lag_in_seconds():
    catalog, one, two = cluster()
    one.times[("t", 1, 5)] = -4_000
    one.has_group("q", {"t": ((1, 5),)}, type="read-only")
    async with Site(catalog, one, two) as site:
        assert (await rows_of(site, spark))["q"]["lag_s"] == site.age(-4_000)


async def test_lists_and_histories_have_the_same_lag():
    async with sharing_gateway() as gateway:
        partition = await gateway.topic()
        await gateway.sent(partition, batch(at=1_000), batch(at=5_000))
        await commit(gateway, "g", p0=2)
        mirror = await mirror_of(gateway.context).fresh()
        listed = await group_ages.lags_in_seconds(gateway.context, mirror, ["g"])
        lags = await history.group_lags(gateway.context)
        assert listed["g"] == lags["g"][1] is not None
        assert lags["g"][0] == mirror.group("g").lag


async def test_a_group_that_keeps_up_has_no_lag_in_its_history():
    async with sharing_gateway() as gateway:
        partition = await gateway.topic()
        await gateway.sent(partition, batch(at=1_000))
        await commit(gateway, "g", p0=2)
        await history.group_lags(gateway.context)
        before_s = asyncio.get_running_loop().time()
        for number in range(3):
            await gateway.sent(partition, batch(at=5_000))
            await commit(gateway, "g", p0=partition.high_watermark)
            assert (await history.group_lags(gateway.context))["g"] == (0, 0.0), number
        # It waits for no sample of another period.
        assert asyncio.get_running_loop().time() - before_s < IDLE_PERIOD_S / 2


UNLOADED_S = 700.0  # after which a group without members is out of memory, and a scan found it


async def test_a_history_has_no_idle_group_that_another_gateway_has_claimed(monkeypatch):
    """Its commits are seen only there: the offsets here would be older than its lag."""
    claimed = {}

    async def elsewhere(names):
        assert list(names) == ["g"]
        if not claimed:
            raise MetadataUnavailable("for a moment")
        return claimed["by others"]

    async with sharing_gateway() as gateway:
        await gateway.topic()
        await commit(gateway, "g", p0=0)
        await asyncio.sleep(UNLOADED_S)
        claims = gateway.context.groups._claims
        monkeypatch.setattr(claims, "claimed_elsewhere", elsewhere)
        assert await history.group_lags(gateway.context) == {}
        for others, found in ((set(), {"g"}), ({"g"}, set())):
            claimed["by others"] = others
            assert (await history.group_lags(gateway.context)).keys() == found


async def test_of_more_groups_than_a_history_keeps_the_loaded_ones_come_first():
    async with sharing_gateway(metrics=MetricsLimits(groups_max=1)) as gateway:
        await gateway.topic()
        await commit(gateway, "idle", p0=0)
        await asyncio.sleep(UNLOADED_S)
        assert (await history.group_lags(gateway.context)).keys() == {"idle"}
        await commit(gateway, "busy", p0=0)
        assert (await history.group_lags(gateway.context)).keys() == {"busy"}


def test_the_largest_is_unknown_if_one_is_and_0_of_none():
    assert largest([]) == 0.0
    assert largest([1.0, 3.0, 2.0]) == 3.0
    assert largest([1.0, None]) is None
