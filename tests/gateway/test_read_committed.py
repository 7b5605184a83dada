"""Goal: a reader of committed records gets all of them, none that was aborted, and none too early.

Method: Fetch and ListOffsets in Kafka's bytes over real streams on virtual time. A consumer drops
aborted batches as Kafka's does, and is compared with what each transaction's end says.
"""

import asyncio
from random import Random

import pytest
from kio.schema.errors import ErrorCode

from gateway.core.fetch_session import FetchPartition, FetchSession
from gateway.wire.batches import CONTROL, TRANSACTIONAL, read_header
from gateway.wire.end_markers import read_marker
from ledger.errors import StreamUnavailable
from ledger.streams.config import StreamLimits
from tests.gateway.stream_cluster import FETCH, LIST_OFFSETS, batch, started_cluster, times_of
from tests.gateway.test_fetch import NEWEST, flat, one, request
from tests.gateway.test_loss_delivery import filled, lossy_cluster
from tests.gateway.test_transaction_path import Coordinator, marked, opened, part, sent
from tests.sim.seeds import first_at_commit

OK = ErrorCode.none
COLD = StreamLimits(
    tail_cache_bytes=0, read_chunk_bytes=400, snapshot_bytes=600, index_stride_bytes=300
)
LATEST = -1


async def committed(cluster, offset, **fields):
    found, _ = await one(cluster, offset, isolation_level=1, **{"wait_ms": 0, **fields})
    return found


async def latest(cluster, *, isolation, timestamp=LATEST):
    fields = {**times_of({"t": [(0, timestamp)]}), "isolation_level": isolation}
    fields["timeout_ms"] = fields.pop("timeout")
    reply = await cluster.answer(LIST_OFFSETS, 10, **fields)
    return reply.topics[0].partitions[0].offset


def stored(found):
    """Return the header and the bytes of each batch of a response."""
    at, data = 0, bytes(found.records or b"")
    while at < len(data):
        header = read_header(data[at:])
        end = at + header.length + 12
        yield header, data[at:end]
        at = end


def aborted(found):
    return [(each.producer_id, each.first_offset) for each in found.aborted_transactions]


def delivered(found):
    """Return the offsets of batches that Kafka's consumer delivers. Source: CompletedFetch."""
    waiting = sorted(aborted(found), key=lambda each: each[1])
    assert len(set(waiting)) == len(waiting), "librdkafka waits for a marker for each"
    dropping, offsets = set(), []
    for header, data in stored(found):
        while waiting and waiting[0][1] <= header.base_offset:
            dropping.add(waiting.pop(0)[0])
        if header.attributes & CONTROL:
            if not read_marker(data, header).commit:
                dropping.discard(header.producer_id)
        elif not (header.attributes & TRANSACTIONAL and header.producer_id in dropping):
            offsets.append(header.base_offset)
    return offsets


async def test_records_of_an_open_transaction_come_with_its_end():
    async with started_cluster() as cluster:
        partition, _ = await opened(cluster)
        await cluster.sent(partition, batch(records=1))
        await sent(partition, part(0))
        await cluster.sent(partition, batch(records=1))
        found = await committed(cluster, 0)
        assert (found.high_watermark, found.last_stable_offset) == (3, 1)
        assert [header.base_offset for header, _ in stored(found)] == [0]
        assert aborted(found) == []
        plain, _ = await one(cluster, 0, isolation_level=0)
        assert (plain.last_stable_offset, plain.aborted_transactions) == (1, None)
        assert [header.base_offset for header, _ in stored(plain)] == [0, 1, 2]
        assert await marked(partition) is OK
        assert delivered(await committed(cluster, 1)) == [1, 2]


async def test_aborted_records_are_named_and_uncommitted_readers_get_them():
    async with started_cluster() as cluster:
        partition, _ = await opened(cluster)
        for each in (part(0), part(0, producer=6), part(1)):
            await sent(partition, each)
        await marked(partition, commit=False)
        await marked(partition, producer=6)
        found = await committed(cluster, 0)
        assert aborted(found) == [(5, 0)]
        assert delivered(found) == [1]
        assert aborted(await committed(cluster, 2)) == [(5, 0)]
        assert aborted(await committed(cluster, 4)) == []
        plain, _ = await one(cluster, 0, isolation_level=0)
        assert plain.aborted_transactions is None
        assert len(list(stored(plain))) == 5


@pytest.mark.parametrize("version", range(4, NEWEST + 1))
async def test_every_version_names_the_stable_offset_and_the_aborted(version):
    async with started_cluster() as cluster:
        partition, _ = await opened(cluster)
        await sent(partition, part(0))
        await marked(partition, commit=False)
        await sent(partition, part(0, producer=6))
        found = await committed(cluster, 0, version=version)
        assert (found.high_watermark, found.last_stable_offset) == (3, 2)
        assert aborted(found) == [(5, 0)]


async def test_a_long_poll_ends_when_the_stable_offset_moves_and_not_before():
    async with started_cluster() as cluster:
        partition, _ = await opened(cluster)
        await sent(partition, part(0))
        asked = request(cluster, {"t": {0: (0, {})}}, wait_ms=60_000, isolation_level=1)
        called, waiting = cluster.ask(FETCH, NEWEST, **asked)
        await asyncio.sleep(1)
        await cluster.sent(partition, batch(records=1))
        await asyncio.sleep(1)
        assert not waiting.done()
        await marked(partition)
        async with asyncio.timeout(1):
            reply = cluster.decoded(called, await waiting)
        [found] = flat(reply).values()
        assert delivered(found) == [0, 1]


async def test_an_offset_between_the_stable_one_and_the_end_is_in_range():
    async with started_cluster() as cluster:
        partition, _ = await opened(cluster)
        await sent(partition, part(0), part(1))
        for offset in (0, 1, 2):
            found = await committed(cluster, offset)
            assert (found.error_code, list(stored(found))) == (OK, [])
        assert (await committed(cluster, 3)).error_code is ErrorCode.offset_out_of_range


async def test_latest_and_timestamps_end_at_the_stable_offset():
    async with started_cluster() as cluster:
        partition, _ = await opened(cluster)
        await cluster.sent(partition, batch(records=1, at=1000))
        await sent(partition, part(0))
        await cluster.sent(partition, batch(records=1, at=5000))
        assert await latest(cluster, isolation=0) == 3
        assert await latest(cluster, isolation=1) == 1
        assert await latest(cluster, isolation=1, timestamp=500) == 0
        assert await latest(cluster, isolation=0, timestamp=4000) == 2
        assert await latest(cluster, isolation=1, timestamp=4000) == -1
        await marked(partition)
        assert await latest(cluster, isolation=1) == 4
        assert await latest(cluster, isolation=1, timestamp=4000) == 2


class Quiet:
    """A log that never changes."""

    def add_waiter(self, waiter):
        pass

    def remove_waiter(self, waiter):
        pass


def test_a_kept_session_forgets_its_replies_when_the_isolation_changes():
    session = FetchSession([FetchPartition("t", 0, 0, 1)], uses_ids=False, names_all=True)
    [kept] = session.due()
    session.rest(kept, Quiet(), b"reply")
    session.set_isolation(committed=False)
    assert session.due() == []
    session.set_isolation(committed=True)
    assert session.due() == [kept]


async def test_the_state_of_a_reopened_partition_lowers_no_stable_offset():
    async with started_cluster() as cluster:
        partition, _ = await opened(cluster)
        await cluster.sent(partition, batch(records=1))
        await sent(partition, part(0))
        assert partition.stable_offset == 1
        partition.stream.fail(StreamUnavailable("a test"))
        seen = set()
        while not partition.readable:
            seen.add(partition.stable_offset)
            await asyncio.sleep(0.001)
        assert seen | {partition.stable_offset} == {1}


class Producers:
    """Producers that write transactions at random, and the outcome of each batch."""

    def __init__(self, seed):
        self.draw = Random(seed)
        self.outcomes = {}  # offset of each batch: True if it was committed, False if aborted
        self.open = {}  # producer: (epoch, sequence, offsets)

    async def step(self, partition):
        producer = self.draw.randrange(5, 9)
        epoch, sequence, offsets = self.open.get(producer, (0, 0, None))
        kind = self.draw.choice(["write", "write", "write", "end", "plain", "roll"])
        if kind == "plain":
            answers = []
            partition.append(memoryview(batch(records=1)), 13, answers.append)
            while not answers:
                await asyncio.sleep(0.001)
            self.outcomes[answers[0].base_offset] = True
        elif kind == "roll":
            partition.stream.roll_soon()
            await asyncio.sleep(0.1)
        elif kind == "write":
            at = partition.accepted_end
            assert await sent(partition, part(sequence, producer=producer, epoch=epoch)) == [OK]
            self.open[producer] = (epoch, sequence + 1, [*(offsets or []), at])
        elif offsets:
            commit = self.draw.random() < 0.5
            assert await marked(partition, epoch + 1, commit=commit, producer=producer) is OK
            self.outcomes.update(dict.fromkeys(offsets, commit))
            self.open[producer] = (epoch + 1, 0, None)

    @property
    def first_open(self):
        return min((each[2][0] for each in self.open.values() if each[2]), default=None)


async def consumed(cluster, partition, draw, start):
    """Read to the stable offset by fetches of random sizes; return the delivered offsets."""
    at, offsets = start, []
    while at < partition.stable_offset:
        settings = {"partition_max_bytes": draw.choice([1, 200, 1000, 100_000])}
        found = await committed(cluster, at, settings=settings)
        assert found.error_code is OK
        batches = list(stored(found))
        assert batches, "the reader is stuck"
        offsets += [each for each in delivered(found) if each >= start]
        at = batches[-1][0].base_offset + batches[-1][0].records
        assert at <= partition.stable_offset
    return offsets


async def play(seed):
    """Write transactions over segments, restarts and crashes, and read them from any offset."""
    limits = COLD if seed % 2 else None
    async with started_cluster(limits=limits) as cluster:
        partition, _ = await opened(cluster)
        producers = Producers(seed)
        draw, stable = producers.draw, 0
        for _ in range(6):
            for _ in range(draw.randrange(5, 25)):
                await producers.step(partition)
                assert partition.stable_offset >= stable
                stable = partition.stable_offset
            first_open = producers.first_open
            expected = partition.high_watermark if first_open is None else first_open
            assert partition.stable_offset == expected
            assert await latest(cluster, isolation=1) == expected, "latest passes the LSO"
            start = draw.randrange(stable + 1)
            found = await consumed(cluster, partition, draw, start)
            ended = producers.outcomes.items()
            committed_ones = sorted(at for at, kept in ended if kept and start <= at < stable)
            assert found == committed_ones, "a reader got other records"
            how = draw.choice(["nothing", "restart", "crash"])
            if how != "nothing":
                await (cluster.restart() if how == "restart" else cluster.crash())
                cluster.partitions.verifier = Coordinator()
                partition = await cluster.partition()


@pytest.mark.parametrize("seed", first_at_commit(range(25), 10))
async def test_random_transactions_are_read_as_they_ended(seed):
    await play(seed)


async def test_without_transactions_a_hidden_state_hides_no_record():
    async with lossy_cluster() as cluster:
        partition = await filled(cluster)
        entries = await cluster.entries(await cluster.reopened(partition))
        partition = cluster.partitions.find("t", 0)
        partition, _ = await cluster.lose(partition, entries[-1].first, entries[-1].last)
        await cluster.reopened(partition)
        ends = [await latest(cluster, isolation=level) for level in (0, 1)]
        assert ends[0] == ends[1] > 0
