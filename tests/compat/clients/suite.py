"""What every stock client must be able to do, asked of each of them in the same words.

Subclasses name the client. A test class gets one connection to the broker under test and, for the
differential tests, one to Apache Kafka.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from tests.compat.clients.base import (
    Client,
    Member,
    Producer,
    ProducerOptions,
    Rebalancing,
    Record,
    Stored,
    TooLarge,
    TopicExists,
)
from tests.compat.clients.with_aiokafka import Aiokafka, AiokafkaProducer
from tests.compat.conftest import new_broker
from tests.compat.stored import stored_batches
from tests.peers.broker import Broker
from tests.peers.processes import wait_until

Unused = Callable[[], str]
# Recent: Apache Kafka deletes records older than their topic's retention, by their own times.
START_MS = int(time.time()) * 1000 - 3_600_000
MAX_MESSAGE_BYTES = 1_048_588  # Kafka's default
ONE_RECORD_BATCH_BYTES = 61 + 11  # batch header, and what surrounds one keyless value of 1 MB


def numbered(count: int, first: int = 0) -> list[Record]:
    """Distinct records, one millisecond apart."""
    return [
        Record(b"key %d" % n, b"value %d" % n, (), START_MS + n)
        for n in range(first, first + count)
    ]


def assorted(client: Client) -> list[Record]:
    """Keys, values and headers present, empty, null, binary, repeated; times out of order."""
    null = b"" if "null header" in client.cannot_send else None
    headers = (("name", b"\x00\xff"), ("name", b""), ("empty", null), ("h\u00e9", b"x"))
    contents = [
        (b"key", b"value", headers),
        (None, b"no key", ()),
        (b"no value", None, (("only", b"headers"),)),
        (None, None, ()),
        (b"", b"", ()),
        (bytes(range(256)), bytes(range(256)) * 20, ()),
    ]
    if "nothing" in client.cannot_send:
        contents[3] = (b"again", None, ())
    return [
        Record(key, value, given, START_MS + offset * 7 % 5)
        for offset, (key, value, given) in enumerate(contents * 3)
    ]


def stored(records: Sequence[Record], first: int = 0, partition: int = 0) -> list[Stored]:
    return [Stored(partition, first + n, record) for n, record in enumerate(records)]


@contextlib.contextmanager
def producing(client: Client, **options: object) -> Iterator[Producer]:
    producer = client.producer(ProducerOptions(**options))
    try:
        yield producer
    finally:
        producer.close()


def produce(client: Client, topic: str, records: Sequence[Record], **options: object) -> list[int]:
    with producing(client, **options) as producer:
        producer.send(topic, records)
        return producer.wait()


def load_batches(client: Aiokafka, topic: str, batches: Sequence[Sequence[Record]]) -> None:
    """Store exactly these batches in partition 0."""
    producer = AiokafkaProducer(client, ProducerOptions(codec="gzip"))
    try:
        for batch in batches:
            producer.send_batch(topic, batch)
            producer.wait()
    finally:
        producer.close()


def random_batches(chance: random.Random) -> list[list[Record]]:
    """Batches of 1 to 9 records, times rising on the whole, going back and forth, some equal."""
    batches = []
    for number in range(25):
        middle = START_MS + 80 * number + chance.randrange(150)
        times = [middle + chance.randrange(-60, 60) for _ in range(chance.randrange(1, 10))]
        batches.append([Record(b"k", b"v %d" % at_ms, (), at_ms) for at_ms in times])
    return batches


def settle(members: Sequence[Member], partitions: int, found: list[Stored]) -> None:
    """Poll all members until together they hold each partition once, and none holds nothing."""

    def shared() -> bool:
        for member in members:
            found.extend(member.poll())
        held = [partition for member in members for partition in member.assignment()]
        nobody_idle = all(member.assignment() for member in members)
        return nobody_idle and sorted(held) == list(range(partitions))

    wait_until(shared, f"{len(members)} members to share {partitions} partitions", 60.0)


def poll_until(members: Sequence[Member], count: int, found: list[Stored]) -> None:
    """Poll until `count` different records were found: a rebalance may deliver some twice."""

    def enough() -> bool:
        for member in members:
            found.extend(member.poll())
        return len(set(found)) >= count

    wait_until(enough, f"{count} records polled", 60.0)


def commit(members: Sequence[Member], found: list[Stored]) -> None:
    """Commit all members' positions, polling them through a rebalance that is under way."""

    def committed() -> bool:
        for member in members:
            found.extend(member.poll())
        try:
            for member in members:
                member.commit()
        except Rebalancing:
            return False
        return True

    wait_until(committed, f"{len(members)} members to commit", 60.0)


class ClientSuite:
    """Subclassed once per client."""

    connect: ClassVar[Callable[[str], Client]]
    codecs: ClassVar[tuple[str, ...]]

    # Topics

    def test_a_created_topic_is_listed_described_and_then_deleted(
        self, client: Client, unused: Unused
    ):
        topic = unused()
        client.create_topic(topic, 5, {"retention.ms": "123456789"})
        assert topic in client.topics()
        assert client.partitions(topic) == 5
        assert client.config(topic, "retention.ms") == "123456789"
        client.delete_topic(topic)
        wait_until(lambda: topic not in client.topics(), f"{topic} to be gone")

    def test_a_topic_is_created_only_once(self, client: Client, unused: Unused):
        topic = unused()
        client.create_topic(topic)
        with pytest.raises(TopicExists):
            client.create_topic(topic)

    def test_a_recreated_topic_begins_empty_at_offset_zero(self, client: Client, unused: Unused):
        topic = unused()
        client.create_topic(topic)
        produce(client, topic, numbered(3))
        client.delete_topic(topic)
        wait_until(lambda: topic not in client.topics(), f"{topic} to be gone")
        client.create_topic(topic)
        wait_until(lambda: client.bounds(topic) == (0, 0), f"{topic} to be empty")
        assert produce(client, topic, numbered(2, first=50)) == [0, 1]
        assert client.read(topic, 0, 2) == stored(numbered(2, first=50))

    # Records

    def test_every_byte_comes_back_with_its_offset_under_each_codec(
        self, client: Client, broker: Broker, unused: Unused
    ):
        for codec in (None, *self.codecs):
            topic = unused()
            client.create_topic(topic)
            # A batch of one small record may be sent as it is: it would not shrink. There may be
            # one, whatever the linger, if this process stands still between two records.
            offsets = produce(client, topic, assorted(client), codec=codec, linger_ms=500)
            assert offsets == list(range(18)), codec
            assert client.read(topic, 0, 18) == stored(assorted(client)), codec
            batches = stored_batches(broker.port, topic)
            assert {batch.codec for batch in batches if batch.records > 1} == {codec or "none"}
            assert {batch.codec for batch in batches} <= {codec or "none", "none"}
            assert sum(batch.records for batch in batches) == 18

    @pytest.mark.parametrize("acks", ["1", "all"])
    def test_acknowledged_records_have_their_offsets(
        self, client: Client, unused: Unused, acks: str
    ):
        topic = unused()
        client.create_topic(topic)
        assert produce(client, topic, numbered(50), acks=acks) == list(range(50))
        assert client.read(topic, 0, 50) == stored(numbered(50))

    def test_records_sent_without_acknowledgement_arrive(self, client: Client, unused: Unused):
        topic = unused()
        client.create_topic(topic)
        produce(client, topic, numbered(50), acks="0")
        assert client.read(topic, 0, 50) == stored(numbered(50))

    def test_an_idempotent_producer_writes_each_record_once_and_in_order(
        self, client: Client, unused: Unused
    ):
        topic = unused()
        client.create_topic(topic)
        with producing(client, idempotent=True, linger_ms=0) as producer:
            for first in range(0, 300, 3):
                producer.send(topic, numbered(3, first))
            assert producer.wait() == list(range(300))
        assert client.read(topic, 0, 300) == stored(numbered(300))

    def test_the_largest_message_passes_and_one_byte_more_is_refused(
        self, client: Client, unused: Unused
    ):
        topic = unused()
        client.create_topic(topic)
        room = MAX_MESSAGE_BYTES - ONE_RECORD_BATCH_BYTES
        largest = [Record(None, random.Random(1).randbytes(room), (), START_MS)]
        options = {"request_bytes_max": 4 * 1024 * 1024, "linger_ms": 0}
        assert produce(client, topic, largest, **options) == [0]
        with pytest.raises(TooLarge):
            produce(client, topic, [Record(None, bytes(room + 1), (), START_MS)], **options)
        assert client.read(topic, 0, 1) == stored(largest)
        assert client.bounds(topic) == (0, 1)

    # Positions

    def test_a_read_inside_a_batch_begins_with_the_record_asked_for(
        self, client: Client, broker: Broker, loader: Aiokafka, unused: Unused
    ):
        topic = unused()
        client.create_topic(topic)
        records = numbered(60)
        load_batches(loader, topic, [records[:20], records[20:40], records[40:]])
        batches = stored_batches(broker.port, topic)
        assert [batch[:2] for batch in batches] == [(0, 20), (20, 20), (40, 20)]
        for offset in (0, 1, 19, 20, 33, 59):
            assert client.read(topic, offset, 60 - offset) == stored(records)[offset:]

    def test_times_and_bounds_are_answered_as_apache_kafka_answers_them(
        self,
        client: Client,
        loader: Aiokafka,
        on_oracle: Client,
        oracle_loader: Aiokafka,
        unused: Unused,
    ):
        chance = random.Random(random.randrange(2**32))
        topic = unused()
        batches = random_batches(chance)
        for asked, producer in ((client, loader), (on_oracle, oracle_loader)):
            asked.create_topic(topic)
            load_batches(producer, topic, batches)
        times = [record.timestamp_ms for batch in batches for record in batch]
        edges = [0, min(times) - 1, min(times), max(times), max(times) + 1]
        near = [time + chance.choice((-1, 0, 1)) for time in chance.sample(times, 25)]
        for asked_ms in edges + near:
            first = next((offset for offset, at in enumerate(times) if at >= asked_ms), None)
            answer = client.first_at(topic, asked_ms)
            assert answer == on_oracle.first_at(topic, asked_ms), asked_ms
            assert (answer and answer.offset) == first, asked_ms
            assert answer is None or answer.timestamp_ms in (None, times[first]), asked_ms
        assert client.bounds(topic) == on_oracle.bounds(topic) == (0, len(times))

    # Groups

    def test_two_members_share_a_topic_and_the_one_left_takes_all(
        self, client: Client, unused: Unused
    ):
        topic, group = unused(), unused()
        client.create_topic(topic, 6)
        with producing(client) as producer:
            for partition in range(6):
                producer.send(topic, numbered(10, first=10 * partition), partition)
            producer.wait()
        first = client.member(group, topic)
        found: list[Stored] = []
        settle([first], 6, found)
        poll_until([first], 60, found)
        commit([first], found)
        second = client.member(group, topic)
        settle([first, second], 6, found)
        with producing(client) as producer:
            for partition in range(6):
                producer.send(topic, numbered(5, first=100 + 5 * partition), partition)
            producer.wait()
        poll_until([first, second], 90, found)

        def rejoined() -> bool:
            """Return whether a member joined again meanwhile, and so may have committed less."""
            before = first.rebalances + second.rebalances
            commit([first, second], found)
            return first.rebalances + second.rebalances > before

        wait_until(lambda: not rejoined(), "commits without a rebalance", 60.0)
        assert client.committed(group, topic, 6) == [15] * 6
        second.close()
        settle([first], 6, found)
        first.close()
        expected = [
            one
            for partition in range(6)
            for one in stored(numbered(10, first=10 * partition), 0, partition)
            + stored(numbered(5, first=100 + 5 * partition), 10, partition)
        ]
        assert sorted(set(found), key=lambda one: one[:2]) == expected
        assert client.committed(group, topic, 6) == [15] * 6

    def test_a_group_resumes_where_it_committed(self, client: Client, unused: Unused):
        topic, group = unused(), unused()
        client.create_topic(topic)
        produce(client, topic, numbered(40))
        for expected in (numbered(40), numbered(7, first=40)):
            found: list[Stored] = []
            member = client.member(group, topic)
            poll_until([member], len(expected), found)
            commit([member], found)
            member.close()
            assert [one.record for one in found] == expected
            produce(client, topic, numbered(7, first=40))

    def test_a_new_group_may_begin_at_the_end(self, client: Client, unused: Unused):
        topic, group = unused(), unused()
        client.create_topic(topic)
        produce(client, topic, numbered(10))
        member = client.member(group, topic, reset="latest")
        found: list[Stored] = []
        settle([member], 1, found)
        sent = numbered(10)
        while not found:  # what is sent before it has found the end, it does not see
            sent += numbered(1, first=len(sent))
            produce(client, topic, sent[-1:])
            found.extend(member.poll())
        member.close()
        assert found[0].offset >= 10
        assert found == stored(sent)[found[0].offset :][: len(found)]

    def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance(
        self, client: Client, unused: Unused
    ):
        topic, group = unused(), unused()
        client.create_topic(topic, 4)
        stays = client.member(group, topic, instance="stays")
        returns = client.member(group, topic, instance="returns")
        settle([stays, returns], 4, [])

        def comes_back_quietly() -> bool:
            nonlocal returns
            held, rebalances = returns.assignment(), stays.rebalances
            returns.close()
            returns = client.member(group, topic, instance="returns")
            settle([stays, returns], 4, [])
            return returns.assignment() == held and stays.rebalances == rebalances

        # A client may rejoin by itself once more after its first join: that is not our question.
        assert any(comes_back_quietly() for _ in range(3))
        returns.close()
        stays.close()

    # Failure and the other modes

    def test_one_producer_goes_on_over_kill_9_and_restart(self, tmp_path: Path, unused: Unused):
        topic = unused()
        with new_broker(tmp_path / "data") as broker:
            client = self.connect(broker.bootstrap)
            client.create_topic(topic)
            with producing(client, idempotent=True, linger_ms=0) as producer:
                producer.send(topic, numbered(100))
                assert producer.wait() == list(range(100))
                broker.kill()
                broker.start()
                producer.send(topic, numbered(100, first=100))
                assert producer.wait() == list(range(100, 200))
            assert client.read(topic, 0, 200) == stored(numbered(200))
            client.close()

    def test_the_other_modes_keep_every_byte_too(self, other_mode: Broker, unused: Unused):
        topic, group = unused(), unused()
        client = self.connect(other_mode.bootstrap)
        client.create_topic(topic)
        assert produce(client, topic, assorted(client), idempotent=True) == list(range(18))
        assert client.read(topic, 5, 13) == stored(assorted(client))[5:]
        member = client.member(group, topic)
        found: list[Stored] = []
        poll_until([member], 18, found)
        commit([member], found)
        member.close()
        client.close()
        assert found == stored(assorted(client))
