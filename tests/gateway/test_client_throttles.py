"""Goal: a client that has used up a quota is answered at once, and not read for the time to wait.

Method: a `Connection` on a transport in memory, virtual time, quotas as they are stored. Fetches
and changes of topics run as real requests over the simulated store.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from gateway.config import QuotaConfig
from gateway.core.client_quotas import QuotaOp
from gateway.core.fetch_session import INITIAL_EPOCH
from gateway.core.quota_book import AddressBook, Kept, RateBook
from gateway.core.quota_precedence import ClientLimits
from gateway.core.quota_rates import QuotaWindow, SampledRate
from gateway.handlers import k19_create_topics, k20_delete_topics, k37_create_partitions
from gateway.process.quota_wiring import QuotaWiring
from gateway.server.client_throttles import ClientThrottles
from gateway.server.request_times import RequestTimes
from gateway.settings.enforced_quotas import EnforcedQuotas
from gateway.settings.stored_settings import StoredSettings
from gateway.wire.messages import encode_response
from gateway.wire.node_endpoints import NodeEndpoint, endpoints_bytes
from gateway.wire.produce_reply import PartitionProduced, encode_produce
from gateway.wire.throttle_time import put_throttle_time
from ledger.ports.clock import measured_s
from tests.batches import blank_batch
from tests.gateway.handler_cluster import loaded_cluster
from tests.gateway.stream_cluster import FETCH, PRODUCE, started_cluster
from tests.gateway.test_connection import BEAT, HEARTBEAT, at_once, heartbeat, produce, produce_body
from tests.gateway.test_fetch import request as fetch_request
from tests.gateway.wire_peer import answers, connect, hub_for, request, turns
from tests.sim.loop import SimClock
from tests.sim.metadata import SimMetadata
from tests.steps import counted

TEST = {"client-id": "test"}
WINDOW = QuotaWindow()
EXCEEDED = ErrorCode.throttling_quota_exceeded


def quotas_of(*rows):
    quotas = EnforcedQuotas(QuotaConfig(), SimClock().monotonic_s)
    quotas.use(rows)
    return quotas


def limited(*apis, wait_s_max=600.0, **limits):
    """Return a registry whose client `test` has these limits."""
    registry = hub_for(*apis)
    registry.throttles = ClientThrottles(quotas_of((TEST, limits)), wait_s_max)
    return registry


def produced(request, ctx):
    """Answer a Produce, later, as its handler does."""
    future = asyncio.get_running_loop().create_future()
    reply = encode_produce(request.version, request.correlation_id, [("t", [PartitionProduced(4)])])
    future.set_result([reply] if request.body.acks else None)
    return future


def throttle_times(key, version, wire):
    return [answer.body.throttle_time.total_seconds() for answer in answers(key, version, wire)]


@pytest.mark.parametrize("version", [3, 5, 8, 9, 12])
async def test_a_produce_beyond_the_quota_is_answered_at_once_and_the_next_is_read_later(version):
    registry = limited(produce(produced), producer_byte_rate=100.0)
    wire = connect(registry)
    body = produce_body(records=b"x" * 2_000)
    wire.send(request(PRODUCE, version, 1, body))
    await turns()
    (first_s,) = throttle_times(PRODUCE, version, wire)
    assert 10 < first_s < 12  # over 10 s, 2,000 bytes are twice the quota
    wire.send(request(PRODUCE, version, 2, body))
    await asyncio.sleep(first_s - 0.01)
    assert wire.frames() == []
    assert not wire.reading
    await asyncio.sleep(0.02)
    assert len(wire.frames()) == 1


async def test_a_produce_without_reply_makes_its_client_wait_too():
    wire = connect(limited(produce(produced), heartbeat(at_once), producer_byte_rate=100.0))
    wire.send(request(PRODUCE, 9, 1, produce_body(acks=0, records=b"x" * 2_000)))
    await turns()
    wire.send(request(HEARTBEAT, 4, 2, BEAT))
    await asyncio.sleep(5)
    assert wire.frames() == []
    await asyncio.sleep(10)
    assert len(wire.frames()) == 1


async def test_only_the_bytes_behind_the_header_count():
    registry = limited(produce(produced), producer_byte_rate=1e6)
    wire = connect(registry)
    frame = request(PRODUCE, 9, 1, produce_body(records=b"x" * 2_000), client_id="test")
    wire.send(frame)
    await turns()
    quotas = registry.throttles._quotas
    rate = quotas.produce._rates.get(("", "test"))
    header = 4 + 2 + 2 + 4 + 2 + len("test") + 1
    assert rate.rate(WINDOW, quotas.now_ms()) == (len(frame) - header) / 10


async def test_clients_within_their_quota_and_those_without_do_not_wait():
    registry = limited(produce(produced), producer_byte_rate=1e6)
    for client_id in ("test", "other", None):
        wire = connect(registry)
        for number in range(20):
            wire.send(request(PRODUCE, 9, number, produce_body(), client_id))
        await turns()
        assert throttle_times(PRODUCE, 9, wire) == [0.0] * 20
    assert len(registry.throttles) == 0


async def test_requests_behind_the_first_one_beyond_the_quota_wait_and_the_wait_has_a_bound():
    registry = limited(produce(produced), wait_s_max=30.0, producer_byte_rate=1.0)
    wire = connect(registry)
    frame = request(PRODUCE, 9, 1, produce_body(records=b"x" * 5_000))
    wire.send(frame + frame + frame)  # the first is not answered when the second is there
    await turns()
    assert len(wire.frames()) == 1
    assert len(registry.throttles) == 1
    await asyncio.sleep(29)
    assert wire.frames() == []
    await asyncio.sleep(2)
    assert len(wire.frames()) == 1


async def test_a_connection_that_is_lost_waits_no_more():
    registry = limited(produce(produced), producer_byte_rate=1.0)
    wire = connect(registry)
    wire.send(request(PRODUCE, 9, 1, produce_body(records=b"x" * 5_000)))
    await turns()
    assert len(registry.throttles) == 1
    wire.lose()
    await turns()
    assert len(registry.throttles) == 0
    assert not registry.connections


async def test_time_of_the_loop_counts_under_a_request_quota_and_makes_wait_a_second_at_most():
    def busy(request, ctx):
        until_s = measured_s() + 0.02
        while measured_s() < until_s:
            pass
        return at_once(request, ctx)

    registry = limited(heartbeat(busy), request_percentage=0.01)
    times = RequestTimes(registry.dispatcher, registry.throttles.count_time)
    times.begin()
    wire = connect(registry)
    wire.send(request(HEARTBEAT, 4, 1, BEAT))
    await turns()
    assert throttle_times(HEARTBEAT, 4, wire) == [1.0]
    times.end()
    assert registry.dispatcher.open.__func__ is type(registry.dispatcher).open


async def test_a_coroutine_is_timed_in_its_steps_and_not_while_it_waits():
    spent = []

    async def slow(request, ctx):
        await asyncio.sleep(50)
        return at_once(request, ctx)

    registry = limited(heartbeat(slow), request_percentage=100.0)
    times = RequestTimes(registry.dispatcher, lambda request, _: spent.append(request.spent_s))
    times.begin()
    wire = connect(registry)
    wire.send(request(HEARTBEAT, 4, 1, BEAT))
    await asyncio.sleep(60)
    assert throttle_times(HEARTBEAT, 4, wire) == [0.0]
    assert 0 < spent[0] < 10


async def test_waits_end_when_no_quota_is_left():
    registry = limited(produce(produced), producer_byte_rate=1.0)
    wire = connect(registry)
    frame = request(PRODUCE, 9, 1, produce_body(records=b"x" * 5_000))
    wire.send(frame)
    await turns()
    throttles, registry.throttles = registry.throttles, None
    throttles.release_all()
    wire.frames()
    wire.send(frame)
    await turns(10)
    assert throttle_times(PRODUCE, 9, wire) == [0.0]


# -- encoded replies --------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("nodes", [(), (NodeEndpoint(1, "host", 9092, "rack"),)])
def test_a_throttle_time_is_put_into_an_encoded_produce_reply(version, nodes):
    topics = [("t", [PartitionProduced(4), PartitionProduced(5, 6, current_leader=(1, 2))])]
    if version == 13:
        topics = [(UUID(int=7), topics[0][1])]
    named = nodes if version >= 10 else ()
    reply = [encode_produce(version, 99, topics, nodes=named)]
    put_throttle_time(PRODUCE, version, reply, 1234, endpoints_bytes(named) if named else 0)
    assert reply == [encode_produce(version, 99, topics, 1234, named)]


@pytest.mark.parametrize("version", [1, 2, 5, 6, 11])
def test_a_throttle_time_is_the_first_field_of_other_replies(version):
    def encoded(**fields):
        return b"".join(encode_response(2, version, 99, {"topics": [], **fields}))

    reply = [encoded()]
    put_throttle_time(2, version, reply, 1234)
    assert reply == [encoded(throttle_time=1234)]


# -- fetches ----------------------------------------------------------------------------------


async def filled(cluster, count=10):
    partition = await cluster.topic("t")
    await cluster.sent(partition, *(blank_batch(1, 1_000) for _ in range(count)))


@pytest.mark.parametrize("version", [4, 7, 12, 18])
async def test_a_fetch_beyond_the_quota_returns_nothing_and_does_not_count(version):
    async with started_cluster() as cluster:
        await filled(cluster)
        cluster.client_id = "test"
        ctx, asked = cluster.context, {"t": {0: (0, {})}}
        ctx.quotas = quotas_of((TEST, {"consumer_byte_rate": 500.0}))
        body = fetch_request(cluster, asked, version, max_bytes=50 << 20)
        first = await cluster.answer(FETCH, version, **body)
        assert first.throttle_time.total_seconds() == 0
        size = sum(len(p.records or b"") for t in first.responses for p in t.partitions)
        assert 1_000 < size <= 5_000  # no more than the quota of a whole window
        second = await cluster.answer(FETCH, version, **body)
        assert second.throttle_time.total_seconds() > 0
        assert not second.responses
        again = await cluster.answer(FETCH, version, **body)
        assert again.throttle_time == second.throttle_time


async def test_an_empty_reply_leaves_a_session_as_it_was_and_opens_none():
    async with started_cluster() as cluster:
        await filled(cluster)
        cluster.client_id = "test"
        ctx, asked = cluster.context, {"t": {0: (0, {})}}

        async def ask(session_id, epoch, partitions):
            body = fetch_request(cluster, partitions, session_id=session_id, session_epoch=epoch)
            return await cluster.answer(FETCH, 18, **body)

        ctx.quotas = quotas_of((TEST, {"consumer_byte_rate": 1000.0}))
        ctx.quotas.fetch.add("ANONYMOUS", "test", 1e6, ctx.quotas.now_ms())
        refused = await ask(0, INITIAL_EPOCH, asked)
        assert (refused.session_id, len(refused.responses)) == (0, 0)
        assert refused.error_code is ErrorCode.none
        ctx.quotas = None
        opened = await ask(0, INITIAL_EPOCH, asked)
        assert opened.session_id
        ctx.quotas = quotas_of((TEST, {"consumer_byte_rate": 1000.0}))
        ctx.quotas.fetch.add("ANONYMOUS", "test", 1e6, ctx.quotas.now_ms())
        empty = await ask(opened.session_id, 1, {})
        assert (empty.session_id, len(empty.responses)) == (opened.session_id, 0)
        ctx.quotas = None
        whole = await ask(opened.session_id, 2, {})
        assert len(whole.responses) == 1  # the records that the empty reply left out


# -- changes of topics ------------------------------------------------------------------------


def creation(name, partitions, **fields):
    topics = [
        {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": 1,
            "assignments": [],
            "configs": [],
        }
    ]
    return {"topics": topics, "timeout": 0, "validate_only": False, **fields}


@pytest.mark.parametrize(("version", "refused"), [(5, False), (6, True), (7, True)])
async def test_partitions_beyond_the_quota_are_refused_where_the_code_is_known(version, refused):
    async with loaded_cluster() as cluster:
        quotas = cluster.context.quotas = quotas_of(
            ({"user": None}, {"controller_mutation_rate": 1})
        )
        codes = []
        for number in range(3):
            reply = await cluster.ask(k19_create_topics, version, **creation(f"t{number}", 10))
            codes.append(reply.topics[0].error_code)
        assert codes[:2] == [ErrorCode.none] * 2  # a burst of 11, and one more that begins in it
        assert (codes[2] is EXCEEDED) == refused
        if refused:
            assert reply.topics[0].error_message is None
        assert (cluster.context.catalog.by_name("t2") is None) == refused
        assert quotas.mutation.limits


async def test_deletions_and_new_partitions_count_and_validation_does():
    async with loaded_cluster() as cluster:
        await cluster.context.catalog.create("t", 4, 1, {})
        cluster.context.quotas = quotas_of(({"user": None}, {"controller_mutation_rate": 1}))
        asked = creation("v", 12, validate_only=True)
        assert (await cluster.ask(k19_create_topics, 7, **asked)).topics[0].error_code == 0
        topics = [{"name": "t", "count": 5, "assignments": None}]
        more = await cluster.ask(
            k37_create_partitions, 3, topics=topics, timeout=0, validate_only=False
        )
        assert more.results[0].error_code is EXCEEDED
        gone = await cluster.ask(
            k20_delete_topics, 6, topics=[{"name": "t", "topic_id": None}], timeout=0
        )
        assert gone.responses[0].error_code is EXCEEDED
        assert cluster.context.catalog.by_name("t").partitions == 4


# -- addresses, memory, changes ---------------------------------------------------------------


async def test_connections_beyond_the_quota_of_an_address_are_closed_after_the_time_to_wait():
    registry = hub_for(heartbeat(at_once))
    quotas = quotas_of(({"ip": "10.0.0.1"}, {"connection_creation_rate": 1.0}))
    registry.count_connection = quotas.connected
    wires = [connect(registry) for _ in range(12)]
    others = [connect(registry, host="10.0.0.2") for _ in range(12)]
    assert len(registry.connections) == 10 + 12
    late = wires[-1]
    assert (late.closed, late.reading) == (False, False)
    await asyncio.sleep(1.01)
    assert late.closed
    assert not any(wire.closed for wire in (*wires[:10], *others))
    assert connect(registry, host="10.0.0.1").closed is False


def test_the_quota_of_other_addresses_counts_each_by_itself():
    book = AddressBook(WINDOW)
    book.use({None: 2.0, "10.0.0.9": 1000.0})
    for host, count in (("10.0.0.1", 20), ("10.0.0.2", 20), ("10.0.0.9", 500)):
        assert [book.record(host, 10**12) for _ in range(count)] == [0] * count
    assert book.record("10.0.0.1", 10**12) == 500


def test_the_memory_of_a_hundred_thousand_client_ids_has_a_bound():
    book = RateBook(WINDOW, kept_max=1_000)
    book.use(ClientLimits([({"client-id": None}, 100.0), ({"user": "u"}, 1.0)]))
    book.record("u", "app", 1_000.0, 10**12)
    for number in range(100_000):
        now_ms = 10**12 + number // 20
        book.record("v", f"client-{number}", 10.0, now_ms)
        if number % 100 == 0:
            book.add("u", "app", 0.0, now_ms)
    assert len(book) <= 1_000
    assert book.record("u", "app", 0.0, 10**12 + 5_000) > 0  # one that is used is kept


def test_long_names_of_clients_take_no_more_memory_and_do_not_share_a_rate():
    limits = ClientLimits([({"user": None, "client-id": None}, 100.0)])
    names = ["c" * 30_000 + str(number) for number in range(3)]
    found = {limits.find("u" * 30_000, name).sharers for name in names}
    assert len(found) == 3
    assert max(len(text) for sharers in found for text in sharers) < 200
    assert limits.find("u", "c").sharers == ("u", "c")


def test_what_was_not_used_for_a_window_is_dropped_first():
    kept = Kept(4)
    for number in range(4):
        rate = SampledRate()
        rate.record(WINDOW, 1.0, 1_000 * number)
        kept.add(number, rate, 0)
    kept.add(4, SampledRate(), 2_500)
    assert [number for number in range(5) if kept.get(number)] == [3, 4]


class OneServer:
    """A server of which the wiring needs the registry."""

    def __init__(self, registry):
        self.registry = registry


async def test_a_change_by_another_gateway_acts_within_five_seconds_and_so_does_its_end():
    store = SimMetadata()
    here, there = StoredSettings(store), StoredSettings(store)
    await here.load()
    await there.load()
    registry = hub_for(produce(produced))
    config = SimpleNamespace(quotas=QuotaConfig(), connection=registry.limits)
    ctx = SimpleNamespace(config=config, clock=SimClock(), stored=here, quotas=None)
    wiring = QuotaWiring(ctx, OneServer(registry))
    here.quotas.on_changed.append(wiring.apply_soon)

    async def alter(entity, name, value):
        await there.quotas.alter(entity, [QuotaOp(name, value)], validate_only=False)
        await asyncio.sleep(5)

    await alter({"client-id": "test"}, "request_percentage", 1.0)
    assert registry.throttles is not None
    assert "open" in vars(registry.dispatcher)  # requests are timed
    await alter({"ip": "127.1"}, "connection_creation_rate", 3.0)
    assert ctx.quotas.connection.limits == {"127.0.0.1": 3.0}
    assert registry.count_connection is not None
    await alter({"client-id": "test"}, "request_percentage", None)
    assert registry.throttles is None
    await alter({"client-id": "other"}, "producer_byte_rate", float("nan"))
    assert not ctx.quotas.produce.limits
    await alter({"ip": "127.1"}, "connection_creation_rate", None)
    assert registry.count_connection is None
    await here.close()
    await there.close()


async def produce_steps(registry):
    """Return the least steps of a Produce from its bytes to its reply."""
    wire, frame = connect(registry), request(PRODUCE, 12, 1, produce_body(records=b"x" * 2_000))
    found = []
    for _ in range(5):
        with counted() as steps:
            wire.send(frame)
            await turns()
        found.append(steps.count)
    assert len(wire.frames()) == 5
    return min(found)


async def test_the_quota_of_another_client_costs_a_produce_few_steps():
    without = await produce_steps(hub_for(produce(produced)))
    registry = hub_for(produce(produced))
    another = {"client-id": "another"}, {"producer_byte_rate": 1e7}
    registry.throttles = ClientThrottles(quotas_of(another), 600.0)
    assert await produce_steps(registry) - without <= 150


def test_kept_limits_are_those_of_each_client_and_have_a_bound():
    rows = [({"user": "ann"}, 1.0), ({"client-id": None}, 2.0), ({"client-id": "c7"}, 3.0)]
    limits = ClientLimits(rows)
    asked = [("ann", "c7"), ("", "c7"), ("bob", "c1"), ("", None), ("ann", None)]
    fresh = [ClientLimits(rows).find(*each) for each in asked]
    for number in range(3_000):
        limits.find("", f"x{number}")
        limits.find("", "y" * (200 + number))
    assert [limits.find(*each) for each in asked] == fresh
    assert [limits.find(*each) for each in asked] == fresh
    assert len(limits._found) <= 1_024
    assert max(len(client or "") for _, client in limits._found) <= 128
