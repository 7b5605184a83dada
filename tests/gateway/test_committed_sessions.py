"""Goal: a session that is held open over a moving last stable offset gets what a reader without a
session gets: no record too early, and each record as soon as its transaction ended.

Method: Fetch in Kafka's bytes over real streams on virtual time: sessions of KIP-227, and what a
connection keeps of a client without a session. As in Kafka 4.3 (CachedPartition), a partition is in
an incremental response if it has records, or if its high watermark or its start moved.
"""

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from tests.gateway.replica_pair import RACK, replica_pair
from tests.gateway.stream_cluster import batch, started_cluster
from tests.gateway.test_fetch import fetch, flat, request
from tests.gateway.test_fetch_kept import WIDTH, answer, connection
from tests.gateway.test_read_committed import COLD, delivered
from tests.gateway.test_transaction_path import Coordinator, marked, opened, part, sent

OK = ErrorCode.none
BOTH = pytest.mark.parametrize("limits", [None, COLD], ids=["warm", "cold"])


class Session:
    """A reader of committed records with a session, at one broker."""

    def __init__(self, cluster, **fields):
        self.cluster = cluster
        self.fields = {"isolation_level": 1, **fields}
        self.id = self.epoch = 0

    async def ask(self, *, wait_ms=0, **named):
        """Return the partitions of the response. `named` is {"t": offset}."""
        asked = {topic: {0: (offset, {})} for topic, offset in named.items()}
        place = {"session_id": self.id, "session_epoch": self.epoch, "wait_ms": wait_ms}
        reply = await fetch(self.cluster, asked, **self.fields, **place)
        assert reply.error_code is OK
        self.id, self.epoch = reply.session_id, self.epoch + 1
        return list(flat(reply).values())


@BOTH
async def test_a_session_gets_records_with_the_end_of_their_transaction(limits):
    async with started_cluster(limits=limits) as cluster:
        partition, _ = await opened(cluster)
        await cluster.sent(partition, batch(records=1))
        await sent(partition, part(0))
        session = Session(cluster)
        [first] = await session.ask(t=0)
        assert (delivered(first), first.last_stable_offset) == ([0], 1)
        assert await session.ask(t=1) == []
        waiting = asyncio.ensure_future(session.ask(wait_ms=30_000))
        await asyncio.sleep(1)
        await cluster.sent(partition, batch(records=1))
        await asyncio.sleep(1)
        assert not waiting.done()
        await marked(partition)
        async with asyncio.timeout(1):
            [found] = await waiting
        assert (delivered(found), found.last_stable_offset) == ([1, 2], 4)
        assert await session.ask(t=4) == []


async def test_a_high_watermark_that_moved_is_in_the_answer_without_records():
    async with started_cluster() as cluster:
        partition, _ = await opened(cluster)
        await sent(partition, part(0))
        session = Session(cluster)
        await session.ask(t=0)
        await cluster.sent(partition, batch(records=1))
        [found] = await session.ask()
        assert (found.high_watermark, found.last_stable_offset) == (2, 0)
        assert not found.records
        assert await session.ask() == []


async def test_a_resting_partition_is_due_with_the_end_of_a_transaction_before_it():
    async with started_cluster() as cluster:
        partition, _ = await opened(cluster)
        await sent(partition, part(0))
        session = Session(cluster)
        [first] = await session.ask(t=1)  # the high watermark, above the last stable offset
        assert (first.high_watermark, first.last_stable_offset) == (1, 0)
        assert await session.ask() == []
        await marked(partition)
        [found] = await session.ask()
        assert (found.high_watermark, found.last_stable_offset) == (2, 2)


@BOTH
async def test_what_a_connection_keeps_is_never_an_old_stable_offset(limits):
    async with started_cluster(limits=limits) as cluster:
        cluster.partitions.verifier = Coordinator()
        await cluster.topic(partitions=WIDTH)
        peer, wanted = connection(), {"t": dict.fromkeys(range(WIDTH), 0)}
        for index in range(WIDTH):
            partition = await cluster.partition("t", index)
            await partition.stream.begin()
            await sent(partition, part(0))

        async def stable(level=1):
            fields = request(cluster, _named(wanted), 17, wait_ms=0, isolation_level=level)
            reply = await answer(cluster, peer, fields, 17)
            found = {each.partition_index: each for each in reply.responses[0].partitions}
            assert len(found) == WIDTH
            return found

        found = await stable()
        assert {each.last_stable_offset for each in found.values()} == {0}
        wanted["t"][5] = 1
        assert (await stable())[5].last_stable_offset == 0
        for index in (5, 6):
            await marked(await cluster.partition("t", index))
        found = await stable()
        assert (found[5].last_stable_offset, found[6].last_stable_offset) == (2, 2)
        assert (delivered(found[6]), delivered(found[7])) == ([0], [])
        assert {each.last_stable_offset for each in found.values()} == {0, 2}


def _named(wanted):
    return {
        topic: {index: (offset, {}) for index, offset in of.items()} for topic, of in wanted.items()
    }


@BOTH
async def test_a_session_at_a_replica_gets_records_when_their_outcome_was_read_there(limits):
    async with replica_pair(limits) as pair:
        await sent(pair.partition, part(0))
        session = Session(pair.near, rack_id=RACK)
        await session.ask(t=0, wait_ms=500)
        assert await session.ask(wait_ms=500) == []
        waiting = asyncio.ensure_future(session.ask(wait_ms=30_000))
        await asyncio.sleep(1)
        await marked(pair.partition)
        async with asyncio.timeout(2):
            [found] = await waiting
        assert (delivered(found), found.last_stable_offset) == ([0], 2)


async def test_a_session_at_a_replica_survives_its_idle_time():
    async with replica_pair() as pair:
        await sent(pair.partition, part(0))
        await marked(pair.partition)
        session = Session(pair.near, rack_id=RACK)
        [found] = await session.ask(t=0, wait_ms=5000)
        assert delivered(found) == [0]
        assert await session.ask(t=2) == []
        await asyncio.sleep(119)
        await sent(pair.partition, part(0, epoch=1))
        await marked(pair.partition, 2)
        [found] = await session.ask(wait_ms=5000)
        assert delivered(found) == [2]
