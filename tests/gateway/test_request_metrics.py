"""Goal: each request is counted once, with its time and error, and the slowest keep their stages.

Method: a `Connection` on a transport in memory, rows whose handlers the test decides, a clock that
the test sets; topics over real streams on virtual time.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from gateway.handlers.api import Api, Peer, Reply, Request
from gateway.handlers.request_metrics import RequestMetrics, first_error
from gateway.handlers.slow_requests import SLOWEST, WINDOW_S, SlowRequests, first_synced_s
from gateway.server.dispatch import DECODE_TIMED_BYTES
from gateway.server.registry import Refused
from gateway.topics.topic_traffic import OTHER, TopicTraffic
from ledger.add_times import add_times
from ledger.ports.clock import SECONDS, measured_s
from tests.gateway.stream_cluster import FETCH, PRODUCE, batch, started_cluster
from tests.gateway.test_fetch import request as fetch_fields
from tests.gateway.wire_peer import connect, hub_for, request, turns

HEARTBEAT, METADATA = 12, 3
BEAT = {"group_id": "g", "generation_id": 1, "member_id": "m"}


class Clock:
    now_s = 1000.0

    def __call__(self):
        return self.now_s


def heartbeat(handle):
    return Api(key=HEARTBEAT, name="Heartbeat", versions=range(5), handle=handle)


def figures(registry, key=HEARTBEAT):
    return registry.dispatcher.metrics.apis[key]


# counts


async def test_a_request_is_counted_once_with_the_error_of_its_reply():
    codes = iter((0, 27, 27))
    registry = hub_for(heartbeat(lambda request, ctx: Reply(error_code=next(codes))))
    wire = connect(registry)
    for number in range(3):
        wire.send(request(HEARTBEAT, 4, number, BEAT))
    found = figures(registry)
    assert (sum(found.counts), found.errors) == (3, {27: 2})
    assert found.total_s > 0


async def test_a_request_that_is_answered_later_is_counted_when_it_is():
    futures = []

    def later(request, ctx):
        futures.append(asyncio.get_running_loop().create_future())
        return futures[-1]

    registry = hub_for(heartbeat(later))
    wire = connect(registry)
    wire.send(request(HEARTBEAT, 4, 1, BEAT))
    assert sum(figures(registry).counts) == 0
    futures[0].set_result(Reply(error_code=0))
    await turns()
    assert sum(figures(registry).counts) == 1


async def test_a_handler_that_fails_is_counted_as_unknown_server_error():
    def fail(request, ctx):
        raise RuntimeError("planted")

    registry = hub_for(heartbeat(fail))
    connect(registry).send(request(HEARTBEAT, 4, 1, BEAT))
    assert figures(registry).errors == {-1: 1}


async def test_every_api_has_counts_before_its_first_request():
    registry = hub_for(heartbeat(lambda request, ctx: Reply(error_code=0)))
    assert sum(figures(registry).counts) == 0


def test_the_first_error_is_found_in_topics_and_partitions():
    nested = {"topics": [{"partitions": [{"error_code": 0}, {"error_code": 6}]}]}
    assert first_error(nested) == 6
    assert first_error({"error_code": 3, **nested}) == 3
    assert first_error({"topics": [{"name": "t"}], "brokers": [1, "x"]}) == 0


@given(st.lists(st.floats(0, 100), max_size=50))
def test_each_time_is_in_its_bucket(times):
    clock = Clock()
    metrics = RequestMetrics(clock)
    metrics.serve({HEARTBEAT: "Heartbeat"})
    for seconds in times:
        metrics.ended(a_request(clock.now_s - seconds), ())
    counts = metrics.apis[HEARTBEAT].counts
    assert sum(counts) == len(times)
    below = 0
    for bound, count in zip(SECONDS, counts, strict=False):
        below += count
        # a time is the difference of two clock readings, so it may be off by the last digits
        assert sum(each < bound - 1e-9 for each in times) <= below
        assert below <= sum(each <= bound + 1e-9 for each in times)


# connections


async def test_connections_and_their_bytes_are_counted_also_when_they_are_closed():
    registry = hub_for(heartbeat(lambda request, ctx: Reply(error_code=0)))
    first, second = connect(registry), connect(registry)
    sent = request(HEARTBEAT, 4, 1, BEAT)
    first.send(sent)
    second.send(sent)
    await turns()
    before = registry.counts()
    assert (before.open, before.bytes_in) == (2, 2 * len(sent))
    assert before.bytes_out == len(first.sent) + len(second.sent)
    first.lose()
    await turns()
    after = registry.counts()
    assert after.open == 1
    assert (after.bytes_in, after.bytes_out) == (before.bytes_in, before.bytes_out)


async def test_refusals_are_counted_by_their_reason():
    registry = hub_for(heartbeat(lambda request, ctx: Reply(error_code=0)), connections_max=2)
    connect(registry).send(b"GET / HTTP/1.1\r\n\r\n")
    connect(registry).send(request(METADATA, 1, 1, {"topics": []}))  # not served here
    connect(registry)
    await turns()
    assert registry.refusals == {Refused.NOT_KAFKA: 1, Refused.REQUEST: 1, Refused.TOO_MANY: 1}
    assert registry.counts().refused["timeout"] == 0


async def test_the_lag_of_the_loop_has_a_sample_each_second():
    registry = hub_for()
    registry.start()
    await asyncio.sleep(5.5)
    registry.stop()
    assert sum(registry.counts().loop_lag.counts) == 5


# slow requests


def a_request(begun_s=1000.0, key=HEARTBEAT, **more):
    peer = Peer("10.0.0.1", 50_000, "10.0.0.9", 9_092)
    found = Request(key, 4, 1, more.pop("client_id", "c"), peer, more.pop("body", None))
    found.begun_s, found.decoded_s = begun_s, begun_s + 0.001
    for name, value in more.items():
        setattr(found, name, value)
    return found


def offered(slow, seconds, **more):
    return slow.offer(a_request(**more), seconds, (b"x" * 10,))


def test_the_slowest_of_many_are_kept_and_no_others():
    slow = SlowRequests(Clock())
    for number in range(5 * SLOWEST):
        offered(slow, (number * 7919 % (5 * SLOWEST)) / 100)
    kept = [each.seconds for each in slow.slowest()]
    assert kept == [number / 100 for number in range(5 * SLOWEST - 1, 4 * SLOWEST - 1, -1)]
    assert slow.above_s == 4 * SLOWEST / 100
    assert offered(slow, slow.above_s) is None


def test_a_slow_request_is_forgotten_after_an_hour_and_kept_for_half_of_it():
    clock = Clock()
    slow = SlowRequests(clock)
    offered(slow, 9.0)
    clock.now_s += WINDOW_S - 1
    assert len(slow.slowest()) == 1
    clock.now_s += WINDOW_S
    assert len(slow.slowest()) == 1
    clock.now_s += 2
    assert slow.slowest() == []


def test_a_new_window_takes_requests_that_the_last_one_would_not():
    clock = Clock()
    metrics = RequestMetrics(clock)
    metrics.serve({HEARTBEAT: "Heartbeat"})
    for _ in range(SLOWEST):
        metrics.ended(a_request(clock.now_s - 10), ())
    assert metrics.ended(a_request(clock.now_s - 5), ()) is None
    clock.now_s += WINDOW_S
    metrics.age()
    assert metrics.ended(a_request(clock.now_s - 5), ()) is not None


def test_a_reader_who_begins_a_new_window_keeps_no_bound_of_the_last_one():
    clock = Clock()
    metrics = RequestMetrics(clock)
    metrics.serve({HEARTBEAT: "Heartbeat"})
    for _ in range(SLOWEST):
        metrics.ended(a_request(clock.now_s - 10), ())
    clock.now_s += WINDOW_S
    assert len(metrics.apis[HEARTBEAT].slow.slowest()) == SLOWEST  # the page asks before `age`
    metrics.age()
    assert metrics.ended(a_request(clock.now_s - 5), ()) is not None


def test_a_fetch_is_compared_without_the_time_for_which_its_client_wants_to_wait():
    slow = SlowRequests(Clock())
    body = SimpleNamespace(wait_ms=500, topics=[("orders", None)])
    waits = {"key": FETCH, "body": body, "accepted_s": 1000.002}
    assert offered(slow, 0.5, **waits) is None
    noted = offered(slow, 2.0, **waits)
    assert (noted.seconds, noted.wait_s, noted.own_s, noted.topic) == (2.0, 0.5, 1.5, "orders")
    prompt = offered(slow, 0.1, key=FETCH, body=body)  # it did not wait
    assert (prompt.wait_s, prompt.own_s) == (None, 0.1)


def test_stages_are_those_that_are_known():
    slow = SlowRequests(Clock())
    part = SimpleNamespace(records=b"r" * 70)
    data = [SimpleNamespace(name="orders", partition_data=[part, part])]
    body = SimpleNamespace(topic_data=data)
    noted = offered(slow, 0.5, key=PRODUCE, body=body, accepted_s=1000.004, error=6)
    assert round(noted.decode_s, 6) == 0.001
    assert round(noted.append_s, 6) == 0.003
    assert round(noted.quorum_s, 6) == 0.496
    assert (noted.queue_s, noted.journal_s) == (None, None)
    assert (noted.topic, noted.topics, noted.bytes, noted.error) == ("orders", 1, 140, 6)
    other = offered(slow, 0.5, started_s=1000.2)
    assert round(other.queue_s, 6) == 0.199
    assert (other.append_s, other.quorum_s, other.bytes) == (None, None, 10)


def test_the_journal_is_the_time_until_the_first_bookie_had_synced_the_batches():
    asked = []

    def first_synced(request, ended_s):
        asked.append((request, ended_s))
        return 1000.25

    slow = SlowRequests(Clock(), first_synced)
    noted = offered(slow, 0.5, key=PRODUCE, accepted_s=1000.004)
    assert (round(noted.append_s, 6), round(noted.journal_s, 6)) == (0.003, 0.246)
    assert round(noted.quorum_s, 6) == 0.25
    assert [ended_s for _, ended_s in asked] == [1000.5]
    before = offered(slow, 0.5, key=PRODUCE, accepted_s=1000.3)  # it was sent before the stamp
    assert (before.journal_s, round(before.quorum_s, 6)) == (0.0, 0.2)
    refused = offered(slow, 0.6, key=PRODUCE, accepted_s=1000.004, error=6)
    assert (refused.journal_s, len(asked)) == (None, 2)
    assert offered(slow, 0.7).journal_s is None  # no Produce


async def test_a_produce_finds_when_the_bookies_of_its_partition_had_its_batch():
    async with started_cluster() as cluster:
        await cluster.topic()
        topic = {"name": "t", "partition_data": [{"index": 0, "records": batch()}]}
        fields = {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": [topic]}
        asked, handle = opened(cluster, PRODUCE, 9, fields)
        await cluster.dispatcher.start(asked, handle)
        now_s = measured_s()
        synced_s = first_synced_s(cluster.context, asked, now_s)
        assert synced_s is None or asked.begun_s <= synced_s <= now_s
        assert first_synced_s(cluster.context, asked, now_s + 1) is None
        (times,) = [each for each in list(add_times._newest)[-1:] if each[2] >= asked.begun_s]
        assert first_synced_s(cluster.context, asked, times[-1]) == times[5]
        missing, _ = opened(cluster, PRODUCE, 9, {**fields, "topic_data": []})
        assert first_synced_s(cluster.context, missing, times[-1]) is None


async def test_a_small_produce_has_no_stage_decode_and_a_large_one_has():
    futures = []

    def later(request, ctx):
        futures.append(asyncio.get_running_loop().create_future())
        return futures[-1]

    registry = hub_for(Api(key=PRODUCE, name="Produce", versions=range(3, 14), handle=later))
    wire = connect(registry)
    for size in (100, DECODE_TIMED_BYTES):
        topic = {"name": "t", "partition_data": [{"index": 0, "records": b"x" * size}]}
        fields = {"acks": -1, "timeout": 1000, "topic_data": [topic]}
        wire.send(request(PRODUCE, 9, size, fields))
    for each in futures:
        each.set_result([b"\0" * 8])
    await turns()
    small, large = sorted(figures(registry, PRODUCE).slow.slowest(), key=lambda each: each.bytes)
    assert small.decode_s is None and large.decode_s is not None
    for each in (small, large):
        parts = [each.decode_s or 0, each.append_s, each.quorum_s]
        assert abs(sum(parts) - each.seconds) < 1e-6


async def test_requests_that_came_at_once_begin_together():
    begun = []

    def note(asked, ctx):
        begun.append(asked.begun_s)
        return Reply(error_code=0)

    wire = connect(hub_for(heartbeat(note)))
    wire.send(b"".join(request(HEARTBEAT, 4, number, BEAT) for number in range(3)))
    wire.send(request(HEARTBEAT, 4, 3, BEAT))
    assert begun[0] == begun[1] == begun[2] < begun[3]


def test_what_a_client_chose_is_cut():
    slow = SlowRequests(Clock())
    noted = offered(slow, 1.0, client_id="c" * 100_000)
    assert len(noted.client_id) == 200


async def test_a_request_behind_another_one_waits_in_the_queue_and_its_reply_for_the_first():
    async def slowly(request, ctx):
        await asyncio.sleep(0.1)
        return Reply(error_code=0)

    registry = hub_for(heartbeat(slowly))
    wire = connect(registry)
    for number in range(2):
        wire.send(request(HEARTBEAT, 4, number, BEAT))
    await asyncio.sleep(1)
    found = figures(registry).slow.slowest()
    assert len(found) == 2
    assert all(each.queue_s is not None and each.write_s is not None for each in found)
    assert {each.address for each in found} == {"10.0.0.1:50000"}


async def test_a_reply_that_waits_for_an_earlier_one_notes_when_it_left():
    futures = []

    def later(request, ctx):
        futures.append(asyncio.get_running_loop().create_future())
        return futures[-1]

    produce = Api(key=PRODUCE, name="Produce", versions=range(3, 14), handle=later)
    registry = hub_for(produce)
    wire = connect(registry)
    topic = {"name": "t", "partition_data": [{"index": 0, "records": b"x" * 70}]}
    fields = {"acks": -1, "timeout": 1000, "topic_data": [topic]}
    for number in range(2):
        wire.send(request(PRODUCE, 9, number, fields))
    futures[1].set_result([b"\0" * 8])
    await turns()
    (waiting,) = figures(registry, PRODUCE).slow.slowest()
    ready_s = waiting.ended_s
    assert waiting.write_s == 0.0
    futures[0].set_result([b"\0" * 8])
    await turns()
    assert waiting.write_s > 0.0
    assert waiting.ended_s == ready_s
    assert len(wire.frames()) == 2


# topics


def test_topics_beyond_the_bound_share_one_count_until_there_is_room():
    traffic = TopicTraffic(topics_max=2)
    for name in ("a", "b", "c", OTHER):
        traffic.of(name).bytes_in += 1
    assert dict(rows_of(traffic)) == {"a": 1, "b": 1, OTHER: 2}
    assert dict(rows_of(traffic, gone={"a"})) == {"b": 1, OTHER: 2}
    traffic.of("c").bytes_in += 5
    assert dict(rows_of(traffic)) == {"b": 1, OTHER: 2, "c": 5}
    assert traffic.total().bytes_in == 9


def rows_of(traffic, gone=()):
    return [(name, each.bytes_in) for name, each in traffic.rows(lambda name: name not in gone)]


async def test_batches_are_counted_by_topic_when_they_are_written_and_fetched():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        data = batch(records=3)
        await cluster.sent(partition, data, data)
        await cluster.answer(FETCH, 12, **fetch_fields(cluster, {"t": {0: (0, {})}}, 12))
        traffic = cluster.partitions.traffic.of("t")
        assert (traffic.records_in, traffic.bytes_in) == (6, 2 * len(data))
        assert (traffic.records_out, traffic.bytes_out) == (6, 2 * len(data))


async def test_the_error_of_a_produce_is_that_of_its_partition():
    async with started_cluster() as cluster:
        await cluster.topic()
        topic = {"name": "t", "partition_data": [{"index": 0, "records": b"no batch"}]}
        fields = {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": [topic]}
        asked, handle = opened(cluster, PRODUCE, 9, fields)
        await cluster.dispatcher.start(asked, handle)
        assert asked.error == 2  # CORRUPT_MESSAGE
        missing = {"name": "none", "partition_data": [{"index": 0, "records": batch()}]}
        asked, handle = opened(cluster, PRODUCE, 9, {**fields, "topic_data": [missing]})
        await cluster.dispatcher.start(asked, handle)
        assert asked.error == 3  # UNKNOWN_TOPIC_OR_PARTITION


async def test_the_error_of_a_fetch_is_that_of_its_partition():
    async with started_cluster() as cluster:
        await cluster.topic()
        asked, handle = opened(
            cluster, FETCH, 11, fetch_fields(cluster, {"t": {0: (77, {})}}, 11, wait_ms=0)
        )
        result = cluster.dispatcher.start(asked, handle)
        if asyncio.isfuture(result):
            await result
        assert asked.error == 1  # OFFSET_OUT_OF_RANGE


def opened(cluster, key, version, fields):
    frame = request(key, version, 1, fields)[4:]
    return cluster.dispatcher.open(frame, Peer("127.0.0.1", 1, "127.0.0.1", 2))
