"""Goal: transactional batches and markers enter a partition as in Kafka, and its state survives.

Method: the real partition over streams, ledgers and a bookie on virtual time. The coordinator is a
verifier whose answers the test gives.
"""

import asyncio
from contextlib import asynccontextmanager

import pytest
from kio.schema.errors import ErrorCode as Code

from gateway.core import partition_transactions
from gateway.core.partition_transactions import EndMarker
from gateway.topics import transaction_path
from gateway.wire.batches import read_header
from ledger.errors import StreamUnavailable
from tests.batches import plain_batch, raw_batch, record
from tests.gateway.stream_cluster import base_offsets, batch, started_cluster

TRANSACTIONAL = 0x10
P1, P2 = 11, 12  # Produce with protocols 1 and 2
LONG_RECORDS = 9_000
LONG = raw_batch(
    b"".join(record(at, 0, None, bytes(at % 90)) for at in range(LONG_RECORDS)), LONG_RECORDS
)
"""A batch whose check takes long: its records have many sizes."""


def part(sequence=0, *, producer=5, epoch=0, records=1):
    """Return a batch of a transaction."""
    header = {"producer": producer, "epoch": epoch, "sequence": sequence}
    return plain_batch([1000] * records, attributes=TRANSACTIONAL, **header)


class Coordinator:
    """A verifier that allows everything, or leaves the answers to the test."""

    def __init__(self, *, asks=False):
        self.asks = asks
        self.asked = []
        self.waiting = []

    def verify(self, transactional_id, producer_id, epoch, topic, index, *, adds):
        self.asked.append((transactional_id, producer_id, epoch, topic, index, adds))
        answer = asyncio.get_running_loop().create_future()
        if self.asks:
            self.waiting.append(answer)
        else:
            answer.set_result(Code.none)
        return answer

    def answer(self, code=Code.none):
        self.waiting.pop(0).set_result(code)


async def opened(cluster, **settings):
    """Return a partition with a coordinator, open and writable, and the coordinator."""
    coordinator = Coordinator(**settings)
    cluster.partitions.verifier = coordinator
    partition = await cluster.topic()
    await partition.stream.begin()
    return partition, coordinator


@asynccontextmanager
async def no_checks(partition):
    """Let no batch that takes long be checked within this context."""
    permits, taken = partition._long_work._checks, 0
    while not permits.locked():
        await permits.acquire()
        taken += 1
    try:
        yield
    finally:
        for _ in range(taken):
            permits.release()


def send(partition, data, version=P2):
    answers = []
    partition.append_transactional(memoryview(data), version, answers.append, "id")
    return answers


async def results(*waiting):
    async with asyncio.timeout(60):
        while not all(waiting):
            await asyncio.sleep(0.001)
    return [each[0] for each in waiting]


async def sent(partition, *parts, version=P2):
    return [one.error for one in await results(*(send(partition, each, version) for each in parts))]


def mark(partition, epoch=1, *, commit=True, producer=5, coordinator=0, version=2, **more):
    answers = []
    marker = EndMarker(producer, epoch, coordinator, commit, version, **more)
    partition.append_marker(marker, answers.append)
    return answers


async def marked(partition, *args, **more):
    return (await results(mark(partition, *args, **more)))[0]


async def reopened(cluster, how):
    """Restart or crash, and return the partition with a coordinator that allows everything."""
    await how()
    cluster.partitions.verifier = Coordinator()
    return await cluster.partition()


async def test_the_first_batch_is_verified_and_the_later_ones_are_not():
    async with started_cluster() as cluster:
        partition, coordinator = await opened(cluster)
        assert await sent(partition, part(0)) == [Code.none]
        assert await sent(partition, part(1), part(2)) == [Code.none] * 2
        assert coordinator.asked == [("id", 5, 0, "t", 0, True)]
        assert (partition.stable_offset, partition.high_watermark) == (0, 3)
        assert await marked(partition) is Code.none
        assert (partition.stable_offset, partition.high_watermark) == (4, 4)


async def test_batches_of_a_producer_wait_in_order_and_those_of_others_do_not():
    async with started_cluster() as cluster:
        partition, coordinator = await opened(cluster, asks=True)
        waiting = [send(partition, part(sequence), P1) for sequence in range(3)]
        [other] = await cluster.sent(partition, batch(records=1))
        assert other.base_offset == 0
        assert [len(coordinator.asked), waiting] == [1, [[], [], []]]
        coordinator.answer()
        assert [one.base_offset for one in await results(*waiting)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("code", "version", "expected"),
    [
        (Code.transaction_abortable, 12, Code.transaction_abortable),
        (Code.transaction_abortable, 11, Code.transaction_abortable),
        (Code.transaction_abortable, 10, Code.invalid_txn_state),
        (Code.producer_fenced, 12, Code.invalid_producer_epoch),
        (Code.concurrent_transactions, 12, Code.not_enough_replicas),
        (Code.not_coordinator, 11, Code.not_enough_replicas),
        (Code.coordinator_load_in_progress, 11, Code.not_enough_replicas),
        (Code.invalid_producer_id_mapping, 12, Code.invalid_producer_id_mapping),
    ],
)
async def test_a_refusal_of_the_coordinator_becomes_kafkas_code(code, version, expected):
    async with started_cluster() as cluster:
        partition, coordinator = await opened(cluster, asks=True)
        first, second = send(partition, part(0), version), send(partition, part(1), version)
        coordinator.answer(code)
        refused = (await results(first))[0]
        assert (refused.error, refused.unverified) == (expected, True)
        while not coordinator.waiting:
            await asyncio.sleep(0.001)
        assert not second
        coordinator.answer()
        # The first sequence that was seen is that of the refused batch, which comes again.
        assert (await results(second))[0].error is Code.out_of_order_sequence_number
        assert partition.high_watermark == 0


def guards(partition):
    return len(partition.transactions._guards)


FINAL = [
    Code.invalid_producer_id_mapping,
    Code.invalid_request,
    Code.invalid_txn_state,
    Code.producer_fenced,
    Code.transaction_abortable,
]


@pytest.mark.parametrize("code", FINAL)
async def test_producers_that_the_coordinator_refuses_take_no_memory(code):
    """Clients choose the ids: a request of 0.7 MB names 10,000 of them."""
    async with started_cluster() as cluster:
        partition, coordinator = await opened(cluster, asks=True)
        waiting = [send(partition, part(0, producer=each)) for each in range(3_000)]
        assert guards(partition) == 3_000
        while coordinator.waiting:
            coordinator.answer(code)
        await results(*waiting)
        assert guards(partition) == 0


@pytest.mark.parametrize("code", [Code.coordinator_load_in_progress, Code.none])
async def test_a_bounded_number_of_verifications_outlasts_their_answers(code):
    """Of refused batches that come again, and of allowed ones that are not appended."""
    async with started_cluster() as cluster:
        partition, coordinator = await opened(cluster, asks=True)
        waiting = []
        for producer in range(3_000):
            data = bytearray(part(0, producer=producer))
            data[-1] ^= 1  # the checksum is wrong
            waiting.append(send(partition, bytes(data), P1))
        while coordinator.waiting:
            coordinator.answer(code)
        await results(*waiting)
        assert guards(partition) == 1_000


async def test_a_batch_does_not_overtake_one_whose_verification_is_forgotten():
    async with started_cluster() as cluster:
        partition, coordinator = await opened(cluster, asks=True)
        waiting = [send(partition, part(0, producer=each), P1) for each in range(1_001)]
        while coordinator.waiting:
            coordinator.answer(Code.coordinator_load_in_progress)
        await results(*waiting)
        coordinator.asks = False
        found = [await sent(partition, part(at, producer=0), version=P1) for at in (1, 0, 1)]
        assert found == [[Code.out_of_order_sequence_number], [Code.none], [Code.none]]


async def test_a_late_answer_to_an_earlier_verification_allows_nothing():
    """The marker voids the first one. Batches behind it are verified again."""
    async with started_cluster() as cluster:
        partition, coordinator = await opened(cluster, asks=True)
        first, second = send(partition, part(0), P1), send(partition, part(0), P1)
        assert await marked(partition, 0, commit=False, version=0) is Code.none
        coordinator.answer()
        assert (await results(first))[0].error is Code.invalid_txn_state
        while not coordinator.waiting:
            await asyncio.sleep(0.001)
        assert not second
        coordinator.answer(Code.invalid_txn_state)
        assert (await results(second))[0].error is Code.invalid_txn_state
        assert (guards(partition), partition.high_watermark) == (0, 1)


async def test_a_marker_voids_a_verification_that_is_under_way():
    async with started_cluster() as cluster:
        partition, coordinator = await opened(cluster, asks=True)
        waiting = send(partition, part(0), P1)
        assert await marked(partition, 0, commit=False, version=0) is Code.none
        coordinator.answer()
        assert (await results(waiting))[0].error is Code.invalid_txn_state
        assert partition.high_watermark == 1


async def test_a_failure_answers_batches_that_are_being_verified():
    async with started_cluster() as cluster:
        partition, coordinator = await opened(cluster, asks=True)
        waiting = [send(partition, part(sequence)) for sequence in range(2)]
        partition.stream.fail(StreamUnavailable("a test"))
        assert [one.error for one in await results(*waiting)] == [Code.not_leader_or_follower] * 2
        coordinator.answer()
        await partition.ensure_readable()
        assert partition.high_watermark == 0


async def test_batches_that_arrive_before_the_stream_is_writable_are_verified_then():
    async with started_cluster() as cluster:
        coordinator = Coordinator()
        cluster.partitions.verifier = coordinator
        partition = await cluster.topic()
        assert await sent(partition, part(0), part(1)) == [Code.none] * 2
        assert len(coordinator.asked) == 1


async def test_plain_batches_within_a_transaction_and_old_epochs_are_refused():
    async with started_cluster() as cluster:
        partition, _ = await opened(cluster)
        assert await sent(partition, part(0)) == [Code.none]
        [plain] = await cluster.sent(partition, batch(1, producer=5))
        assert plain.error is Code.invalid_txn_state
        assert await marked(partition, 1) is Code.none
        assert await sent(partition, part(1)) == [Code.invalid_producer_epoch]
        [plain] = await cluster.sent(partition, batch(1, producer=5))
        assert plain.error is Code.invalid_producer_epoch
        assert await sent(partition, part(0, epoch=1)) == [Code.none]


async def test_a_retry_in_the_transaction_gets_the_offset_of_the_batch():
    async with started_cluster() as cluster:
        partition, _ = await opened(cluster)
        await sent(partition, part(0), part(1))
        [again] = await results(send(partition, part(0)))
        assert (again.error, again.base_offset, partition.high_watermark) == (Code.none, 0, 2)


async def test_in_protocol_2_the_first_sequence_is_0_and_in_protocol_1_any():
    async with started_cluster() as cluster:
        partition, _ = await opened(cluster)
        assert await sent(partition, part(7)) == [Code.out_of_order_sequence_number]
        assert await sent(partition, part(7, producer=6), version=P1) == [Code.none]


async def test_markers_are_answered_when_durable_and_refused_as_in_kafka():
    async with started_cluster() as cluster:
        partition, _ = await opened(cluster)
        await sent(partition, part(0, epoch=3))
        cluster.port.hold()
        answers = mark(partition, 4, coordinator=2)
        await asyncio.sleep(1)
        assert (answers, partition.stable_offset) == ([], 0)
        cluster.port.release()
        assert await results(answers) == [Code.none]
        assert partition.stable_offset == 2
        assert await marked(partition, 3, coordinator=2) is Code.invalid_producer_epoch
        fenced = await marked(partition, 5, coordinator=1)
        assert fenced is Code.transaction_coordinator_fenced
        assert partition.high_watermark == 2


async def test_a_repeated_marker_is_answered_with_the_first_one():
    async with started_cluster() as cluster:
        partition, _ = await opened(cluster)
        await sent(partition, part(0), version=P1)
        cluster.port.hold()
        words = {"version": 0, "number": 1, "leader_epoch": partition.leader_epoch}
        first, second = mark(partition, 0, **words), mark(partition, 0, **words)
        await asyncio.sleep(1)
        assert (first, second) == ([], [])
        cluster.port.release()
        assert await results(first, second) == [Code.none] * 2
        assert partition.high_watermark == 2


async def test_a_marker_for_a_closed_partition_is_refused():
    async with started_cluster() as cluster:
        partition, _ = await opened(cluster)
        await sent(partition, part(0))
        partition.abandon()
        assert await marked(partition) is Code.not_leader_or_follower
        await partition.wait_abandoned()


async def test_the_stored_marker_is_kafkas():
    async with started_cluster() as cluster:
        partition, _ = await opened(cluster)
        assert await marked(partition, 1, coordinator=9, commit=False) is Code.none
        [stored] = await cluster.read_all(partition)
        header = read_header(stored)
        assert (header.attributes, header.producer_id, header.producer_epoch) == (0x30, 5, 1)
        record = stored[61:].hex()
        assert record == "2000000008000000000c00000000000900"


@pytest.mark.parametrize("how", ["restart", "crash"])
@pytest.mark.parametrize("rolled", [False, True])
async def test_an_open_transaction_survives(how, rolled):
    async with started_cluster() as cluster:
        partition, _ = await opened(cluster)
        await cluster.sent(partition, batch(records=1))
        await sent(partition, part(0))
        if rolled:
            partition.stream.roll_soon()
            await asyncio.sleep(1)
        await cluster.sent(partition, batch(records=1))
        partition = await reopened(cluster, getattr(cluster, how))
        assert (partition.stable_offset, partition.high_watermark) == (1, 3)
        assert await sent(partition, part(1)) == [Code.none]
        assert await marked(partition, 1, commit=False) is Code.none
        assert partition.stable_offset == partition.high_watermark == 5
        [aborted] = partition.transactions.aborted
        assert aborted[:3] == (5, 1, 4)
        assert await marked(partition, 0) is Code.invalid_producer_epoch
        partition = await reopened(cluster, getattr(cluster, how))
        assert partition.stable_offset == partition.high_watermark == 5
        assert partition.transactions.aborted == [aborted]
        assert await sent(partition, part(2)) == [Code.invalid_producer_epoch]
        assert await sent(partition, part(0, epoch=1)) == [Code.none]


async def test_a_snapshot_has_the_aborted_list_of_the_segment_before():
    async with started_cluster() as cluster:
        partition, _ = await opened(cluster)
        await sent(partition, part(0), part(0, producer=6))
        await marked(partition, 1, commit=False)
        partition.stream.roll_soon()
        await asyncio.sleep(1)
        await cluster.sent(partition, batch(records=1))
        before = partition._state.before
        assert (before.first_offset, before.end_offset, before.stable_offset) == (0, 3, 1)
        assert [one[:3] for one in before.aborted] == [(5, 0, 2)]
        assert partition.transactions.aborted == []
        partition = await reopened(cluster, cluster.crash)
        assert partition._state.before == before
        assert partition.stable_offset == 1


async def test_plain_producers_leave_the_form_of_snapshots_as_it_is():
    async with started_cluster() as cluster:
        partition, _ = await opened(cluster)
        await cluster.sent(partition, batch(0), batch(2))
        assert partition._state.encode(4)[0] == 1
        await sent(partition, part(0, producer=6))
        assert partition._state.encode(5)[0] == 3


async def test_a_segment_is_rolled_before_its_list_of_aborted_transactions_is_full(monkeypatch):
    monkeypatch.setattr(partition_transactions, "ABORTED_MAX", 6)
    monkeypatch.setattr(transaction_path, "_ROLL_FROM", 3)
    async with started_cluster() as cluster:
        partition, _ = await opened(cluster)
        for epoch in range(20):
            await sent(partition, part(0, epoch=epoch))
            answer = await marked(partition, epoch + 1, commit=False)
            assert answer is Code.none
            assert len(partition.transactions.aborted) <= 6
            await asyncio.sleep(0.1)
        assert len(partition.stream.segments) > 3
        assert len(base_offsets(await cluster.read_all(partition))) == 40


async def with_a_late_marker(cluster):
    """Return a partition with an open transaction, and the words of the marker before it."""
    partition, _ = await opened(cluster)
    await sent(partition, part(0), version=P1)
    late = {"version": 0, "number": 1, "leader_epoch": partition.leader_epoch}
    assert await marked(partition, 0, **late) is Code.none
    await sent(partition, part(1), version=P1)
    return partition, late


async def until_writable(partition):
    async with asyncio.timeout(60):
        while not partition.stream.writable:
            await asyncio.sleep(0.0001)


async def test_a_late_marker_that_a_new_owner_receives_first_does_not_pass():
    """The new owner has appended nothing yet, so its segment begins with the marker at the most."""
    async with started_cluster() as cluster:
        _, late = await with_a_late_marker(cluster)
        await cluster.crash()
        cluster.partitions.verifier = Coordinator()
        partition = cluster.partitions.find("t", 0)
        partition._begins = True
        await partition.open()
        assert await marked(partition, 0, commit=False, **late) is Code.not_leader_or_follower
        assert partition.transactions.producer(5).open


@pytest.mark.parametrize("again", [False, True])
async def test_a_late_marker_does_not_pass_while_the_partition_is_taken_over(again):
    """In protocol 1 it would end the transaction after its own."""
    async with started_cluster() as cluster:
        partition, late = await with_a_late_marker(cluster)
        if again:
            partition.stream.fail(StreamUnavailable("a test"))
        else:
            await cluster.crash()
            cluster.partitions.verifier = Coordinator()
            partition = cluster.partitions.find("t", 0)
        partition._begins = True
        cluster.port.hold()  # the head of the new segment, so that it stays in the opening
        opening = partition.open()
        cluster.send(partition, batch())  # so that it begins a segment while it opens
        await until_writable(partition)
        answers = mark(partition, 0, commit=False, **late)
        await asyncio.sleep(1)
        assert not opening.done()
        cluster.port.release()
        assert await results(answers) == [Code.not_leader_or_follower]
        await opening
        assert partition.transactions.producer(5).open


async def test_a_late_marker_behind_a_long_check_does_not_pass_before_the_next_opening_ends():
    """The check began in one ownership and ends in the next, whose opening is not over."""
    async with started_cluster() as cluster:
        partition, late = await with_a_late_marker(cluster)
        partition._begins = True
        async with no_checks(partition):
            checked = cluster.send(partition, LONG)
            behind = mark(partition, 0, commit=False, **late)
            await asyncio.sleep(1)
            assert (checked, behind) == ([], [])  # the check has begun
            cluster.port.hold()  # the head of the new segment, so that it stays in the opening
            partition.stream.fail(StreamUnavailable("a test"))
            await until_writable(partition)
        assert await results(behind) == [Code.not_leader_or_follower]
        opening = partition.open()
        assert not opening.done()
        assert await marked(partition, 0, commit=False, **late) is Code.not_leader_or_follower
        assert partition.transactions.producer(5).open
        cluster.port.release()
        assert (await results(checked))[0].error is Code.none
        await opening
        assert partition.transactions.producer(5).open
