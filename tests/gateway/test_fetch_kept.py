"""Goal: what a broker keeps of a client's fetches never changes an answer, only its cost.

Method: three clients ask for the same partitions while seeds draw appends, truncations, lost
leases, lost partitions, deleted topics and changed requests: one without a session on one
connection, one with a session (KIP-227), and one whose connection is new each time. All must see
the same. The cost is counted in Python calls, which do not depend on the machine.
"""

import asyncio
import sys
from functools import partial
from random import Random

import pytest
from kio.schema.errors import ErrorCode

from gateway.core.fetch_session import FetchSessions
from gateway.handlers.api import Peer
from gateway.topics.connection_fetches import ConnectionFetches
from gateway.wire.messages import encode_request
from tests.gateway.stream_cluster import FETCH, started_cluster
from tests.gateway.test_fetch import COLD, batch, request
from tests.sim.turns import turns_during

OK = ErrorCode.none
WIDTH = 40  # enough that a connection keeps them


def connection():
    peer = Peer("127.0.0.1", 50_000, "127.0.0.1", 9_092)
    peer.fetches = ConnectionFetches()
    return peer


async def answer(cluster, peer, fields, version):
    frame = encode_request(FETCH, version, 7, "client", fields)
    asked, handle = cluster.dispatcher.open(frame, peer)
    result = cluster.dispatcher.start(asked, handle)
    if asyncio.isfuture(result):
        async with asyncio.timeout(60):
            result = await result
    return cluster.decoded(asked, result)


async def ask(cluster, peer, wanted, version=17, wait_ms=0, **fields):
    """Return the answer to a Fetch of {topic: {index: offset}}, in this order."""
    asked = {
        topic: {index: (offset, {}) for index, offset in offsets.items()}
        for topic, offsets in wanted.items()
    }
    fields = request(cluster, asked, version, wait_ms=wait_ms, **fields)
    return await answer(cluster, peer, fields, version)


def rows(reply):
    """Return {(topic, index): (error, high watermark, log start, size of records)}."""
    found = {
        (getattr(topic, "topic_id", None) or topic.topic, each.partition_index): (
            each.error_code,
            each.high_watermark,
            each.log_start_offset,
            len(each.records or b""),
        )
        for topic in reply.responses
        for each in topic.partitions
    }
    assert len(found) == sum(len(topic.partitions) for topic in reply.responses), "named twice"
    return found


class SessionClient:
    """A client with a session, which sends differences only and remembers what it was sent."""

    def __init__(self, peer):
        self.peer = peer
        self.session_id = 0
        self.epoch = 0
        self.named = {}
        self.known = {}

    async def ask(self, cluster, wanted, version):
        flat = {(t, i): offset for t, of in wanted.items() for i, offset in of.items()}
        news = {key: offset for key, offset in flat.items() if self.named.get(key) != offset}
        gone = [key for key in self.named if key not in flat]
        topics = {}
        for (topic, index), offset in (news if self.epoch else flat).items():
            topics.setdefault(topic, {})[index] = offset
        forgotten = {}
        for topic, index in gone if self.epoch else ():
            forgotten.setdefault(topic, []).append(index)
        fields = {
            "session_id": self.session_id,
            "session_epoch": self.epoch,
            "forgotten_topics_data": [
                {"topic": topic, "partitions": indexes} for topic, indexes in forgotten.items()
            ],
        }
        reply = await ask(cluster, self.peer, topics, version, **fields)
        assert reply.error_code is OK
        if not self.epoch:
            self.known = {}
        self.named = flat
        self.known = {key: row for key, row in self.known.items() if key in flat}
        # an earlier error or record counts for one answer only
        self.known = {key: (OK, *row[1:3], 0) for key, row in self.known.items()}
        self.known.update(rows(reply))
        self.session_id = reply.session_id
        self.epoch = self.epoch + 1 if reply.session_id else 0
        return dict(self.known)


class Lease:
    """The lease of a broker whose partitions do not exist yet."""

    def __init__(self, cluster):
        self.held = True
        cluster.partitions.cluster.lease_held = lambda: self.held


class World:
    """A broker with two topics, and what the clients want to read."""

    def __init__(self, cluster, draw, lease):
        self.cluster = cluster
        self.draw = draw
        self._lease = lease
        self.wanted = {"a": dict.fromkeys(range(WIDTH), 0), "b": dict.fromkeys(range(6), 0)}

    @property
    def lease(self):
        return self._lease.held

    def partition(self):
        topic = self.draw.choice(["a", "a", "b"])
        width = WIDTH if topic == "a" else 6
        return self.cluster.partitions.find(topic, self.draw.randrange(width))

    async def append(self):
        partition = self.partition()
        if partition is not None and self.lease:
            await partition.ensure_readable()
            await self.cluster.sent(partition, batch(size=self.draw.choice([10, 500])))

    async def truncate(self):
        partition = self.partition()
        if partition is not None and self.lease and partition.readable:
            await partition.truncate(partition.high_watermark)

    async def change_lease(self):
        self._lease.held = self.draw.random() < 0.6

    async def lose(self):
        """Another broker takes a partition and loses it again: it is opened anew here."""
        partition = self.partition()
        if partition is not None and self.lease:
            key = next(k for k, p in self.cluster.partitions._by_key.items() if p is partition)
            self.cluster.partitions.lost(key)
            await partition.wait_abandoned()

    async def recreate(self):
        if self.lease and self.cluster.catalog.by_name("b") is not None:
            await self.cluster.catalog.delete("b")
            if self.draw.random() < 0.7:
                await self.cluster.topic("b", partitions=6)

    async def ensure_b(self):
        if self.cluster.catalog.by_name("b") is None and self.lease:
            await self.cluster.topic("b", partitions=6)

    async def follow(self):
        """The clients go on after what they have read, or elsewhere."""
        named = [(topic, index) for topic, offsets in self.wanted.items() for index in offsets]
        for topic, index in named:
            found = self.cluster.partitions.find(topic, index)
            if found is not None and found.readable and self.draw.random() < 0.5:
                self.wanted[topic][index] = found.high_watermark

    async def seek(self):
        """The clients go back in one partition, without a new record in it."""
        offsets = self.wanted["a"]
        index = self.draw.choice([each for each, offset in offsets.items() if offset] or [0])
        offsets[index] = max(0, offsets.get(index, 0) - 2)

    async def want_differently(self):
        topic = self.draw.choice(["a", "b"])
        offsets = self.wanted[topic]
        index = self.draw.randrange(WIDTH if topic == "a" else 7)
        if index in offsets and len(offsets) > 1:
            del offsets[index]
        else:
            offsets[index] = self.draw.randrange(4)
        keys = list(offsets)
        turn = self.draw.randrange(len(keys))
        self.wanted[topic] = {key: offsets[key] for key in keys[turn:] + keys[:turn]}

    async def open_all(self):
        """Give partitions that open in the background time, so that all clients see the same."""
        for topic in self.wanted:
            known = self.cluster.catalog.by_name(topic)
            for index in range(known.partitions if known and self.lease else 0):
                found = self.cluster.partitions.find(topic, index)
                if found is not None:
                    await found.ensure_readable()


@pytest.mark.parametrize("version", [7, 12])
@pytest.mark.parametrize("seed", range(6))
async def test_what_is_kept_never_changes_an_answer(seed, version):
    draw = Random(seed)
    async with started_cluster() as cluster:
        lease = Lease(cluster)
        await cluster.topic("a", partitions=WIDTH)
        await cluster.topic("b", partitions=6)
        world = World(cluster, draw, lease)
        kept, session = connection(), SessionClient(connection())
        steps = (
            [world.append] * 4
            + [world.follow] * 3
            + [world.seek]
            + [world.truncate, world.change_lease]
        )
        steps += [world.lose, world.recreate, world.ensure_b, world.want_differently]
        for _ in range(40):
            await draw.choice(steps)()
            await world.open_all()
            fresh = rows(await ask(cluster, connection(), world.wanted, version))
            assert rows(await ask(cluster, kept, world.wanted, version)) == fresh
            seen = await session.ask(cluster, world.wanted, version)
            assert seen.keys() == fresh.keys()
            for key, row in fresh.items():
                assert seen[key] == row or (row[0] and seen[key][0] == row[0]), key
        held = cluster.context.fetch_sessions.partitions_held
        kept.fetches.close()
        assert cluster.context.fetch_sessions.partitions_held < held


def calls_of(work):
    """Return how many Python functions `work` calls, and its result."""
    count = 0

    def on_event(frame, event, arg):
        nonlocal count
        count += event == "call"

    sys.setprofile(on_event)
    try:
        result = work()
    finally:
        sys.setprofile(None)
    return count, result


async def costs(width, fields_of, version=17):
    """Return the calls of a fetch that waits, and of the append that completes it."""
    async with started_cluster() as cluster:
        await cluster.topic("t", partitions=width)
        partitions = [await cluster.partition("t", index) for index in range(width)]
        peer, offsets, found = connection(), dict.fromkeys(range(width), 0), []
        full = await ask(cluster, peer, {"t": offsets}, version, **fields_of(0, 0))
        for turn in range(1, 4):
            named = offsets if not full.session_id else {turn - 1: offsets[turn - 1]}
            fields = request(
                cluster,
                {"t": {index: (offset, {}) for index, offset in named.items()}},
                version,
                wait_ms=9000,
                **fields_of(full.session_id, turn),
            )
            frame = encode_request(FETCH, version, 7, "client", fields)
            asked, handle = cluster.dispatcher.open(frame, peer)
            calls, waiting = calls_of(partial(handle, asked, cluster.context))
            found.append(calls)
            assert not waiting.done()
            cluster.send(partitions[turn], batch())
            async with asyncio.timeout(5):
                reply = cluster.decoded(asked, await waiting)
            assert rows(reply)[next(key for key in rows(reply) if key[1] == turn)][3] > 0
            assert len(rows(reply)) == (1 if full.session_id else width)
            offsets[turn] = 2
        return found[1:]


@pytest.mark.parametrize(
    "fields_of",
    [
        lambda session_id, turn: {"session_id": session_id, "session_epoch": turn},
        lambda session_id, turn: {},
    ],
    ids=["session", "no session"],
)
async def test_the_cost_of_a_fetch_does_not_grow_with_what_rests(fields_of):
    few, many = await costs(40, fields_of), await costs(250, fields_of)
    assert max(many) <= max(few) + 20, (few, many)


async def test_an_append_to_one_partition_looks_at_no_other():
    """With a minimum that is never reached, each append is counted by itself."""
    async with started_cluster() as cluster:
        width = 100
        await cluster.topic("t", partitions=width)
        partitions = [await cluster.partition("t", index) for index in range(width)]
        offsets = dict.fromkeys(range(width), 0)
        fields = {"min_bytes": 1 << 20, "wait_ms": 20_000}
        waiting = asyncio.ensure_future(
            ask(cluster, connection(), {"t": offsets}, session_epoch=0, **fields)
        )
        await asyncio.sleep(0.1)
        found = []
        for index in range(0, width, 10):
            await cluster.sent(partitions[index], batch())
            found.append(calls_of(partitions[index]._notify)[0])
        assert max(found) <= min(found) + 5
        assert not waiting.done()
        reply = await waiting
        assert sum(row[3] > 0 for row in rows(reply).values()) == 10


async def resting(cluster, ask_all):
    """Let all partitions of a connection rest, but the first, which has more to read."""
    await cluster.topic("t", partitions=WIDTH)
    first = await cluster.partition("t", 0)
    await cluster.sent(first, *(batch(size=3000) for _ in range(3)))
    for index in range(WIDTH):
        await cluster.partition("t", index)
    assert len(rows(await ask_all())) == WIDTH


async def test_a_lease_that_ends_while_a_fetch_waits_refuses_what_rests():
    async with started_cluster() as cluster:
        lease = Lease(cluster)
        peer, offsets = connection(), {0: 6, **dict.fromkeys(range(1, WIDTH), 0)}
        await resting(cluster, lambda: ask(cluster, peer, {"t": offsets}))
        waiting = asyncio.ensure_future(ask(cluster, peer, {"t": offsets}, wait_ms=1000))
        await asyncio.sleep(0.1)
        lease.held = False
        refused = {row[0] for row in rows(await waiting).values()}
        assert refused == {ErrorCode.not_leader_or_follower}


async def test_a_lease_that_ends_while_a_fetch_reads_refuses_what_rests():
    async with started_cluster(limits=COLD) as cluster:
        lease = Lease(cluster)
        peer, offsets = connection(), dict.fromkeys(range(WIDTH), 0)
        await resting(cluster, lambda: ask(cluster, peer, {"t": offsets}))
        cluster.port.read_delay_s = 0.5
        reading = asyncio.ensure_future(ask(cluster, peer, {"t": {**offsets, 0: 2}}))
        await asyncio.sleep(0.1)
        assert not reading.done()
        lease.held = False
        refused = {row[0] for row in rows(await reading).values()}
        assert refused == {ErrorCode.not_leader_or_follower}


async def test_a_partition_that_changes_while_a_fetch_reads_is_in_the_answer():
    async with started_cluster(limits=COLD) as cluster:
        peer, offsets = connection(), dict.fromkeys(range(WIDTH), 0)
        await resting(cluster, lambda: ask(cluster, peer, {"t": offsets}))
        cluster.port.read_delay_s = 0.5
        reading = asyncio.ensure_future(ask(cluster, peer, {"t": {**offsets, 0: 2}}))
        await asyncio.sleep(0.1)
        await cluster.sent(await cluster.partition("t", 5), batch())
        assert not reading.done()
        found = rows(await reading)
        assert len(found) == WIDTH
        assert {row[0] for row in found.values()} == {OK}


async def test_one_connection_runs_one_fetch_at_a_time():
    async with started_cluster() as cluster:
        partition = await cluster.topic("t")
        peer = connection()
        first = asyncio.ensure_future(ask(cluster, peer, {"t": {0: 0}}, wait_ms=9000))
        second = asyncio.ensure_future(ask(cluster, peer, {"t": {0: 0}}, wait_ms=9000))
        await asyncio.sleep(1)
        await cluster.sent(partition, batch())
        await asyncio.sleep(0.01)
        assert first.done()
        assert second.done()
        third = asyncio.ensure_future(ask(cluster, peer, {"t": {0: 2}}, wait_ms=9000))
        fourth = asyncio.ensure_future(ask(cluster, peer, {"t": {0: 2}}, wait_ms=9000))
        await asyncio.sleep(0.01)
        third.cancel()
        await asyncio.sleep(0.01)
        await cluster.sent(partition, batch())
        assert rows(await fourth)


async def test_responses_that_name_many_partitions_are_paced():
    """Each waits for 10 us per partition after the last; the first one does not."""
    async with started_cluster() as cluster:
        await cluster.topic("t", partitions=WIDTH)
        partition = await cluster.partition("t", 0)
        await cluster.sent(partition, *(batch() for _ in range(3)))
        loop, peer, ended = asyncio.get_running_loop(), connection(), []
        began = loop.time()
        for _ in range(4):
            assert rows(await ask(cluster, peer, {"t": dict.fromkeys(range(WIDTH), 0)}))
            ended.append(loop.time() - began)
        pause_s = WIDTH * 10e-6
        assert ended == pytest.approx([0, pause_s, 2 * pause_s, 3 * pause_s], abs=1e-6)
        await asyncio.sleep(1)
        began = loop.time()
        assert rows(await ask(cluster, peer, {"t": dict.fromkeys(range(WIDTH), 0)}))
        assert loop.time() == began, "the last response was long ago"


async def test_a_connection_that_is_lost_during_its_pause_starts_nothing():
    async with started_cluster() as cluster:
        await cluster.topic("t", partitions=WIDTH)
        peer, wanted = connection(), {"t": dict.fromkeys(range(WIDTH), 0)}
        await ask(cluster, peer, wanted)
        waiting = asyncio.ensure_future(ask(cluster, peer, wanted))
        await asyncio.sleep(0)
        waiting.cancel()
        peer.fetches.close()
        await asyncio.sleep(1)
        assert cluster.context.fetch_sessions.partitions_held == 0


async def test_a_lost_connection_gives_back_what_it_kept():
    async with started_cluster() as cluster:
        await cluster.topic("t", partitions=WIDTH)
        peer = connection()
        await ask(cluster, peer, {"t": dict.fromkeys(range(WIDTH), 0)})
        assert cluster.context.fetch_sessions.partitions_held == WIDTH
        partition = await cluster.partition("t", 3)
        assert partition._waiters
        peer.fetches.close()
        assert cluster.context.fetch_sessions.partitions_held == 0
        assert not partition._waiters


async def test_a_topic_without_partitions_is_kept_from_nothing():
    async with started_cluster() as cluster:
        await cluster.topic("t", partitions=WIDTH)
        wanted = {"empty": {}, "t": dict.fromkeys(range(WIDTH), 0)}
        peer = connection()
        for _ in range(2):
            assert len(rows(await ask(cluster, peer, wanted, 11))) == WIDTH


@pytest.mark.parametrize("epoch", [0, -1])
async def test_partitions_that_do_not_exist_are_not_kept(epoch):
    async with started_cluster() as cluster:
        await cluster.topic("t", partitions=1)
        reply = await ask(
            cluster, connection(), {"t": dict.fromkeys(range(500), 0)}, session_epoch=epoch
        )
        assert reply.session_id == 0
        assert len(rows(reply)) == 500
        assert cluster.context.fetch_sessions.partitions_held == 0


async def test_the_partitions_of_all_sessions_are_bounded():
    async with started_cluster() as cluster:
        await cluster.topic("t", partitions=WIDTH)
        ids = iter(range(1, 100))
        sessions = FetchSessions(10, 120_000, lambda: next(ids), partitions_max=WIDTH + 10)
        cluster.context.fetch_sessions = sessions
        wanted = {"t": dict.fromkeys(range(WIDTH), 0)}
        first, second = connection(), connection()
        assert (await ask(cluster, first, wanted, session_epoch=0)).session_id == 1
        assert (await ask(cluster, second, wanted, session_epoch=0)).session_id == 0
        assert len(rows(await ask(cluster, second, wanted))) == WIDTH
        assert len(rows(await ask(cluster, second, wanted))) == WIDTH
        assert sessions.partitions_held == WIDTH


async def test_a_request_of_very_many_partitions_yields_to_others():
    async with started_cluster() as cluster:
        await cluster.topic("t", partitions=1)
        wanted = {"nosuch": dict.fromkeys(range(20_000), 0)}
        asking = ask(cluster, connection(), wanted, 7, session_epoch=0)
        reply, turns = await turns_during(asking)
        assert len(rows(reply)) == 20_000
        assert turns >= 20_000 / 250


async def test_forgotten_partitions_of_a_client_without_a_session_are_those_it_does_not_name():
    async with started_cluster() as cluster:
        await cluster.topic("t", partitions=WIDTH)
        peer, offsets = connection(), dict.fromkeys(range(WIDTH), 0)
        forgotten = [{"topic": "t", "partitions": [0]}]
        asked = {"forgotten_topics_data": forgotten}
        assert len(rows(await ask(cluster, peer, {"t": offsets}, 7, **asked))) == WIDTH
        del offsets[0]
        assert len(rows(await ask(cluster, peer, {"t": offsets}, 7, **asked))) == WIDTH - 1
        assert cluster.context.fetch_sessions.partitions_held == WIDTH - 1


async def test_a_negative_size_of_a_partition_takes_no_negative_memory():
    async with started_cluster(limits=COLD) as cluster:
        partition = await cluster.topic("t", partitions=3)
        await cluster.sent(partition, batch(size=500))
        asked = {"t": {index: (0, {"partition_max_bytes": -(2**31)}) for index in range(3)}}
        cluster.port.read_delay_s = 0.1
        reading = asyncio.ensure_future(answer(cluster, connection(), request(cluster, asked), 18))
        await asyncio.sleep(0.05)
        assert cluster.context.reply_memory.used_bytes >= 0
        assert [row[3] > 0 for row in rows(await reading).values()] == [True, False, False]
        assert cluster.context.reply_memory.used_bytes >= 0


@pytest.mark.parametrize("by", ["deadline", "append"])
async def test_a_fetch_whose_answer_cannot_be_encoded_ends_and_stops_no_other(by):
    async with started_cluster() as cluster:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        partition = await cluster.topic("t")
        peer, wanted = connection(), {"t": {0: 0}}
        broken = asyncio.ensure_future(ask(cluster, peer, wanted, wait_ms=500))
        await asyncio.sleep(0.1)
        [waiter] = partition._waiters
        waiter.topic = object()  # no topic that can be encoded
        other = asyncio.ensure_future(ask(cluster, connection(), wanted, wait_ms=600))
        await asyncio.sleep(0.1)
        if by == "append":
            await cluster.sent(partition, batch())
        with pytest.raises((AttributeError, TypeError)):
            await broken
        [row] = rows(await other).values()
        assert (row[3] > 0) is (by == "append")
        assert len(rows(await ask(cluster, peer, wanted))) == 1


async def test_a_fetch_that_waits_keeps_no_memory_of_replies():
    async with started_cluster(limits=COLD) as cluster:
        partition = await cluster.topic("t")
        await cluster.sent(partition, batch(size=100_000))
        memory = cluster.context.reply_memory
        waiting = asyncio.ensure_future(
            ask(cluster, connection(), {"t": {0: 0}}, wait_ms=9_000, min_bytes=150_000)
        )
        await asyncio.sleep(1)
        assert not waiting.done()
        assert memory.used_bytes == 0
        await cluster.sent(partition, batch(size=100_000))
        [row] = rows(await waiting).values()
        assert row[3] > 200_000


async def test_records_that_arrive_while_many_partitions_are_read_complete_the_fetch():
    width = 1_010
    async with started_cluster(limits=COLD) as cluster:
        await cluster.topic("t", partitions=width)
        for index in range(width):
            await cluster.partition("t", index)
        await cluster.sent(await cluster.partition("t", 7), batch(size=100))
        cluster.port.read_delay_s = 0.5
        wanted = {"t": dict.fromkeys(range(width), 0)}
        loop = asyncio.get_running_loop()
        began = loop.time()
        waiting = asyncio.ensure_future(
            ask(cluster, connection(), wanted, wait_ms=20_000, min_bytes=1000, session_epoch=0)
        )
        await asyncio.sleep(0.2)
        await cluster.sent(await cluster.partition("t", 0), batch(size=5000))
        assert not waiting.done()
        await waiting
        assert loop.time() - began < 5
