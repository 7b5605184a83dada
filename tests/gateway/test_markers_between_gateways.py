"""Goal: a transaction over partitions of two gateways ends in all of them, exactly once, and a
marker that was given up never ends the next transaction.

Method: two gateways on the same streams and one bookie, on virtual time: real catalogs, partitions,
handlers and senders. Only the connections between them are the test's: it loses requests or
answers, and delivers recorded requests again later.
"""

from __future__ import annotations

import asyncio
import struct
from contextlib import asynccontextmanager

import pytest
from kio.schema.errors import ErrorCode as Code

from gateway.cluster.port import Leader, StreamKey
from gateway.core.transaction_effects import Marker
from gateway.core.transaction_states import TopicPartition
from gateway.topics.opening_turns import LISTS_AT_ONCE
from gateway.transactions.local_markers import LocalMarkers
from gateway.transactions.markers import ClusterMarkers
from gateway.wire.messages import decode_response, encode_request_header
from ledger.errors import StreamUnavailable
from ledger.ports.bookies import Status
from tests.batches import plain_batch
from tests.gateway.paper_cluster import PaperCluster, member
from tests.gateway.stream_cluster import PEER, StreamCluster

ONE, TWO = 1, 2
VERSION = 2
TRANSACTIONAL, CONTROL = 0x10, 0x20
PRODUCER = 7


class Allows:
    """A coordinator that has every partition in every transaction."""

    def verify(self, transactional_id, producer_id, epoch, topic, index, *, adds):
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(Code.none)
        return answer


class Wire:
    """The connections of one gateway to the others. Answers come in the order of the requests."""

    def __init__(self, gateways):
        self.gateways = gateways
        self.last = asyncio.get_running_loop().create_future()  # done once all before answered
        self.last.set_result(None)
        self.frames = []  # (node id, frame) of each request
        self.loses_requests = self.loses_answers = False
        self.tasks = set()

    def ask(self, node_id, key, encode, on_answer):
        frame = bytes(
            encode_request_header(key, VERSION, 1, "gateway-to-gateway") + encode(VERSION)
        )
        self.frames.append((node_id, frame))
        loop = asyncio.get_running_loop()
        if self.loses_requests:
            loop.call_soon(on_answer, None)
            return
        before, self.last = self.last, loop.create_future()
        self._start(self._deliver(node_id, frame, on_answer, before, self.last))

    def _start(self, work):
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _deliver(self, node_id, frame, on_answer, before, answered):
        if self.loses_answers:
            on_answer(None)  # the sender gives up, and the request is still on its way
            answered.set_result(None)
            await self.deliver(node_id, frame)
        else:
            reply = await self.deliver(node_id, frame)
            await before
            on_answer(reply)
            answered.set_result(None)

    async def deliver(self, node_id, frame):
        """Give a request to a gateway, perhaps once more. Returns the decoded reply."""
        gateway = self.gateways[node_id]
        request, handle = gateway.dispatcher.open(frame, PEER)
        reply = gateway.dispatcher.encode(request, await gateway.dispatcher.start(request, handle))
        return decode_response(request.key, request.version, b"".join(reply)).body


class World:
    async def start(self):
        papers = {node: PaperCluster(node, [member(ONE), member(TWO)]) for node in (ONE, TWO)}
        self.leaders = papers[TWO].leaders = papers[ONE].leaders
        one = StreamCluster(cluster=papers[ONE])
        await one.start()
        self.gateways = {ONE: one}
        self.gateways[TWO] = await one.beside(papers[TWO])
        self.wire = Wire(self.gateways)
        for gateway in self.gateways.values():
            gateway.partitions.verifier = Allows()
            gateway.context.markers = LocalMarkers(gateway.partitions)
        self.sender = ClusterMarkers(one.catalog, papers[ONE], one.context.markers, self.wire)
        self.number = 0
        await self.create("t")

    async def create(self, name):
        """Create a topic: partition 0 is at gateway 1, partition 1 at gateway 2."""
        await self.gateways[ONE].catalog.create(name, 2, 1, {})
        while self.gateways[TWO].catalog.by_name(name) is None:
            await asyncio.sleep(0.01)
        for index, node in enumerate((ONE, TWO)):
            await self.lead(name, index, node)

    async def create_third(self, name):
        """Create a topic whose partition 2 is at gateway 2."""
        await self.gateways[ONE].catalog.create(name, 3, 1, {})
        while self.gateways[TWO].catalog.by_name(name) is None:
            await asyncio.sleep(0.01)
        await self.lead(name, 2, TWO)

    async def fail(self, index):
        """Let the stream of a partition of `t` fail, so that it cannot be opened again."""
        partition = self.partition(index)
        missing = self.gateways[ONE].port.missing
        segment = partition.stream.segments[-1]
        missing.update({(segment.ledger, entry): Status.IO_ERROR for entry in range(10)})
        partition.stream.fail(StreamUnavailable("a test"))
        await asyncio.sleep(1)
        assert not partition.readable
        return partition

    async def repair(self, index):
        """Let the partition be opened again, and its new leader epoch be known."""
        self.gateways[ONE].port.missing.clear()
        partition = self.partition(index)
        await partition.ensure_readable()
        self.leaders[index] = Leader(self.leaders[index].node_id, partition.leader_epoch)

    async def lead(self, name, index, node):
        self.leaders[index] = Leader(node, -1)
        partition = await self.gateways[node].partition(name, index)
        self.leaders[index] = Leader(node, partition.leader_epoch)
        return partition

    async def move(self, name, index, node):
        """Let another gateway take a partition over, as after a crash of its owner."""
        before = self.gateways[self.leaders[index].node_id].partitions
        key = StreamKey(self.gateways[ONE].catalog.by_name(name).topic_id, index)
        self.leaders[index] = Leader(node, -1)
        before.lost(key)
        return await self.lead(name, index, node)

    def partition(self, index, name="t"):
        return self.gateways[self.leaders[index].node_id].partitions.find(name, index)

    async def write(self, index, sequence, *, epoch=0, name="t"):
        """Write one record of a transaction. Protocol 1: the version of Produce is 11."""
        batch = plain_batch(
            [1000], producer=PRODUCER, epoch=epoch, sequence=sequence, attributes=TRANSACTIONAL
        )
        answers = []
        self.partition(index, name).append_transactional(
            memoryview(batch), 11, answers.append, "id"
        )
        while not answers:
            await asyncio.sleep(0.001)
        assert answers[0].error is Code.none, answers[0]

    def marker(self, *indexes, commit=True, epoch=0, version=0, name="t"):
        """The marker of the next transaction. In protocol 1 all have one epoch."""
        self.number += 1
        named = frozenset(TopicPartition(name, index) for index in indexes)
        return Marker("id", PRODUCER, epoch, 3, commit, named, version, self.number)

    async def end(self, marker, attempts=None):
        """Send the marker as the coordinator does: again until each partition is done."""
        left, answered = set(marker.partitions), asyncio.Event()
        codes = []

        def on_answers(sent, errors):
            codes.extend(errors.values())
            left.difference_update(each for each, code in errors.items() if code is Code.none)
            again = frozenset(each for each, code in errors.items() if code is not Code.none)
            if again and (attempts is None or len(codes) < attempts):
                self.sender.send(sent._replace(partitions=again), on_answers)
            elif not left or again:
                answered.set()

        self.sender.send(marker, on_answers)
        async with asyncio.timeout(60):
            await answered.wait()
        return codes

    async def log(self, index, name="t"):
        """Return "data", "commit" or "abort" for each record of a partition."""
        gateway = self.gateways[self.leaders[index].node_id]
        return [kind(each) for each in await gateway.read_all(self.partition(index, name))]

    async def stop(self):
        await self.sender.close()
        for gateway in self.gateways.values():
            await gateway.partitions.stop()
            await gateway.catalog.close()


def kind(batch):
    (attributes,) = struct.unpack_from(">h", batch, 21)
    if not attributes & CONTROL:
        return "data"
    (decided,) = struct.unpack_from(">h", batch, 61 + 7)
    return "commit" if decided else "abort"


@asynccontextmanager
async def world():
    made = World()
    await made.start()
    yield made
    await made.stop()


@pytest.mark.parametrize("commit", [True, False])
async def test_a_transaction_ends_in_the_partitions_of_both_gateways(commit):
    async with world() as w:
        for index in (0, 1):
            await w.write(index, 0)
            assert w.partition(index).stable_offset == 0
        assert await w.end(w.marker(0, 1, commit=commit)) == [Code.none] * 2
        for index in (0, 1):
            assert await w.log(index) == ["data", "commit" if commit else "abort"]
            assert w.partition(index).stable_offset == 2


async def test_a_marker_whose_answer_was_lost_is_written_once():
    async with world() as w:
        await w.write(1, 0)
        w.wire.loses_answers = True
        marker = w.marker(1)
        assert await w.end(marker, attempts=3) == [Code.network_exception] * 3
        w.wire.loses_answers = False
        await w.end(marker)
        assert len(w.wire.frames) >= 4
        assert await w.log(1) == ["data", "commit"]


async def test_a_late_copy_does_not_end_the_next_transaction_of_the_same_epoch():
    async with world() as w:
        await w.write(1, 0)
        w.wire.loses_requests = True
        marker = w.marker(1)
        assert await w.end(marker, attempts=1) == [Code.network_exception]
        w.wire.loses_requests = False
        await w.end(marker)
        await w.write(1, 1)  # the next transaction, in protocol 1
        reply = await w.wire.deliver(*w.wire.frames[0])
        assert reply.markers[0].topics[0].partitions[0].error_code is Code.none
        assert await w.log(1) == ["data", "commit", "data"]
        assert w.partition(1).stable_offset == 2


async def test_a_late_copy_does_not_reach_a_later_ownership():
    async with world() as w:
        await w.write(1, 0)
        marker = w.marker(1)
        w.wire.loses_requests = True
        await w.end(marker, attempts=1)
        w.wire.loses_requests = False
        await w.move("t", 1, ONE)
        await w.end(marker)
        await w.move("t", 1, TWO)
        await w.write(1, 1)
        reply = await w.wire.deliver(*w.wire.frames[0])
        assert reply.markers[0].topics[0].partitions[0].error_code is Code.not_leader_or_follower
        assert await w.log(1) == ["data", "commit", "data"]


async def test_a_late_copy_does_not_reach_a_topic_that_was_created_again():
    async with world() as w:
        await w.write(1, 0)
        marker = w.marker(1)
        w.wire.loses_requests = True
        await w.end(marker, attempts=1)
        w.wire.loses_requests = False
        await w.gateways[ONE].catalog.delete("t")
        assert await w.end(marker) == [Code.none]
        while w.gateways[TWO].catalog.by_name("t") is not None:
            await asyncio.sleep(0.01)
        await w.create("t")
        await w.write(1, 0)
        reply = await w.wire.deliver(*w.wire.frames[0])
        code = reply.markers[0].topics[0].partitions[0].error_code
        assert code is Code.unknown_topic_or_partition
        assert await w.log(1) == ["data"]


async def test_the_owner_moves_between_prepare_and_the_marker():
    async with world() as w:
        await w.write(0, 0)
        await w.write(1, 0)
        w.leaders[1] = Leader(TWO, -1)  # it is dead, and no gateway has taken over yet
        marker = w.marker(0, 1)
        assert await w.end(marker, attempts=2)  # partition 1 has no owner to ask
        w.leaders[1] = Leader(TWO, 0)
        await w.move("t", 1, ONE)
        assert await w.end(marker) == [Code.none] * 2
        for index in (0, 1):
            assert await w.log(index) == ["data", "commit"]
        assert w.wire.frames == []


async def test_a_topic_that_is_deleted_while_its_gateway_is_silent_ends_the_marker():
    async with world() as w:
        await w.write(1, 0)
        w.wire.loses_requests = True
        ending = asyncio.create_task(w.end(w.marker(1)))
        await asyncio.sleep(1)
        assert not ending.done()
        await w.gateways[ONE].catalog.delete("t")
        assert (await ending)[-1] is Code.none


async def test_a_partition_that_cannot_open_holds_up_no_other_transaction():
    async with world() as w:
        await w.create_third("u")
        await w.write(1, 0)
        await w.fail(1)
        ending = asyncio.create_task(w.end(w.marker(1)))
        loop = asyncio.get_running_loop()
        for sequence in range(3):
            await w.write(2, sequence, name="u")
            begun_s = loop.time()
            assert await w.end(w.marker(2, name="u")) == [Code.none]
            assert loop.time() - begun_s < 0.5
        assert not ending.done()
        await w.repair(1)
        assert (await ending)[-1] is Code.none
        assert await w.log(1) == ["data", "commit"]


async def test_copies_for_a_partition_that_cannot_open_are_few_and_none_is_kept_there():
    async with world() as w:
        await w.write(1, 0)
        partition = await w.fail(1)
        ending = asyncio.create_task(w.end(w.marker(1)))
        await asyncio.sleep(10)
        assert 50 < len(w.wire.frames) <= 10 / 0.1 + 5
        assert partition.first_waiting is None
        await w.repair(1)
        codes = await ending
        assert codes == [*[Code.not_leader_or_follower] * (len(codes) - 1), Code.none]


async def test_a_marker_lets_its_partition_open_ahead_of_those_that_no_request_waits_for():
    async with world() as w:
        await w.write(1, 0)
        lists = w.gateways[TWO].partitions._opening.lists

        async def occupy(number):
            async with lists.turn(number, asked=False):
                await asyncio.Event().wait()

        others = [asyncio.create_task(occupy(number)) for number in range(LISTS_AT_ONCE)]
        partition = w.partition(1)
        partition.stream.fail(StreamUnavailable("a test"))
        await asyncio.sleep(60)
        assert not partition.readable
        assert await w.end(w.marker(1), attempts=1) == [Code.not_leader_or_follower]
        await asyncio.sleep(1)
        assert partition.readable
        for each in others:
            each.cancel()


async def test_a_partition_of_the_coordinators_own_gateway_keeps_the_marker_while_it_opens():
    async with world() as w:
        await w.write(0, 0)
        await w.fail(0)
        ending = asyncio.create_task(w.end(w.marker(0)))
        await asyncio.sleep(30)
        await w.repair(0)
        assert await ending == [Code.none]
        assert await w.log(0) == ["data", "commit"]


async def test_a_marker_is_answered_only_once_it_is_durable():
    async with world() as w:
        await w.write(1, 0)
        port = w.gateways[ONE].port
        port.hold()
        ending = asyncio.create_task(w.end(w.marker(1)))
        await asyncio.sleep(1)
        assert not ending.done()
        assert w.partition(1).stable_offset == 0
        port.release()
        assert await ending == [Code.none]
        assert w.partition(1).stable_offset == 2


async def test_a_marker_is_not_acknowledged_without_the_lease():
    async with world() as w:
        await w.write(1, 0)
        w.gateways[ONE].port.hold()
        ending = asyncio.create_task(w.end(w.marker(1), attempts=1))
        await asyncio.sleep(0.1)
        w.gateways[TWO].cluster.lease = False
        w.gateways[ONE].port.release()
        assert await ending == [Code.not_leader_or_follower]


async def test_a_coordinator_that_was_replaced_is_fenced():
    async with world() as w:
        await w.write(1, 0)
        old, new = w.marker(1), w.marker(1)._replace(coordinator_epoch=4)
        await w.end(new)
        await w.write(1, 1)
        assert await w.end(old, attempts=1) == [Code.transaction_coordinator_fenced]
        assert await w.log(1) == ["data", "commit", "data"]


async def test_the_producers_of_a_partition_are_described_by_its_owner():
    async with world() as w:
        await w.write(1, 0)
        asked = {"topics": [{"name": "t", "partition_indexes": [0, 1]}]}
        (topic,) = (await w.gateways[TWO].answer(61, 0, **asked)).topics
        assert topic.partitions[0].error_code is Code.not_leader_or_follower
        (open_one,) = topic.partitions[1].active_producers
        assert (open_one.producer_id, open_one.producer_epoch) == (PRODUCER, 0)
        assert (open_one.last_sequence, open_one.coordinator_epoch) == (0, -1)
        assert open_one.current_txn_start_offset == 0
        await w.end(w.marker(1, version=2, epoch=1))
        (topic,) = (await w.gateways[TWO].answer(61, 0, **asked)).topics
        (ended,) = topic.partitions[1].active_producers
        assert (ended.producer_epoch, ended.last_sequence, ended.coordinator_epoch) == (1, -1, 3)
        assert ended.current_txn_start_offset == -1
