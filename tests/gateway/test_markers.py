"""Goal: the marker of a transaction reaches each of its partitions, wherever it is, and the
coordinator gets one answer for each, also when owners move, gateways fall silent or topics go.

Method: the real sender over a catalog in the simulator's metadata store, on virtual time. The
cluster, the partitions of this gateway and the connections to others are ports that the test
answers; requests between gateways are encoded and decoded as on the wire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager

from kio.schema.errors import ErrorCode as Code

from gateway.cluster.port import Leader
from gateway.config import TopicDefaults
from gateway.core.topic_names import CONSUMER_OFFSETS
from gateway.core.transaction_effects import Marker
from gateway.core.transaction_states import TopicPartition
from gateway.topics.catalog import Catalog
from gateway.transactions import markers as sender_module
from gateway.transactions.markers import ClusterMarkers
from gateway.wire.marker_request import decode_markers
from gateway.wire.messages import decode_response, encode_response
from tests.gateway.paper_cluster import PaperCluster, member
from tests.sim.metadata import SimMetadata

ME, OTHER, THIRD = 1, 2, 3
KEY, VERSION = 27, 2


def marker(*partitions, number=1, producer=7, epoch=3):
    named = frozenset(TopicPartition(*each) for each in partitions)
    return Marker("id", producer, 0, epoch, True, named, 2, number)


class Own:
    """The partitions of this gateway: each marker is answered by the test, or at once by `code`."""

    def __init__(self):
        self.appended = []
        self.code = Code.none
        self.stopped = []

    def stop(self, sender):
        self.stopped.append(sender)

    def append(self, topic, index, marker, on_marked, topic_id=None, sender=None):
        self.appended.append((topic, index, marker, on_marked))
        if self.code is not None:
            on_marked(self.code)


class Wire:
    """The connections to other gateways. `answers` gives the codes of each, None for no answer."""

    def __init__(self):
        self.requests = []  # (node id, decoded markers)
        self.held = []
        self.answers: dict[int, Callable | None] = {}

    def ask(self, node_id, key, encode, on_answer):
        assert key == KEY
        markers = decode_markers(VERSION, encode(VERSION), 0)
        self.requests.append((node_id, markers))
        code_of = self.answers.get(node_id, lambda *_: Code.none)
        if code_of == "held":
            self.held.append((markers, on_answer))
            return
        reply = None if code_of is None else answered(markers, code_of)
        asyncio.get_running_loop().call_soon(on_answer, reply)

    def release(self, code_of=lambda *_: Code.none):
        held, self.held = self.held, []
        for markers, on_answer in held:
            on_answer(answered(markers, code_of))


def answered(markers, code_of):
    fields = {
        "markers": [
            {
                "producer_id": each.producer_id,
                "topics": [
                    {
                        "name": topic.name,
                        "partitions": [
                            {"partition_index": at, "error_code": code_of(topic.name, at)}
                            for at in topic.indexes
                        ],
                    }
                    for topic in each.topics
                ],
            }
            for each in markers
        ]
    }
    return decode_response(KEY, VERSION, b"".join(encode_response(KEY, VERSION, 1, fields))).body


class World:
    def __init__(self):
        self.store = SimMetadata()
        self.catalog = Catalog(self.store, TopicDefaults())
        self.cluster = PaperCluster(ME, [member(node) for node in (ME, OTHER, THIRD)])
        self.own, self.wire = Own(), Wire()
        self.sender = ClusterMarkers(self.catalog, self.cluster, self.own, self.wire)
        self.answers = []

    async def topic(self, name="t", partitions=3):
        """Partition 0 is here, 1 at OTHER with epoch 5, 2 at THIRD with epoch 6."""
        await self.catalog.create(name, partitions, 1, {})
        self.cluster.leaders = {0: Leader(ME, 4), 1: Leader(OTHER, 5), 2: Leader(THIRD, 6)}

    def on_answers(self, marker, errors):
        self.answers.append((marker, dict(errors)))

    def send(self, *args, **fields):
        sent = marker(*args, **fields)
        self.sender.send(sent, self.on_answers)
        assert not self.answers or self.answers[-1][0] is not sent, "an answer inside the call"
        return sent

    async def answer(self, *args, **fields):
        """Send a marker, and return the code of each partition once all have answered."""
        sent = self.send(*args, **fields)
        return await self.until_answered(sent)

    async def until_answered(self, sent):
        async with asyncio.timeout(60):
            while True:
                answers = [errors for marked, errors in self.answers if marked is sent]
                errors = {each: code for some in answers for each, code in some.items()}
                assert len(errors) == sum(map(len, answers)), "two answers of one partition"
                if len(errors) == len(sent.partitions):
                    return errors
                await asyncio.sleep(0.001)


@asynccontextmanager
async def world():
    made = World()
    await made.catalog.load()
    await made.topic()
    yield made
    await made.sender.close()
    await made.catalog.close()


async def test_each_partition_gets_the_marker_where_it_is():
    async with world() as w:
        errors = await w.answer(("t", 0), ("t", 1), ("t", 2))
        assert errors == {TopicPartition("t", at): Code.none for at in range(3)}
        ((topic, index, here, _),) = w.own.appended
        assert (topic, index) == ("t", 0)
        assert here == (7, 0, 3, True, 2, 1, -1)
        assert sorted(node for node, _ in w.wire.requests) == [OTHER, THIRD]


async def test_a_request_names_the_topic_the_leader_epoch_and_the_number():
    async with world() as w:
        await w.answer(("t", 1), number=9)
        ((node, (sent,)),) = w.wire.requests
        (topic,) = sent.topics
        assert (node, sent.number, sent.version, sent.commit) == (OTHER, 9, 2, True)
        assert (topic.name, topic.indexes, topic.leader_epochs) == ("t", (1,), (5,))
        assert topic.topic_id == w.catalog.by_name("t").topic_id


async def test_markers_of_one_turn_share_a_request():
    async with world() as w:
        sent = [w.send(("t", 1), producer=producer) for producer in range(50)]
        for each in sent:
            assert await w.until_answered(each) == {TopicPartition("t", 1): Code.none}
        assert len(w.wire.requests) == 1


async def test_a_producer_has_a_partition_once_in_a_request():
    async with world() as w:
        first, second = w.send(("t", 1), number=1), w.send(("t", 1), number=2)
        await w.until_answered(first)
        await w.until_answered(second)
        numbers = [[each.number for each in markers] for _, markers in w.wire.requests]
        assert numbers == [[1], [2]]


async def test_requests_in_flight_to_one_gateway_are_bounded():
    async with world() as w:
        w.wire.answers[OTHER] = "held"
        sent = [w.send(("t", 1), number=number) for number in range(1, 8)]
        await asyncio.sleep(1)
        assert len(w.wire.requests) == 4
        while w.wire.held:
            w.wire.release()
            await asyncio.sleep(0.01)
        for each in sent:
            assert await w.until_answered(each) == {TopicPartition("t", 1): Code.none}


async def test_an_owner_that_moved_is_looked_up_again():
    async with world() as w:
        w.wire.answers[OTHER] = lambda *_: Code.not_leader_or_follower
        assert await w.answer(("t", 1)) == {TopicPartition("t", 1): Code.not_leader_or_follower}
        w.cluster.leaders[1] = Leader(THIRD, 8)
        assert await w.answer(("t", 1)) == {TopicPartition("t", 1): Code.none}
        node, ((sent),) = w.wire.requests[-1]
        assert (node, sent.topics[0].leader_epochs) == (THIRD, (8,))


async def test_a_gateway_is_not_asked_before_its_leader_epoch_is_known():
    async with world() as w:
        for leader in (Leader(OTHER, -1), Leader()):
            w.cluster.leaders[1] = leader
            errors = await w.answer(("t", 1))
            assert errors == {TopicPartition("t", 1): Code.not_leader_or_follower}
        assert w.wire.requests == []


async def test_a_silent_gateway_gives_a_retriable_answer():
    async with world() as w:
        w.wire.answers[OTHER] = None
        assert await w.answer(("t", 1)) == {TopicPartition("t", 1): Code.network_exception}


async def test_a_partition_that_an_answer_leaves_out_is_asked_again():
    async with world() as w:
        w.wire.answers[OTHER] = "held"
        sent = w.send(("t", 1))
        await asyncio.sleep(0)
        ((_, on_answer),) = w.wire.held
        on_answer(answered([], None))
        assert await w.until_answered(sent) == {TopicPartition("t", 1): Code.network_exception}


async def test_a_deleted_topic_is_a_success():
    async with world() as w:
        await w.catalog.delete("t")
        assert await w.answer(("t", 0), ("t", 1)) == {
            TopicPartition("t", at): Code.none for at in range(2)
        }
        assert not w.own.appended and not w.wire.requests


async def test_the_topic_of_offsets_is_never_gone_and_is_created():
    async with world() as w:
        named = TopicPartition(CONSUMER_OFFSETS, 7)
        assert await w.answer(named) == {named: Code.unknown_topic_or_partition}
        assert not w.own.appended
        async with asyncio.timeout(60):
            while w.catalog.by_name(CONSUMER_OFFSETS) is None:
                await asyncio.sleep(0.01)
        assert await w.answer(named) == {named: Code.none}
        assert w.own.appended[0][:2] == named


async def test_a_topic_that_this_gateway_has_not_read_yet_is_no_success():
    async with world() as w:
        other = Catalog(w.store, TopicDefaults())
        await other.load()
        await w.catalog._watch.stop()  # this gateway learns nothing more from the store
        await other.create("late", 1, 1, {})
        assert await w.answer(("late", 0)) == {
            TopicPartition("late", 0): Code.unknown_topic_or_partition
        }
        await other.close()


async def test_a_store_that_cannot_be_read_gives_a_retriable_answer():
    async with world() as w:
        await w.catalog.delete("t")
        w.store.closed = True  # each call raises MetadataUnavailable
        assert await w.answer(("t", 0)) == {TopicPartition("t", 0): Code.unknown_topic_or_partition}


async def test_final_answers_come_at_once_and_others_after_a_growing_pause():
    async with world() as w:
        loop = asyncio.get_running_loop()
        for code in (Code.none, Code.invalid_producer_epoch, Code.transaction_coordinator_fenced):
            w.own.code, begun_s = code, loop.time()
            assert await w.answer(("t", 0)) == {TopicPartition("t", 0): code}
            assert loop.time() - begun_s < sender_module._PAUSE_S_FIRST
        pauses = []
        for code in (Code.not_enough_replicas,) * 5:
            w.own.code, begun_s = code, loop.time()
            await w.answer(("t", 0))
            pauses.append(round(loop.time() - begun_s, 2))
        assert pauses == [0.02, 0.04, 0.08, 0.1, 0.1]


async def test_a_stopped_coordinator_gets_no_answer():
    async with world() as w:
        w.own.code, w.wire.answers[OTHER] = None, "held"
        sent = w.send(("t", 0), ("t", 1))
        await asyncio.sleep(0.1)
        w.sender.stop(w.on_answers)
        w.own.appended[0][3](Code.none)
        w.wire.release()
        await asyncio.sleep(10)
        assert w.answers == []
        assert sent.partitions and not w.sender._sendings


async def test_markers_of_a_stopped_coordinator_that_wait_are_not_sent():
    async with world() as w:
        w.wire.answers[OTHER] = "held"
        for number in range(1, 8):
            w.send(("t", 1), number=number)
        await asyncio.sleep(0.1)
        w.sender.stop(w.on_answers)
        w.wire.release()
        await asyncio.sleep(10)
        assert len(w.wire.requests) == 4


async def test_100_000_partitions_are_sent_in_parts():
    async with world() as w:
        names = [f"large-{number}" for number in range(10)]
        for name in names:
            await w.catalog.create(name, 10_000, 1, {})
        w.cluster.leaders, w.cluster.leader_of_others = {}, Leader(OTHER, 5)
        errors = await w.answer(*[(name, at) for name in names for at in range(10_000)])
        assert len(errors) == 100_000
        assert set(errors.values()) == {Code.none}
        sizes = [sum(each.partitions for each in markers) for _, markers in w.wire.requests]
        assert sum(sizes) == 100_000
        assert max(sizes) <= 1_000


async def test_offsets_of_groups_go_to_the_port_of_groups():
    async with world() as w:
        w.catalog._by_name[CONSUMER_OFFSETS] = w.catalog.by_name("t")
        w.cluster.leaders = {}
        assert await w.answer((CONSUMER_OFFSETS, 0)) == {
            TopicPartition(CONSUMER_OFFSETS, 0): Code.none
        }
        assert w.own.appended[0][:2] == (CONSUMER_OFFSETS, 0)
