"""Goal: what a Fetch names is kept exactly, also if it is odd or its client leaves meanwhile.

Method: requests with repeated entries, and with so many elements that they yield to others, in
Kafka's own bytes on virtual time.
"""

import asyncio

import pytest

from gateway.core.fetch_session import FetchSession
from gateway.wire.messages import encode_request
from tests.gateway.stream_cluster import FETCH, started_cluster
from tests.gateway.test_fetch import batch, offsets, request
from tests.gateway.test_fetch_kept import WIDTH, answer, ask, connection, rows


async def test_a_partition_that_is_named_twice_keeps_no_other_that_is_not_named():
    async with started_cluster() as cluster:
        await cluster.topic("t", partitions=WIDTH)
        peer, sessions = connection(), cluster.context.fetch_sessions
        everyone = [entry_of(index) for index in range(WIDTH)]
        await answer(cluster, peer, entries(cluster, everyone), 11)
        assert sessions.partitions_held == WIDTH
        # the last one is no longer named; another one is named twice, alike and differently
        for again in (entry_of(0), entry_of(0, partition_max_bytes=7)):
            await answer(cluster, peer, entries(cluster, [*everyone[:-1], again]), 11)
            assert sessions.partitions_held == WIDTH - 1
            await answer(cluster, peer, entries(cluster, everyone), 11)
            assert sessions.partitions_held == WIDTH


MANY_FORGOTTEN = {"forgotten_topics_data": [{"topic": "nosuch", "partitions": list(range(1_500))}]}
"""With this a request names so much that it yields to others."""


def entry_of(index, **fields):
    return {"partition": index, "fetch_offset": 0, "partition_max_bytes": 1000, **fields}


def entries(cluster, named):
    """Return a Fetch of these entries of one topic."""
    fields = request(cluster, {"t": {0: (0, {})}}, 11, wait_ms=0)
    fields["topics"][0]["partitions"] = named
    return fields


@pytest.mark.parametrize("kind", ["session", "connection"])
async def test_a_wide_fetch_that_is_cancelled_while_it_names_partitions_keeps_none(kind):
    async with started_cluster() as cluster:
        await cluster.topic("t", partitions=400)
        peer, sessions = connection(), cluster.context.fetch_sessions
        epoch = 0 if kind == "session" else -1
        few = {"t": dict.fromkeys(range(WIDTH), 0)}
        first = await ask(cluster, peer, few, 11, session_epoch=epoch)
        assert sessions.partitions_held == WIDTH
        await asyncio.sleep(1)  # the pause of the connection
        wide = {"t": {index: (0, {}) for index in range(400)}}
        epoch = 1 if kind == "session" else -1
        fields = {"session_id": first.session_id, "session_epoch": epoch, **MANY_FORGOTTEN}
        frame = encode_request(FETCH, 11, 7, "client", request(cluster, wide, 11, **fields))
        asked, handle = cluster.dispatcher.open(frame, peer)
        naming = cluster.dispatcher.start(asked, handle)
        await asyncio.sleep(0)  # the first 250 of them
        naming.cancel()
        await asyncio.wait([naming])
        assert len(sessions) == 0
        assert sessions.partitions_held == 0
        again = await ask(cluster, peer, few, 11, session_epoch=-1)
        assert len(rows(again)) == WIDTH
        assert sessions.partitions_held == WIDTH


async def test_a_wide_fetch_ends_its_request_once(monkeypatch):
    """A session that ended its request is free for the next one, which may have begun."""
    ended = []
    answered = FetchSession.answered

    def counted(session):
        ended.append(session)
        answered(session)

    monkeypatch.setattr(FetchSession, "answered", counted)
    async with started_cluster() as cluster:
        partition = await cluster.topic("t", partitions=2)
        wanted = {"t": dict.fromkeys(range(2), 0)}
        first = await ask(cluster, connection(), wanted, 11, session_epoch=0)
        ended.clear()
        fields = {"session_id": first.session_id, "session_epoch": 1, **MANY_FORGOTTEN}
        waiting = asyncio.ensure_future(
            ask(cluster, connection(), wanted, 11, wait_ms=60_000, **fields)
        )
        await asyncio.sleep(1)
        assert ended == []
        await cluster.sent(partition, batch())
        await waiting
        assert [session.id for session in ended] == [first.session_id]


@pytest.mark.parametrize("epoch", [-1, 0])
async def test_a_wide_fetch_whose_session_is_closed_meanwhile_counts_nothing(epoch):
    async with started_cluster() as cluster:
        await cluster.topic("t", partitions=400)
        peer, sessions = connection(), cluster.context.fetch_sessions
        few = {"t": dict.fromkeys(range(WIDTH), 0)}
        first = await ask(cluster, peer, few, 11, session_epoch=0)
        wide = {"t": {index: (0, {}) for index in range(400)}}
        fields = {"session_id": first.session_id, "session_epoch": 1, **MANY_FORGOTTEN}
        frame = encode_request(
            FETCH, 11, 7, "client", request(cluster, wide, 11, wait_ms=0, **fields)
        )
        asked, handle = cluster.dispatcher.open(frame, peer)
        naming = cluster.dispatcher.start(asked, handle)
        await asyncio.sleep(0)  # it has named the first partitions
        again = await ask(
            cluster, connection(), few, 11, session_id=first.session_id, session_epoch=epoch
        )
        await naming
        assert sessions.partitions_held == (WIDTH if again.session_id else 0)


@pytest.mark.parametrize("wide", [False, True])
async def test_of_a_partition_that_is_named_twice_the_last_entry_counts_each_time(wide):
    async with started_cluster() as cluster:
        partition = await cluster.topic("t", partitions=WIDTH)
        await cluster.sent(partition, *(batch() for _ in range(5)))
        peer = connection()
        others = [entry_of(index) for index in range(1, WIDTH)]

        async def fetched(*at):
            named = [entry_of(0, fetch_offset=offset) for offset in at[:-1]]
            last = entry_of(0, fetch_offset=at[-1])
            fields = entries(cluster, [*named, *others, last])
            if wide:
                fields |= MANY_FORGOTTEN
            reply = await answer(cluster, peer, fields, 11)
            [found] = [each for each in reply.responses[0].partitions if not each.partition_index]
            return offsets(found)

        for _ in range(3):
            assert await fetched(2, 6) == [6, 8]
        for _ in range(3):
            assert await fetched(6, 2, 4) == [4, 6, 8]
        assert await fetched(4, 6) == [6, 8]
