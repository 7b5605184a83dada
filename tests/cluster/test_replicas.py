"""Goal: any gateway, and any process with ledger readers, reads what another gateway writes: all of
it, once, while its writer is killed and segments roll; nobody falls back.

Method: three gateways on racks of their own, three bookies and ZooKeeper as processes; idempotent
producers that know every acknowledgement; librdkafka consumers with `client.rack`, whose statistics
tell which gateway they fetch from; and followers in this process, over gRPC and ZooKeeper.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from itertools import pairwise

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from gateway.wire import batches
from ledger.adapters.system.clock import SystemClock
from ledger.errors import LedgerError
from ledger.streams.follower import FollowedStream
from ledger.streams.segment_store import list_streams
from ledger.streams.stream import StreamServices
from tests.cluster.client import Session
from tests.cluster.ownership_rig import OwnershipRig
from tests.cluster.test_gateway import make_topic
from tests.cluster.test_gateways import STALL_S, TRIES
from tests.crash.load import Load, judge, read_all
from tests.histories.background import Background
from tests.peers.processes import wait_until
from tests.peers.stalls import Stalls

pytestmark = pytest.mark.alone

TOPIC, PARTITIONS, MORE = "followed", 2, 3_000
LOCAL = 40  # fetches
NEAR = 0.9  # of the fetches of a consumer go to the gateway of its rack


class Nearby:
    """A consumer of one rack, assigned everything from the start."""

    def __init__(self, bootstrap, rack):
        self.fetches = Counter()  # by node id
        self.found = {partition: [] for partition in range(PARTITIONS)}
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": f"near {rack}",
            "client.rack": rack,
            "enable.auto.commit": False,
            "statistics.interval.ms": 200,
            "stats_cb": self._on_statistics,
            "fetch.wait.max.ms": 100,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
            "log_level": 0,
        }
        self._consumer = Consumer(settings)
        self._consumer.assign(
            [TopicPartition(TOPIC, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)]
        )

    def _on_statistics(self, text):
        for broker in json.loads(text)["brokers"].values():
            if broker["nodeid"] >= 0:
                self.fetches[broker["nodeid"]] = broker["req"].get("Fetch", 0)

    def poll(self, seconds=0.2):
        for message in self._consumer.consume(1000, seconds):
            if message.error() is None:
                value = message.value().rstrip(b".")
                self.found[message.partition()].append((message.offset(), value))

    def read_until(self, ends):
        """Everything below `ends` is read."""

        def there():
            self.poll()
            return all(
                self.found[p] and self.found[p][-1][0] >= end - 1 for p, end in ends.items() if end
            )

        wait_until(there, "a consumer of a rack to read all", 60.0)

    def close(self):
        self._consumer.close()


class Stage:
    def __init__(self, directory):
        self.background = Background()
        self.rig = OwnershipRig(directory, self.background)

    def __enter__(self):
        self.background.start()
        try:
            self.rig.start()
            self.bootstrap = self.rig.gateways.bootstrap
            make_topic(self.bootstrap, TOPIC)
            self.told = []  # of producers that have ended
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.rig.stop()
        self.background.stop()

    def load(self):
        return Load(self.bootstrap, TOPIC, f"load {len(self.told)}", pause_s=0.02)

    def end(self, load):
        """One past the last acknowledged offset ever, by partition."""
        self.told.append(load.end())
        return ends_of(*self.told)


def ends_of(*told):
    """One past the last offset that was acknowledged to one of them, by partition."""
    found = dict.fromkeys(range(PARTITIONS), 0)
    for one in told:
        for partition, offset in list(one.offsets.values()):
            found[partition] = max(found[partition], offset + 1)
    return found


def more(load):
    wanted = len(load.told.offsets) + MORE
    wait_until(lambda: len(load.told.offsets) >= wanted, "acknowledgements", 60.0)


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    with Stage(tmp_path_factory.mktemp("replicas")) as started:
        yield started


class Watched:
    """A follower of one partition in this process, and what it ever showed."""

    def __init__(self, session, name):
        services = StreamServices(session.metadata, session.client, SystemClock())
        self.stream = FollowedStream(name, services, batches.timestamp_max, lambda end: None)
        self.batches = []  # (first, end, epoch)
        self.shown = [(0, 0, -1)]  # start, end, epoch

    async def read_on(self):
        """Everything that there is now; offsets follow each other."""
        stream = self.stream
        await stream.open()
        at = self.batches[-1][1] if self.batches else stream.start_sequence_id
        while at < stream.end_sequence_id:
            records = stream.read_cached(at, 1 << 20) or await stream.read(at, 1 << 20)
            for record in records:
                assert record.sequence_id == at, (record.sequence_id, at)
                base = batches.read_header(memoryview(b"".join(record.data))).base_offset
                assert base == at
                at = record.end_sequence_id
                self.batches.append((record.sequence_id, at, stream.epoch_at(record.sequence_id)))
        self.shown.append((stream.start_sequence_id, stream.end_sequence_id, stream.epoch))

    async def read_to(self, partition, until):
        while (ends := until()) is None or self.stream.end_sequence_id < ends[partition]:
            with contextlib.suppress(LedgerError):
                await self.read_on()
            await asyncio.sleep(0.02)
        await self.read_on()
        await self.stream.close()


async def follow(zookeeper, until):
    """What followers of all streams showed, read at the tail until `until` tells an end."""
    async with Session(zookeeper) as session:
        names = await list_streams(session.metadata)
        followers = {int(name.rpartition("-")[2]): Watched(session, name) for name in names}
        await asyncio.gather(*(one.read_to(n, until) for n, one in followers.items()))
        return followers


def settle(consumers):
    """Each consumer has fetched `LOCAL` times in a row from the gateway of its rack."""
    since = [Counter() for _ in consumers]

    def settled():
        done = True
        for node, consumer in enumerate(consumers):
            consumer.poll(0.05)
            now, before = consumer.fetches, since[node]
            if now.total() - now[node] != before.total() - before[node]:
                since[node] = Counter(now)
            done = done and now[node] - since[node][node] >= LOCAL
        return done

    wait_until(settled, "consumers to fetch from their racks", 120.0)


def fetched(stage, load, consumers):
    """Return each consumer's share of fetches from its rack while more is written, and whether
    all was calm. A gateway that stands still ends connections; then consumers turn to leaders.
    """
    settle(consumers)
    topology, since = stage.rig.topology(TOPIC), [Counter(one.fetches) for one in consumers]
    with Stalls() as stalls:
        more(load)
        ends = ends_of(load.told)
        for consumer in consumers:
            consumer.read_until(ends)
    later = [one.fetches - before for one, before in zip(consumers, since, strict=True)]
    disturbed = stalls.longest_s >= STALL_S or stage.rig.gateways.stood_still()
    calm = not disturbed and topology == stage.rig.topology(TOPIC)
    return [counts[node] / counts.total() for node, counts in enumerate(later)], calm


def test_consumers_of_a_rack_read_everything_from_its_gateway(stage):
    consumers = [Nearby(stage.bootstrap, f"r{number}") for number in (1, 2, 3)]
    load = stage.load()
    try:
        more(load)
        for _ in range(TRIES):
            shares, calm = fetched(stage, load, consumers)
            if calm or min(shares) >= NEAR:
                break
        assert min(shares) >= NEAR, shares
        ends = stage.end(load)
        for consumer in consumers:
            consumer.read_until(ends)
            for partition, found in consumer.found.items():
                assert [offset for offset, _ in found] == list(range(len(found))), partition
    finally:
        for consumer in consumers:
            consumer.close()


def test_a_follower_and_a_rack_see_one_log_while_writers_die_and_sessions_end(stage):
    consumer = Nearby(stage.bootstrap, "r1")
    load = stage.load()
    done = []
    following = follow(stage.rig.world.zookeeper.servers, lambda: done[0] if done else None)
    try:
        task = asyncio.run_coroutine_threadsafe(following, stage.background._loop)
        for gateway in list(stage.rig.gateways)[1:]:
            stage.rig.kill(gateway, machine=gateway.node_id == 1)  # whose session has to expire
            more(load)
            gateway.start()
            consumer.poll()
            more(load)
        stage.rig.expire(stage.rig.gateways[0], TOPIC)
        more(load)
        ends = stage.end(load)
        done.append(ends)
        consumer.read_until(ends)
        followers = task.result(280)
    finally:
        consumer.close()
    log = read_all(stage.bootstrap, TOPIC, PARTITIONS)
    assert judge(log, stage.told) > MORE
    for partition, end in ends.items():
        found = consumer.found[partition]
        assert found == log[partition][: len(found)]
        judge_follower(followers[partition], end)


def judge_follower(watched, end):
    """It showed everything, and what it showed never fell."""
    assert watched.batches[0][0] == 0 and watched.batches[-1][1] >= end
    epochs = [epoch for _, _, epoch in watched.batches]
    assert epochs == sorted(epochs) and epochs[0] >= 0
    for before, after in pairwise(watched.shown):
        assert all(x <= y for x, y in zip(before, after, strict=True))
