"""Goal: a partition is written once, in order, despite deaths, repeats and late batches.

Method: the writer of a task alone, without Spark, against a real gateway (and once against Apache
Kafka: it is plain protocol), with rows made here; librdkafka reads the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from gateway.pipelines.replays.encode import Encoder, RecordRows
from gateway.pipelines.replays.plan import PartitionPlan, ReplayPlan, Selection
from gateway.pipelines.replays.target import describe_target, new_producer_id
from gateway.pipelines.replays.writer import PartitionWriter, WriterLimits
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.topics import Topics
from tests.peers.broker import Broker
from tests.peers.gateway import Gateway
from tests.peers.kafka import ApacheKafka

COUNT = 3_000
BATCH_BYTES = 2_000
"""Small, so that many batches are under way."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("replay") / "data") as started:
        yield started


@pytest.fixture(scope="module")
def topic(gateway: Gateway) -> Callable[[], str]:
    numbers = iter(range(1_000_000))

    def new() -> str:
        return new_topic(gateway, f"target-{next(numbers)}")

    return new


def new_topic(broker: Broker, name: str) -> str:
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    client.create_topics([NewTopic(name, 1)])[name].result(60)
    return name


def plan_for(broker: Broker, target: str, count: int = COUNT) -> ReplayPlan:
    found = describe_target(Topics(broker.bootstrap), broker.bootstrap, target)
    producer = new_producer_id(broker.bootstrap)
    return ReplayPlan(
        asked="",
        selection=Selection("source", ()),
        target=target,
        topic_id=found.topic_id,
        producer_id=producer.number,
        producer_epoch=producer.epoch,
        record_bytes_max=100,
        partitions=(PartitionPlan(0, found.ends[0], count, 0, count - 1),),
    )


def writer(
    plan: ReplayPlan, broker: Broker, batch_bytes: int = BATCH_BYTES, stall_s_max: float = 30.0
) -> PartitionWriter:
    encoder = Encoder(plan.producer_id, plan.producer_epoch, 0, batch_bytes)
    limits = WriterLimits(stall_s_max, 5.0)
    return PartitionWriter(plan, plan.partitions[0], broker.bootstrap, encoder, limits)


def value(number: int) -> bytes:
    return b"%d" % number


def records(first: int = 0, end: int = COUNT, step: int = 100) -> Iterator[RecordRows]:
    for start in range(first, end, step):
        numbers = range(start, min(end, start + step))
        values: list[bytes | None] = [value(number) for number in numbers]
        yield RecordRows(start, [1_000 + n for n in numbers], [None] * len(numbers), values, None)


def read(broker: Broker, topic: str) -> list[bytes]:
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "judge"}
    consumer = Consumer({**settings, "enable.auto.commit": False, "enable.partition.eof": True})
    place = TopicPartition(topic, 0, 0)
    consumer.assign([place])
    _, end = consumer.get_watermark_offsets(place, timeout=60)
    found: list[bytes] = []
    while len(found) < end:
        found += [one.value() for one in consumer.consume(1_000, 1.0) if not one.error()]
    consumer.close()
    return found


def expected(count: int = COUNT) -> list[bytes]:
    return [value(number) for number in range(count)]


class Stopped(Exception):
    """Simulates the death of the writing process."""


def stopping(source: Iterable[RecordRows], after: int) -> Iterator[RecordRows]:
    for rows in source:
        if rows.first >= after:
            raise Stopped
        yield rows


def test_written_records_are_in_the_topic_once_and_in_order(
    gateway: Gateway, topic: Callable[[], str]
):
    plan = plan_for(gateway, topic())
    done = writer(plan, gateway)
    done.write(records())
    done.close()
    assert read(gateway, plan.target) == expected()
    assert (done.written, done.looks) == (COUNT, 1)


@pytest.mark.proof
def test_it_is_plain_protocol(tmp_path: Path):
    with ApacheKafka(tmp_path / "kafka") as kafka:
        plan = plan_for(kafka, new_topic(kafka, "target"))
        first = writer(plan, kafka)
        with pytest.raises(Stopped):
            first.write(stopping(records(), 1_000))
        first.close()
        writer(plan, kafka).write(records())
        assert read(kafka, plan.target) == expected()


def test_the_next_writer_continues_where_the_last_one_died(
    gateway: Gateway, topic: Callable[[], str]
):
    plan = plan_for(gateway, topic())
    for after in (1, 700, 1_900):
        with pytest.raises(Stopped):
            writer(plan, gateway).write(stopping(records(), after))
    there = len(read(gateway, plan.target))
    last = writer(plan, gateway)
    last.write(records(last.find_next_record()))
    assert last.started_at is not None and last.started_at >= there > 0
    assert read(gateway, plan.target) == expected()


def test_two_concurrent_writers_write_each_record_once(gateway: Gateway, topic: Callable[[], str]):
    plan = plan_for(gateway, topic())
    zombie = writer(plan, gateway, batch_bytes=700)

    def interleaved() -> Iterator[RecordRows]:
        """While one waits for its next rows, the other has written some as well."""
        for rows in records():
            yield rows
            if rows.first % 300 == 0:
                other = writer(plan, gateway, batch_bytes=1_100)
                with pytest.raises(Stopped):
                    other.write(stopping(records(), min(rows.first + 250, 2_900)))
                other.close()

    zombie.write(interleaved())
    assert zombie.looks > 1
    assert read(gateway, plan.target) == expected()


def test_the_writer_waits_for_a_killed_gateway(gateway: Gateway, topic: Callable[[], str]):
    plan = plan_for(gateway, topic())

    def harmed() -> Iterator[RecordRows]:
        for rows in records():
            yield rows
            if rows.first in (0, 900, 2_900):
                gateway.restart(kill=True)

    done = writer(plan, gateway)
    done.write(harmed())
    assert done.looks > 1
    assert read(gateway, plan.target) == expected()


def test_it_gives_up_without_progress(gateway: Gateway, topic: Callable[[], str]):
    plan = plan_for(gateway, topic())

    def harmed() -> Iterator[RecordRows]:
        for rows in records():
            if rows.first == 1_000:
                gateway.kill()
            yield rows

    try:
        with pytest.raises(JobError, match="run the same command again") as failed:
            writer(plan, gateway, stall_s_max=0.3).write(harmed())
        assert failed.value.code == "UNREACHABLE"
    finally:
        gateway.start()
    writer(plan, gateway).write(records())
    assert read(gateway, plan.target) == expected()


def produce(broker: Broker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, b"foreign", partition=0)
    assert producer.flush(60) == 0


@pytest.mark.parametrize("at", [0, 1_000, 2_900])
def test_another_producer_in_the_target_is_noticed(
    gateway: Gateway, topic: Callable[[], str], at: int
):
    plan = plan_for(gateway, topic())

    def disturbed() -> Iterator[RecordRows]:
        for rows in records():
            if rows.first == at:
                produce(gateway, plan.target)
            yield rows

    with pytest.raises(JobError, match="another producer"):
        writer(plan, gateway).write(disturbed())
    with pytest.raises(JobError, match="another producer"):
        writer(plan, gateway).find_next_record()


def test_another_producer_after_the_end_does_no_harm(gateway: Gateway, topic: Callable[[], str]):
    plan = plan_for(gateway, topic())
    writer(plan, gateway).write(records())
    produce(gateway, plan.target)
    again = writer(plan, gateway)
    assert again.find_next_record() == COUNT
    again.write(records())
    assert again.written == 0
    assert read(gateway, plan.target) == [*expected(), b"foreign"]


@pytest.mark.parametrize("change", ["epoch", "sequence", "producer"])
def test_records_of_another_run_of_the_producer_are_foreign(
    gateway: Gateway, topic: Callable[[], str], change: str
):
    """Another epoch of the same producer id, or the same producer with shifted sequences."""
    plan = plan_for(gateway, topic())
    writer(plan, gateway).write(records())
    if change == "sequence":
        # The target's first record is the second one of this plan, so offset n has sequence n - 1.
        (part,) = plan.partitions
        shifted = replace(part, base_offset=1, count=COUNT - 1, last=COUNT - 2)
        other = replace(plan, partitions=(shifted,))
    elif change == "epoch":
        other = replace(plan, producer_epoch=plan.producer_epoch + 1)
    else:
        other = replace(plan, producer_id=plan.producer_id + 1)
    with pytest.raises(JobError, match="another producer") as failed:
        writer(other, gateway).find_next_record()
    assert failed.value.code == "FOREIGN_WRITES"


def test_earlier_records_of_the_target_stay(gateway: Gateway, topic: Callable[[], str]):
    target = topic()
    produce(gateway, target)
    plan = plan_for(gateway, target)
    with pytest.raises(Stopped):
        writer(plan, gateway).write(stopping(records(), 500))
    writer(plan, gateway).write(records())
    assert read(gateway, target) == [b"foreign", *expected()]


def test_a_recreated_topic_is_not_written_to(gateway: Gateway, topic: Callable[[], str]):
    plan = plan_for(gateway, topic())
    with pytest.raises(Stopped):
        writer(plan, gateway).write(stopping(records(), 500))
    client = AdminClient({"bootstrap.servers": gateway.bootstrap})
    client.delete_topics([plan.target])[plan.target].result(60)
    new_topic(gateway, plan.target)
    with pytest.raises(JobError, match="recreated"):
        writer(plan, gateway).write(records())
    assert read(gateway, plan.target) == []


@pytest.mark.parametrize("end", [COUNT - 1, COUNT + 1])
def test_a_changed_source_is_an_error(gateway: Gateway, topic: Callable[[], str], end: int):
    plan = plan_for(gateway, topic())
    with pytest.raises(JobError, match="the archive had 3000 records"):
        writer(plan, gateway).write(records(end=end))


def test_a_record_that_is_too_large_is_named(gateway: Gateway, topic: Callable[[], str]):
    plan = plan_for(gateway, topic(), count=2)
    rows = RecordRows(0, [0, 0], [None, None], [b"small", b"x" * 2_000_000], None)
    with pytest.raises(JobError, match=r"max\.message\.bytes.*record 1 of the replay"):
        writer(plan, gateway).write([rows])
