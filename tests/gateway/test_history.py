"""Goal: plots show what was, at its time: gaps as gaps, sums of gateways once, in bounded memory.

Method: rings against a dictionary, by Hypothesis; the history of a gateway over real topics on
virtual time; answers of several gateways, with each mistake of adding them planted.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.history_rings import (
    COARSE,
    FINE,
    Ring,
    Series,
    added,
    any_of,
    quantile,
    slot_of,
)
from gateway.metrics import history as histories
from gateway.metrics.history import (
    BOOKIES_MAX,
    GROUPS_MAX,
    KINDS,
    SPANS,
    History,
    history,
    merged,
)
from ledger.ports.clock import SECONDS, Histogram
from tests.gateway.stream_cluster import batch, started_cluster
from tests.steps import counted

MEMORY_BYTES_MAX = 16_000_000
STEPS_MAX = 100_000  # about 5 ms
COUNT = 6

# rings


@given(st.lists(st.tuples(st.integers(0, 30), st.none() | st.integers(0, 1000)), max_size=40))
def test_a_ring_has_the_points_of_its_newest_slots(steps):
    ring, known, newest = Ring(COUNT), {}, None
    for slot, number in steps:
        if newest is not None and slot < newest:
            known = {}  # the clock was set back
        ring.put(slot, [number])
        known[slot] = number
        newest = slot
        points = [row[0] for row in ring.points(newest, COUNT)]
        assert points == [known.get(each) for each in range(newest - COUNT + 1, newest + 1)]


def test_a_slot_that_is_not_there_is_unknown_and_not_0():
    ring = Ring(COUNT)
    ring.put(3, [0.0])
    ring.put(5, [2.0])
    assert [row[0] for row in ring.points(7, 5)] == [0.0, None, 2.0, None, None]


def test_a_number_of_a_point_may_be_unknown():
    ring = Ring(COUNT, 2)
    ring.put(1, [None, 0.1])
    assert ring.points(1, 1) == [[None, 0.1]]


def test_a_coarse_point_is_the_mean_or_the_sum_of_its_fine_ones():
    means, sums = Series(), Series(sums=True)
    for at in range(6):
        number = None if at == 2 else float(at)
        means.put(60_000 + 10_000 * at, [number])
        sums.put(60_000 + 10_000 * at, [number])
    assert means.points(slot_of(60_000, COARSE), COARSE)[-1] == [2.6]
    assert sums.points(slot_of(60_000, COARSE), COARSE)[-1] == [13.0]
    fine = [row[0] for row in means.points(slot_of(110_000, FINE), FINE)[-6:]]
    assert fine == [0.0, 1.0, None, 3.0, 4.0, 5.0]


def test_the_rings_of_all_groups_and_bookies_fit_into_their_memory():
    own = Series(4).size_bytes + 3 * Series(len(SECONDS) + 1).size_bytes
    assert own + (GROUPS_MAX + BOOKIES_MAX) * Series(2).size_bytes <= MEMORY_BYTES_MAX


# quantiles


@given(st.lists(st.floats(0.001, 29), min_size=1, max_size=200), st.sampled_from([0.5, 0.99]))
def test_a_quantile_is_in_the_class_of_the_time_at_its_place(times, share):
    histogram = Histogram()
    for seconds in times:
        histogram.add(seconds)
    found = quantile(histogram.counts, SECONDS, share)
    exact = sorted(times)[max(0, -int(-share * len(times) // 1) - 1)]
    at = next(at for at, bound in enumerate(SECONDS) if exact <= bound)
    low = SECONDS[at - 1] if at else 0.0
    assert low - 1e-9 <= found <= SECONDS[at] + 1e-9


def test_a_quantile_of_nothing_is_unknown():
    assert quantile([0.0] * 15, SECONDS, 0.5) is None
    assert quantile([None] * 15, SECONDS, 0.99) is None


def test_a_quantile_above_all_bounds_is_the_last_bound():
    assert quantile([0.0] * 14 + [3.0], SECONDS, 0.5) == 30


# several gateways


def rows(*numbers):
    return [[number] for number in numbers]


def test_rates_of_gateways_are_added_and_a_silent_one_is_no_0():
    found = merged("bytes_in", [{"": rows(1.0, None, None)}, {"": rows(2.0, 3.0, None)}])
    assert found == {"bytes_in": [3.0, 3.0, None]}


def test_a_group_that_two_gateways_saw_is_not_counted_twice():
    moved = [{"g": rows(5.0, 7.0, None)}, {"g": rows(None, 7.0, 9.0), "h": rows(1.0, 1.0, 1.0)}]
    assert merged("lag_records", moved) == {"g": [5.0, 7.0, 9.0], "h": [1.0, 1.0, 1.0]}
    mistake = added([[row[0] for row in each["g"]] for each in moved])
    assert mistake == [5.0, 14.0, 9.0]  # what a sum would show


def test_a_bookie_that_two_gateways_asked_is_not_counted_twice():
    disks = [{"b": rows(100.0, 110.0)}, {"b": rows(100.0, None)}]
    assert merged("disk_bytes", disks) == {"b": [100.0, 110.0]}


def test_quantiles_come_of_the_added_buckets_and_not_of_other_quantiles():
    fast, slow = Histogram(), Histogram()
    for _ in range(99):
        fast.add(0.001)
    slow.add(20.0)
    answers = [{"Produce": [each.counts]} for each in (fast, slow)]
    found = merged("request_ms", answers)
    assert found["p50"][0] <= 1.0
    means = [quantile(each.counts, SECONDS, 0.5) for each in (fast, slow)]
    assert found["p50"][0] < 1000 * sum(means) / 2  # a mean of medians would be seconds
    assert merged("request_ms", []) == {}


def test_any_of_is_unknown_where_all_are():
    assert any_of([[None, 1.0], [None, 2.0]]) == [None, 2.0]


# one gateway


async def no_lags(ctx):
    return {}


async def beginning(cluster, lags=no_lags):
    """Its history, with the first counts, at the begin of a slot."""
    cluster.context.streams = cluster.services
    found = History(cluster.context, lags)
    step_ms = 1_000 * FINE.seconds
    await asyncio.sleep((step_ms - cluster.clock.now_ms() % step_ms) / 1_000)
    await found.take()
    return found


async def newest(cluster, found, series, of="", back=0):
    """The newest complete points of each line."""
    last = slot_of(cluster.clock.now_ms(), FINE) - 1 - back
    lines = await found.lines(series, of, FINE, last)
    return {name: points[-1][0] for name, points in lines.items()}


async def test_rates_are_those_of_the_last_ten_seconds():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        found = await beginning(cluster)
        data = batch(records=5)
        await cluster.sent(partition, data, data)
        await asyncio.sleep(10 - 0.001 * (cluster.clock.now_ms() % 10_000))
        await found.take()
        assert (await newest(cluster, found, "records_in")) == {"": pytest.approx(1.0, rel=0.01)}
        assert (await newest(cluster, found, "bytes_in")) == {
            "": pytest.approx(len(data) / 5, rel=0.01)
        }
        assert (await newest(cluster, found, "records_in", back=1)) == {"": None}
        await asyncio.sleep(10)
        await found.take()
        assert (await newest(cluster, found, "records_in")) == {"": 0.0}


async def test_a_topic_that_is_deleted_makes_no_rate_negative():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        found = await beginning(cluster)
        await cluster.sent(partition, batch())
        traffic = cluster.partitions.traffic
        assert dict(traffic.rows(lambda name: False)).keys() == {"other"}
        await asyncio.sleep(10)
        await found.take()
        assert (await newest(cluster, found, "records_in"))[""] > 0


async def test_bookies_have_their_sync_time_and_used_disk():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch())
        found = await beginning(cluster)
        await cluster.sent(partition, batch())
        await asyncio.sleep(10)
        await found.take()
        (sync_ms,) = (await newest(cluster, found, "sync_ms")).values()
        (used,) = (await newest(cluster, found, "disk_bytes")).values()
        assert sync_ms is not None
        assert used > 0


async def test_a_gateway_that_is_not_the_first_asks_no_bookie():
    async with started_cluster() as cluster:
        await cluster.topic()
        cluster.context.cluster = Second(cluster.context.cluster)
        found = await beginning(cluster)
        await asyncio.sleep(10)
        await found.take()
        assert (await newest(cluster, found, "disk_bytes")) == {}


class Second:
    """A cluster in which another gateway has a smaller node id."""

    def __init__(self, cluster):
        self._cluster = cluster
        self.node_id = cluster.node_id + 1

    def members(self):
        (first,) = self._cluster.members()
        return [first, first._replace(node_id=self.node_id)]


async def test_groups_beyond_the_bound_make_room_only_when_they_are_gone(monkeypatch):
    monkeypatch.setattr(histories, "GROUPS_MAX", 2)
    present = {"a": (1.0, 2.0), "b": (3.0, None)}

    async def lags(ctx):
        return dict(present)

    async with started_cluster() as cluster:
        found = await beginning(cluster, lags)
        present["c"] = (5.0, 5.0)
        await asyncio.sleep(10)
        await found.take()
        assert (await newest(cluster, found, "lag_records")).keys() == {"a", "b"}
        assert (await newest(cluster, found, "lag_seconds")) == {"a": 2.0, "b": None}
        del present["a"]
        await asyncio.sleep(10)
        await found.take()
        await asyncio.sleep(10)
        await found.take()
        assert (await newest(cluster, found, "lag_records")) == {"b": 3.0, "c": 5.0}


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("series", KINDS)
async def test_every_series_has_the_form_of_the_api(series, span):
    async with started_cluster() as cluster:
        found = await history(cluster.context, series, "", span)
        step = SPANS[span]
        assert (found["series"], found["step_s"]) == (series, step.seconds)
        assert found["unit"] == KINDS[series].unit
        assert found["lines"] == []  # it has not begun
        end_ms = found["from_ms"] + 1_000 * step.seconds * step.points
        assert 0 <= cluster.clock.now_ms() - end_ms < 1_000 * step.seconds


async def test_the_history_takes_points_by_itself_and_ends_with_its_gateway():
    async with started_cluster() as cluster:
        await cluster.topic()
        cluster.context.lazy["history"] = found = History(cluster.context, no_lags)
        found.start()
        await asyncio.sleep(65)
        answer = await history(cluster.context, "bytes_in", "", "1h")
        (line,) = answer["lines"]
        assert line["name"] == "bytes_in"
        assert len(line["points"]) == FINE.points
        assert sum(point is not None for point in line["points"]) in (5, 6)
        await found.close()


class SlowClock:
    """Wall time that is slower than the timers of the loop, so that these are early."""

    def __init__(self, clock):
        self._clock, self._begun_ms = clock, clock.now_ms()

    def now_ms(self):
        return self._begun_ms + (self._clock.now_ms() - self._begun_ms) * 9_999 // 10_000

    def monotonic_s(self):
        return self._clock.monotonic_s()


async def test_a_timer_that_is_early_makes_no_second_point_of_a_slot():
    async with started_cluster() as cluster:
        cluster.context.clock = clock = SlowClock(cluster.clock)
        found = History(cluster.context, no_lags)
        slots, take = [], found.take

        async def noted():
            slots.append(slot_of(clock.now_ms(), FINE))
            await take()

        found.take = noted
        found.start()
        await asyncio.sleep(65)
        await found.close()
        assert len(slots) == len(set(slots)) >= 5


def test_the_parts_of_a_read_only_group_are_added_and_its_age_is_the_largest():
    parts = [{"s": rows(5.0, 7.0, None)}, {"s": rows(2.0, 1.0, None), "g": rows(1.0, 1.0, 1.0)}]
    found = merged("lag_records", parts, ["s"])
    assert found == {"s": [7.0, 8.0, None], "g": [1.0, 1.0, 1.0]}
    assert merged("lag_seconds", parts)["s"] == [5.0, 7.0, None]


async def test_a_history_names_the_groups_of_which_it_sees_a_part():
    async def lags(ctx):
        return {"spark": (5.0, 1.0), "classic": (7.0, 1.0)}

    async with started_cluster() as cluster:
        ctx = cluster.context
        ctx.read_only_groups = SimpleNamespace(names=lambda: ["spark", "classic", "other"])
        ctx.groups = SimpleNamespace(stored=lambda name: name == "classic")
        ctx.lazy["history"] = found = await beginning(cluster, lags)
        last = slot_of(cluster.clock.now_ms(), FINE) - 1
        body = {"of": "", "span": "1h", "last": last}
        answer = await histories.answer({"series": "lag_records", **body}, ctx)
        assert answer["parts"] == ["spark"]
        answer = await histories.answer({"series": "lag_seconds", **body}, ctx)
        assert answer["parts"] == []
        ctx.groups = SimpleNamespace(stored=lambda name: True)  # it commits offsets now
        await found.take()
        answer = await histories.answer({"series": "lag_records", **body}, ctx)
        assert answer["parts"] == []


async def test_a_question_that_is_not_one_is_refused():
    async with started_cluster() as cluster:
        ctx = cluster.context
        good = {"series": "bytes_in", "of": "", "span": "1h", "last": 5}
        assert "lines" in await histories.answer(good, ctx)
        for bad in ({"series": "x"}, {"span": "2h"}, {"of": 5}, {"last": -1}, {"last": True}):
            answer = await histories.answer({**good, **bad}, ctx)
            assert answer["error"] == "INVALID_REQUEST"


async def test_no_part_of_the_work_keeps_the_loop_for_long():
    """Steps of the interpreter between two turns stand for time, which other processes disturb."""
    groups = {f"g{number}": (float(number), 1.0) for number in range(GROUPS_MAX)}

    async def lags(ctx):
        return groups

    async with started_cluster() as cluster:
        found = await beginning(cluster, lags)
        cluster.context.lazy["history"] = found
        longest = 0

        async def watched(work):
            nonlocal longest
            task = asyncio.ensure_future(work)
            while not task.done():
                with counted() as steps:
                    await asyncio.sleep(0)
                longest = max(longest, steps.count)
            return task.result()

        await watched(found.take())
        answer = await watched(history(cluster.context, "lag_records", "", "24h"))
        assert [line["name"] for line in answer["lines"]] == [f"g{999 - at}" for at in range(10)]
        await watched(history(cluster.context, "request_ms", "", "24h"))
        assert longest < STEPS_MAX
