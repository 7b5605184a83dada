"""Goal: a reader far behind gets records that were read ahead, no record is read twice or without
being sent, and a failed read costs no record before it.

Method: Fetch in Kafka's own bytes on virtual time, over real streams without a tail cache; reads
from the bookie are counted, or fail.
"""

import asyncio
from dataclasses import replace

from gateway.handlers.api import Peer
from gateway.wire.messages import encode_request
from ledger.ports.bookies import ReadManyReply, Status
from ledger.streams.read_turns import CHUNKS_PER_TURN, READER, RECORDS_PER_TURN, ReadTurns
from tests.gateway.stream_cluster import FETCH, started_cluster
from tests.gateway.test_fetch import COLD, NEWEST, OK, batch, fetch, flat, offsets, one, request


async def follow(cluster, *batches):
    """Let a reader fetch the first kilobyte of partition 0; return its next offset, read ahead."""
    await cluster.sent(await cluster.partition(), *batches)
    found, _ = await one(cluster, 0, settings={"partition_max_bytes": 1000})
    await asyncio.sleep(1)
    return offsets(found)[-1] + 2


async def test_what_was_read_ahead_is_answered_at_once():
    async with started_cluster(limits=COLD) as cluster:
        await cluster.topic()
        batches = [batch(size=400) for _ in range(20)]
        at = await follow(cluster, *batches)
        fields = request(cluster, {"t": {0: (at, {"partition_max_bytes": 1000})}})
        asked, result = cluster.ask(FETCH, NEWEST, **fields)
        assert not asyncio.isfuture(result)
        found = flat(cluster.decoded(asked, result))[0, 0]
        assert offsets(found) == [at, at + 2]
        rest, _ = await one(cluster, at + 4)
        assert offsets(rest) == list(range(at + 4, 40, 2))


async def test_what_was_read_ahead_is_not_read_again_when_another_partition_must_be_waited_for():
    async with started_cluster(limits=COLD) as cluster:
        await cluster.topic(partitions=2)
        at = await follow(cluster, *(batch(size=400) for _ in range(20)))
        other = await cluster.partition("t", 1)
        await cluster.sent(other, *(batch(size=400) for _ in range(2)))
        before = cluster.port.reads
        asked = {"t": {0: (at, {"partition_max_bytes": 1000}), 1: (0, {})}}
        answer = flat(await fetch(cluster, asked))
        assert offsets(answer[0, 0]) == [at, at + 2]
        assert offsets(answer[0, 1]) == [0, 2]
        await asyncio.sleep(1)
        assert cluster.port.reads - before == 1, "that of the other partition"


async def test_what_was_read_ahead_longest_ago_is_dropped_first_also_where_two_readers_met():
    async with started_cluster(limits=replace(COLD, cursors_max=2)) as cluster:
        await cluster.topic(partitions=3)
        for index in range(3):
            partition = await cluster.partition("t", index)
            await cluster.sent(partition, *(batch(size=400) for _ in range(20)))
        settings = {"partition_max_bytes": 1000}
        for index in (0, 1, 0, 2):
            await one(cluster, 0, index=index, settings=settings)
            await asyncio.sleep(1)
        before = cluster.port.reads
        found, _ = await one(cluster, 4, settings=settings)
        assert offsets(found) == [4, 6]
        assert cluster.port.reads == before, "two cursors are kept, and this was the last but one"


async def test_a_read_ahead_that_failed_does_not_fail_a_later_fetch():
    async with started_cluster(limits=COLD) as cluster:
        sound = await each_in_an_entry(cluster, 10, read_well=1)
        found, _ = await one(cluster, 0, settings={"partition_max_bytes": 500})
        assert offsets(found) == [0]
        await asyncio.sleep(1)
        cluster.port.read_many = sound
        await asyncio.sleep(60)
        found, _ = await one(cluster, 2, settings={"partition_max_bytes": 500})
        assert (found.error_code, offsets(found)) == (OK, [2])


async def test_records_before_one_that_cannot_be_read_are_given():
    async with started_cluster(limits=COLD) as cluster:
        await each_in_an_entry(cluster, 10, read_well=3)
        found, _ = await one(cluster, 0)
        assert (found.error_code, offsets(found)) == (OK, [0, 2, 4])
        found, _ = await one(cluster, 6)
        assert found.error_code is not OK


async def each_in_an_entry(cluster, count, *, read_well):
    """Send `count` batches and fail all reads after `read_well`; return the working read."""
    partition = await cluster.topic()
    for _ in range(count):
        await cluster.sent(partition, batch(size=900))
    sound = cluster.port.read_many
    reads = []

    async def give_and_fail_from_then_on(*asked):
        reads.append(asked)
        return await sound(*asked) if len(reads) <= read_well else ReadManyReply(Status.IO_ERROR)

    cluster.port.read_many = give_and_fail_from_then_on
    return sound


async def test_a_reader_behind_has_its_part_at_once_however_many_bytes_it_would_wait_for():
    """Waiting adds nothing to a partition whose share of the response is full. And a waiting fetch
    would read the same records from disk again at each change.
    """
    async with started_cluster(limits=replace(COLD, tail_cache_bytes=6000)) as cluster:
        await cluster.topic(partitions=2)
        await cluster.sent(await cluster.partition(), *(batch(size=400) for _ in range(20)))
        live = await cluster.partition("t", 1)
        await cluster.sent(live, batch())
        asked = {"t": {0: (0, {"partition_max_bytes": 1000}), 1: (2, {})}}
        before = cluster.port.reads
        waiting = asyncio.create_task(fetch(cluster, asked, wait_ms=10_000, min_bytes=1 << 20))
        for _ in range(5):
            await asyncio.sleep(1)
            await cluster.sent(live, batch())
        answer = flat(await waiting)
        assert offsets(answer[0, 0]) == [0, 2]
        assert cluster.port.reads - before <= 2, "its part, and what is read ahead"


async def test_nothing_is_read_for_an_answer_that_has_no_room_for_it():
    async with started_cluster(limits=COLD) as cluster:
        await cluster.topic(partitions=6)
        for index in range(6):
            await cluster.sent(await cluster.partition("t", index), batch(size=900))
        before = cluster.port.reads
        answer = flat(await fetch(cluster, {"t": {i: (0, {}) for i in range(6)}}, max_bytes=1500))
        assert [offsets(answer[0, index]) for index in range(6)] == [[0], [], [], [], [], []]
        assert cluster.port.reads - before == 2, "what it holds, and the first that did not fit"


async def test_many_readers_behind_take_few_chunks_in_one_turn_of_the_loop():
    async with started_cluster(limits=COLD) as cluster:
        partition = await cluster.topic()
        for _ in range(60):  # each in an entry of its own
            await cluster.sent(partition, batch(size=900))
        per_turn = [0]
        sound = cluster.port.read_many

        async def counted(*asked):
            if not per_turn[-1]:
                asyncio.get_running_loop().call_soon(per_turn.append, 0)
            per_turn[-1] += 1
            return await sound(*asked)

        cluster.port.read_many = counted
        readers = (fetch(cluster, {"t": {0: (0, {})}}) for _ in range(10))
        answers = await asyncio.gather(*readers)
        for answer in answers:
            assert offsets(flat(answer)[0, 0]) == list(range(0, 120, 2))
        assert sum(per_turn) >= 100
        assert max(per_turn) <= 2 * CHUNKS_PER_TURN, (
            "a turn is noticed in the middle of the next one"
        )


async def test_chunks_of_many_small_batches_are_decoded_in_steps():
    """Each step is in a turn of its own, so that other clients are served between them."""
    batches = 3 * RECORDS_PER_TURN + 1
    async with started_cluster(limits=replace(COLD, read_chunk_bytes=1 << 20)) as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, *(batch(size=1) for _ in range(batches)))
        reads = partition.stream._reads
        per_turn = [0]
        sound = reads._timestamp_max

        def counted(data):
            if not per_turn[-1]:
                asyncio.get_running_loop().call_soon(per_turn.append, 0)
            per_turn[-1] += 1
            return sound(data)

        reads._timestamp_max = counted
        readers = (fetch(cluster, {"t": {0: (0, {})}}) for _ in range(3))
        for answer in await asyncio.gather(*readers):
            assert offsets(flat(answer)[0, 0]) == list(range(0, 2 * batches, 2))
        assert sum(per_turn) >= 3 * batches
        assert max(per_turn) <= 2 * RECORDS_PER_TURN, (
            "a turn is noticed in the middle of the next one"
        )


async def test_a_reader_that_left_the_line_for_chunks_holds_up_no_other():
    turns = ReadTurns()
    waiting = [asyncio.ensure_future(turns.take()) for _ in range(4 * CHUNKS_PER_TURN)]
    await asyncio.sleep(0)
    for left in waiting[CHUNKS_PER_TURN : 3 * CHUNKS_PER_TURN]:
        left.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    assert all(each.done() for each in waiting)
    await turns.take()


async def test_reads_of_one_address_are_served_in_their_order_also_beside_newcomers():
    turns, served = ReadTurns(), []

    async def read(number):
        await turns.take()
        served.append(number)

    reads = []
    for number in range(40):
        reads.append(asyncio.ensure_future(read(number)))
        if number % 3 == 0:
            await asyncio.sleep(0)  # a turn, in which the next one comes
    await asyncio.gather(*reads)
    assert served == list(range(40))


async def test_addresses_have_their_reads_in_turn_however_many_readers_they_have():
    turns, served = ReadTurns(), []

    async def read(address, steps):
        READER.set(address)
        for _ in range(steps):
            await turns.take()
            served.append(address)

    greedy = [asyncio.ensure_future(read("10.6.6.6", 5)) for _ in range(300)]
    await asyncio.sleep(0)
    await read("10.9.9.9", 20)
    assert served.count("10.6.6.6") <= 22
    await asyncio.gather(*greedy)
    assert len(served) == 300 * 5 + 20


async def fetched_by(cluster, host, offset, **settings):
    """Return the offsets that a client at this address gets from partition 0."""
    peer = Peer(host, 50_000, "127.0.0.1", 9_092)
    fields = request(cluster, {"t": {0: (offset, settings)}})
    asked, handle = cluster.dispatcher.open(encode_request(FETCH, NEWEST, 7, "c", fields), peer)
    result = cluster.dispatcher.start(asked, handle)
    if asyncio.isfuture(result):
        result = await result
    return offsets(flat(cluster.decoded(asked, result))[0, 0])


async def test_a_fetch_whose_read_is_cancelled_by_what_it_awaits_does_not_wait_for_ever():
    async with started_cluster(limits=COLD) as cluster:
        partition = await cluster.topic()
        for _ in range(60):
            await cluster.sent(partition, batch(size=900))

        async def cancelled():
            raise asyncio.CancelledError

        partition.stream._reads._cursor_limit.turns.take = cancelled
        reading = asyncio.ensure_future(fetched_by(cluster, "10.9.9.9", 0))
        await asyncio.wait([reading], timeout=30)
        assert reading.cancelled()
        assert cluster.context.reply_memory.used_bytes == 0


async def test_many_readers_at_one_address_delay_a_reader_at_another_one_little():
    async with started_cluster(limits=COLD) as cluster:
        partition = await cluster.topic()
        for _ in range(60):
            await cluster.sent(partition, batch(size=900))
        line = partition.stream._reads._cursor_limit.turns
        sound, granted, waited = line.take, [], []

        async def counted():
            before, address = len(granted), READER.get()
            await sound()
            if address == "10.9.9.9":
                waited.append(len(granted) - before)
            granted.append(address)

        line.take = counted
        greedy = []
        for number in range(300):  # one host has all addresses of its network
            reading = fetched_by(
                cluster, f"2001:db8::{number:x}", 2 * (number % 60), partition_max_bytes=1
            )
            greedy.append(asyncio.ensure_future(reading))
        await asyncio.sleep(0)
        assert await fetched_by(cluster, "10.9.9.9", 0) == list(range(0, 120, 2))
        assert len(waited) >= 30
        assert max(waited) <= 2
        for number, found in enumerate(await asyncio.gather(*greedy)):
            assert found == [2 * (number % 60)]
