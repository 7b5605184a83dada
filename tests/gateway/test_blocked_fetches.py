"""Goal: readers that are blocked at an entry cost little, and hold up no other partition.

Method: Fetch in Kafka's own bytes on virtual time, over real streams whose bookie lost entries, or
is silent about them. Reads and metadata are counted at the ports.
"""

import asyncio

from kio.schema.errors import ErrorCode

from gateway.core.blocked_reads import EXPIRY_S
from gateway.topics.loss_delivery import LossDelivery
from ledger.core.loss import EntryLost
from ledger.ids import EntryId, LedgerId
from tests.batches import plain_batch
from tests.gateway.lossy_cluster import evidence_of, headers, lossy_cluster
from tests.gateway.test_fetch import fetch, flat, one
from tests.gateway.test_loss_delivery import STORAGE, filled, read

OK = ErrorCode.none
REQUEST_TIMEOUT_S = 30
"""After this time a Java client gives up the request, and fetches the same again."""


class Silence:
    """Reads of some entries that no bookie answers, until `end`."""

    def __init__(self, port):
        self.entries = set()
        self._over = asyncio.Event()
        self._read_many = port.read_many
        port.read_many = self.read_many

    def end(self):
        self.entries.clear()
        self._over.set()

    async def read_many(self, bookie, ledger, first, last, max_bytes):
        if (ledger, first) in self.entries:
            await self._over.wait()
        later = [entry for of, entry in self.entries if of == ledger and entry > first]
        last = min([last, *(entry - 1 for entry in later)])
        return await self._read_many(bookie, ledger, first, last, max_bytes)


async def silent_partitions(cluster, count):
    """Create a topic of `count` partitions with five batches each.

    Of all but the last partition no bookie answers for the entry at offset 2. Nothing is cached.
    """
    await cluster.topic(partitions=count)
    for index in range(count):
        partition = await cluster.partition("t", index)
        for number in range(5):
            await cluster.sent(partition, plain_batch([1000 + number] * 2))
    await cluster.restart()
    partitions = [await cluster.partition("t", index) for index in range(count)]
    silence = Silence(cluster.port)
    for partition in partitions[:-1]:
        entry = (await cluster.entries(partition))[1]
        silence.entries.add((entry.ledger, entry.entry))
    return silence


async def fetched(cluster, offsets):
    """Fetch the partitions at these offsets. Returns what each got, and the seconds it took."""
    began_s = asyncio.get_running_loop().time()
    answer = await fetch(cluster, {"t": {at: (offset, {}) for at, offset in offsets.items()}})
    took_s = asyncio.get_running_loop().time() - began_s
    return {
        index: (one.error_code, one.records) for (_, index), one in flat(answer).items()
    }, took_s


async def test_silent_bookies_hold_up_no_fetch_of_other_partitions():
    async with lossy_cluster() as cluster:
        silence = await silent_partitions(cluster, 5)
        offsets = {**dict.fromkeys(range(4), 2), 4: 0}
        for _ in range(5):  # meets each of the blocked partitions once
            found, took_s = await fetched(cluster, offsets)
            assert took_s < REQUEST_TIMEOUT_S
        assert took_s < 0.1
        assert {index for index, (error, _) in found.items() if error is STORAGE} == set(range(4))
        assert headers(bytes(found[4][1]))[-1] == (8, 9, 2)
        silence.end()
        async with asyncio.timeout(2):
            while any(error is STORAGE for error, _ in found.values()):
                found, _ = await fetched(cluster, offsets)
                await asyncio.sleep(0.1)
        assert all(headers(bytes(records))[-1].last == 9 for _, records in found.values())


async def test_a_blocked_offset_is_read_again_a_few_times_per_second_only():
    async with lossy_cluster() as cluster:
        await cluster.lose(await filled(cluster), 2, 5)
        assert await read(cluster, 2) == (STORAGE, [])
        await asyncio.sleep(1)
        cluster.port.reads = 0
        for _ in range(200):
            assert await read(cluster, 2) == (STORAGE, [])
            await asyncio.sleep(0.005)
        assert 0 < cluster.port.reads < 50


async def test_a_client_that_knows_the_error_gets_it_again_after_its_time():
    async with lossy_cluster() as cluster:
        partition, _ = await cluster.lose(await filled(cluster), 2, 5)
        found, took_s = await one(cluster, 2, wait_ms=500)
        assert (found.error_code, took_s < 0.1) == (STORAGE, True)
        found, took_s = await one(cluster, 2, wait_ms=500)
        assert (found.error_code, took_s) == (STORAGE, 0.5)
        assert found.records in (None, b"")
        assert partition.losses.readers_blocked(0.4) == 1


async def test_a_reader_that_stays_away_finds_out_by_itself():
    async with lossy_cluster() as cluster:
        await cluster.lose(await filled(cluster), 2, 5)
        assert await read(cluster, 2) == (STORAGE, [])
        await asyncio.sleep(EXPIRY_S + 1)
        cluster.port.missing.clear()
        assert (await read(cluster, 2))[1][0] == (2, 3, 2)


async def test_a_repeated_read_ends_with_its_partition():
    async with lossy_cluster() as cluster:
        silence = await silent_partitions(cluster, 2)
        await fetched(cluster, {0: 2})
        await asyncio.sleep(1)
        await fetched(cluster, {0: 2})
        partition = await cluster.partition("t", 0)
        (repeating,) = partition.losses._repeating.values()
        await partition.close()
        assert repeating.cancelled()
        assert not partition.losses._repeating
        silence.end()


class Warnings:
    def __init__(self):
        self.offsets = []

    def warn_of_loss(self, offset, error):
        self.offsets.append(offset)


class Clock:
    now_s = 0.0

    def monotonic_s(self):
        return self.now_s


class NoRecords:
    end_sequence_id = 100
    accepted_losses = ()

    async def find_timestamp(self, timestamp, first=0):
        return None


async def test_a_later_loss_is_logged_although_nobody_passed_the_one_before():
    warnings, clock = Warnings(), Clock()
    losses = LossDelivery(NoRecords(), lambda: None, warnings, clock)
    copies = evidence_of(LedgerId(1)).copies
    error = EntryLost("lost", LedgerId(1), EntryId(3), copies)
    losses.on_failed(5, error)
    losses.on_failed(5, error)
    assert warnings.offsets == [5]
    clock.now_s += EXPIRY_S + 1
    assert not losses.places(0)
    losses.on_failed(8, error)
    losses.on_failed(9, error)
    assert warnings.offsets == [5, 8]
    await losses.close()
