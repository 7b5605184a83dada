"""Goal: following costs little: no request on an idle stream, one where one is enough, a few chunks
of memory however slow the reader is, and nothing for the writer.

Method: as test_follower.py, with the requests to bookies and metadata counted.
"""

import asyncio

import pytest

from ledger.ids import pinned_bytes
from ledger.streams.config import StreamLimits
from ledger.streams.read_cursor import PINNED_MAX
from tests.ledger.follow_rig import by_sequence_id, started_rig
from tests.sim.network import Observer


async def test_an_idle_reader_asks_about_once_a_period_and_a_new_record_wakes_it():
    async with started_rig() as rig:
        owner = await rig.owner()
        follower = await rig.follower()
        await owner.add(5)
        await follower.until(4)
        await asyncio.sleep(5)
        follower.port.asked.clear()
        await asyncio.sleep(60)
        polls = len(follower.port.asked)
        owner.append()
        polls, seconds = polls, await follower.until(5)
    assert 55 <= polls <= 65
    assert seconds < 0.05


async def test_a_record_at_the_tail_comes_with_the_answer_to_the_long_poll():
    async with started_rig() as rig:
        owner = await rig.owner()
        follower = await rig.follower()
        await owner.add(3)
        await follower.until(2)
        follower.port.asked.clear()
        for _ in range(20):
            await owner.add()
            await asyncio.sleep(0.05)
        await follower.until(22)
        assert len(await follower.read_all(2)) == 20
        port = follower.port
    assert not port.count("read_many")
    assert sum(port.count("wait_lac").values()) <= 23


async def test_a_reader_far_behind_is_given_large_pieces_one_chunk_ahead():
    limits = StreamLimits(read_chunk_bytes=64 * 1024, tail_cache_bytes=0)

    async with started_rig(limits=limits) as rig:
        owner = await rig.owner()
        for _ in range(400):
            owner.append(4000)
            await asyncio.sleep(0.001)
        await owner.settle()
        await owner.roll()
        follower = await rig.follower()
        await asyncio.sleep(1)
        follower.port.asked.clear()
        assert len(await follower.read_all(bytes_max=16_000)) == 400
        asked = sum(follower.port.count("read_many").values())
    assert asked <= 1.2 * 400 * 4000 / (64 * 1024) + 3


async def test_a_reader_that_stopped_holds_no_more_than_a_few_chunks_and_the_end_moves_on():
    limits = StreamLimits(read_chunk_bytes=64 * 1024)

    async with started_rig(limits=limits, control_ms=50) as rig:
        owner = await rig.owner()
        follower = await rig.follower()
        for _ in range(1000):
            owner.append(4000)
            await asyncio.sleep(0.001)
        await owner.settle()
        held = follower.services.cache.bytes_held
        seconds = await follower.until(1000)
        reads = sum(follower.port.count("read_many").values())
        assert await follower.read_all() == by_sequence_id(owner)
    assert held <= 5 * 64 * 1024
    assert seconds <= 2.5
    assert reads < 60


async def test_a_reader_a_few_records_behind_reads_from_memory_however_long_the_stream_is():
    limits = StreamLimits(read_chunk_bytes=16 * 1024)

    async with started_rig(limits=limits, control_ms=50) as rig:
        owner = await rig.owner()
        follower = await rig.follower()
        await owner.add(5, size=1000)
        await follower.until(4)
        follower.port.asked.clear()
        for number in range(200):
            await owner.add(1, size=1000)
            await follower.until(number + 5)
            assert follower.stream.read_cached(number, 1) is not None
        port = follower.port
    assert not port.count("read_many")


class LargeMessages:
    """Bookies whose every entry is a small part of a large message, as those of a busy bookie."""

    def __init__(self, port):
        self.port = port

    def __getattr__(self, name):
        return getattr(self.port, name)

    async def read_many(self, *asked):
        reply = await self.port.read_many(*asked)
        return reply._replace(bodies=[in_a_large_message(body) for body in reply.bodies])

    async def wait_lac(self, *asked):
        reply = await self.port.wait_lac(*asked)
        return reply._replace(body=in_a_large_message(reply.body)) if reply.body else reply


def in_a_large_message(body):
    message = bytearray(256 * 1024)
    message[: len(body)] = body
    return memoryview(message)[: len(body)]


async def test_the_tail_cache_keeps_records_and_not_the_messages_that_brought_them():
    async with started_rig(control_ms=50) as rig:
        owner = await rig.owner()
        follower = await rig.follower()
        follower.port.port = LargeMessages(follower.port.port)
        await owner.add(50, size=1000)
        await follower.until(50)
        kept = follower.stream.read_cached(10, 40_000)
        assert len(kept) == 40
    parts = [part for record in kept for part in record.data]
    assert pinned_bytes(parts) <= PINNED_MAX * sum(map(len, parts))


async def test_a_reader_that_caught_up_is_at_the_tail_again():
    limits = StreamLimits(read_chunk_bytes=16 * 1024)

    async with started_rig(limits=limits, control_ms=50) as rig:
        owner = await rig.owner()
        follower = await rig.follower()
        for _ in range(500):
            owner.append(1000)
            await asyncio.sleep(0.001)
        await owner.settle()
        await follower.until(500)
        assert not follower.stream._pulling
        assert len(await follower.read_all()) == 500
        await owner.add(2)
        assert await follower.until(501) < 0.05
        assert follower.stream.read_cached(500, 10_000) is not None


async def test_the_writer_is_never_fenced():
    class Fences(Observer):
        hosts = ()

        def on_recovery_read(self, host, bookie, ledger, entry):
            self.hosts += (host,)

    async with started_rig() as rig:
        rig.world.network.observer = fences = Fences()
        owner = await rig.owner()
        for number in range(5):
            follower = await rig.follower(f"follower {number}")
            await owner.add(3)
            await follower.until(3 * number + 2)
            await follower.stream.close()
        await owner.add(3)
        assert not owner.failures and "follower 0" not in fences.hosts
        assert not fences.hosts


@pytest.mark.parametrize("late", [False, True])
async def test_a_seek_costs_a_few_requests_however_long_the_stream_is(late):
    limits = StreamLimits(
        entry_bytes_max=64 * 1024,
        snapshot_bytes=20_000,
        index_stride_bytes=4000,
        read_chunk_bytes=8000,
        tail_cache_bytes=0,
    )

    async with started_rig(limits=limits) as rig:
        owner = await rig.owner()
        follower = None if late else await rig.follower()
        for _ in range(10):
            for _ in range(50):
                owner.append(1000)
                await owner.settle()
            await owner.roll()
        for _ in range(100):
            owner.append(1000)
            await owner.settle()
        follower = follower or await rig.follower()
        await asyncio.sleep(2)
        costs = []
        for at in range(7, 590, 83):
            follower.port.asked.clear()
            follower.calls.clear()
            [record] = await follower.stream.read(at, 1)
            assert record.sequence_id == at
            asked = follower.port.count("read_many")
            costs.append((sum(asked.values()), len(follower.calls)))
        for reads, calls in costs:
            assert reads <= 4 and calls <= 4  # the next segment's head, then at most a stride
