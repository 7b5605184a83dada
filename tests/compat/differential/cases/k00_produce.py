"""Produce: acknowledgements, unknown topics, records that are refused, sequences of producers.

Kafka 4.3 never answers a request whose records are null, so no case sends one.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tests.compat.differential.script import Script, Topic, batch, case

KEY = 0
FIRST_WITH_RECORDS_V2 = 3
NOBODY = UUID("00000000-0000-4000-8000-000000000007")


def _rows(topic: dict[str, Any], records: Any, partition: int = 0) -> list[dict[str, Any]]:
    return [{**topic, "partition_data": [{"index": partition, "records": records}]}]


def _write(
    script: Script, topic: Topic, records: Any, partition: int = 0, acks: int = -1, **fields: Any
) -> None:
    rows = _rows(topic.ref, records, partition)
    script.ask(acks=acks, timeout=10_000, topic_data=rows, **fields)


@case(KEY, until=2)
def a_version_that_is_only_advertised(script: Script) -> None:
    script.raw(bytes(10), flexible=False)


@case(KEY, since=3)
def one_batch_after_the_other(script: Script) -> None:
    topic = script.topic("one")
    for count in (1, 3, 2):
        _write(script, topic, batch(count))


@case(KEY, since=3)
def one_acknowledgement(script: Script) -> None:
    _write(script, script.topic("one"), batch(2), acks=1)


@case(KEY, since=3)
def no_acknowledgement(script: Script) -> None:
    topic = script.topic("one")
    script.send(acks=0, timeout=10_000, topic_data=_rows(topic.ref, batch(2)))
    _write(script, topic, batch(1))


@case(KEY, since=3)
def no_acknowledgement_and_an_error(script: Script) -> None:
    rows = _rows({"name": "a/b", "topic_id": NOBODY}, batch(1))
    script.send(acks=0, timeout=10_000, topic_data=rows)
    script.expect_close()


@case(KEY, since=3)
def invalid_acknowledgements(script: Script) -> None:
    topic = script.topic("one")
    for acks in (2, -2, 32_767):
        _write(script, topic, batch(1), acks=acks)


@case(KEY, since=3)
def unknown_topics_and_partitions(script: Script) -> None:
    topic = script.topic("one")
    for index in (1, 7, -1):
        _write(script, topic, batch(1), partition=index)
    unknown = {"name": script.name("missing"), "topic_id": NOBODY}
    script.ask(acks=-1, timeout=10_000, topic_data=_rows(unknown, batch(1)))


@case(KEY, since=3)
def invalid_names(script: Script) -> None:
    for name in ("", "..", "a/b"):
        rows = _rows({"name": name, "topic_id": UUID(int=0)}, batch(1))
        script.ask(acks=-1, timeout=10_000, topic_data=rows)


@case(KEY, since=3)
def several_partitions_of_which_one_is_unknown(script: Script) -> None:
    topic = script.topic("one", partitions=2)
    partitions = [{"index": index, "records": batch(1)} for index in (0, 1, 2)]
    rows = [{**topic.ref, "partition_data": partitions}]
    script.ask(acks=-1, timeout=10_000, topic_data=rows)


@case(KEY, since=3)
def nothing(script: Script) -> None:
    script.ask(acks=-1, timeout=10_000, topic_data=[])


@case(KEY, since=3)
def no_records(script: Script) -> None:
    topic = script.topic("one")
    _write(script, topic, b"")


@case(KEY, since=3)
def a_batch_that_is_cut_short(script: Script) -> None:
    _write(script, script.topic("one"), bytes(40))


@case(KEY, since=3)
def damaged_batches(script: Script) -> None:
    topic = script.topic("one")
    for header in (
        {"count": 3},
        {"last_offset_delta": 5},
        {"magic": 1},
        {"magic": 3},
        {"attributes": 7},
        {"base_offset": 5},
    ):
        _write(script, topic, batch(2, **header))


@case(KEY, since=3)
def control_and_transactional_batches(script: Script) -> None:
    topic = script.topic("one")
    _write(script, topic, batch(1, attributes=0x20))


@case(KEY, since=3)
def records_without_a_key_on_a_compacted_topic(script: Script) -> None:
    topic = script.topic("compacted", configs={"cleanup.policy": "compact"})
    _write(script, topic, batch(2))
    _write(script, topic, batch(3, key=None))


@case(KEY, since=3)
def records_that_are_too_large(script: Script) -> None:
    topic = script.topic("small", configs={"max.message.bytes": "100"})
    _write(script, topic, batch(1))
    _write(script, topic, batch(20))


@case(KEY, since=3)
def times_that_the_topic_refuses(script: Script) -> None:
    configs = {"message.timestamp.before.max.ms": "1000"}
    topic = script.topic("times", configs=configs)
    _write(script, topic, batch(2))


@case(KEY, since=3)
def append_times(script: Script) -> None:
    topic = script.topic("times", configs={"message.timestamp.type": "LogAppendTime"})
    _write(script, topic, batch(2))


@case(KEY, since=3)
def a_producer_with_sequences(script: Script) -> None:
    topic, producer = script.topic("one"), script.producer().take("producer_id")
    for sequence, count in ((0, 2), (2, 1), (0, 2), (2, 1), (5, 1), (3, 2)):
        _write(script, topic, batch(count, producer=producer, epoch=0, sequence=sequence))


@case(KEY, since=3)
def a_new_producer_that_begins_late(script: Script) -> None:
    topic, producer = script.topic("one"), script.producer().take("producer_id")
    _write(script, topic, batch(1, producer=producer, epoch=0, sequence=3))


@case(KEY, since=3)
def epochs_of_a_producer(script: Script) -> None:
    topic, producer = script.topic("one"), script.producer().take("producer_id")
    for epoch, sequence in ((0, 0), (1, 0), (0, 1), (1, 1), (2, 3), (2, 0)):
        _write(script, topic, batch(1, producer=producer, epoch=epoch, sequence=sequence))


@case(KEY, since=3)
def odd_producers(script: Script) -> None:
    topic, producer = script.topic("one"), script.producer().take("producer_id")
    _write(script, topic, batch(1, producer=producer, epoch=-1, sequence=0))
    _write(script, topic, batch(1, producer=producer, epoch=0, sequence=-1))


@case(KEY, since=3)
def a_timeout_below_zero(script: Script) -> None:
    topic = script.topic("one")
    script.ask(acks=-1, timeout=-1, topic_data=_rows(topic.ref, batch(1)))


@case(KEY, since=3)
def a_deleted_topic(script: Script) -> None:
    topic = script.topic("one")
    script.fill(topic, 1)
    script.prepare(20, 5, topic_names=[topic.name], timeout=10_000, again=())
    script.prepare(
        3, 12, topics=[{"name": topic.name}], allow_auto_topic_creation=False, again=("none",)
    )
    _write(script, topic, batch(1))


@case(KEY, since=3)
def an_internal_topic(script: Script) -> None:
    topic = script.internal_topic()
    for partition in (0, 49, 50):
        _write(script, topic, batch(1), partition)


@case(KEY, since=3)
def codecs_of_the_topic(script: Script) -> None:
    for codec in ("uncompressed", "gzip", "snappy", "lz4", "zstd", "producer"):
        topic = script.topic(codec, configs={"compression.type": codec})
        _write(script, topic, batch(3))
        _write(script, topic, batch(2, base_timestamp=5_000, gap_ms=0))
        row = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        script.other(
            1,
            13,
            max_wait=0,
            min_bytes=0,
            max_bytes=1 << 20,
            session_id=0,
            session_epoch=-1,
            topics=[{**topic.ref, "partitions": [row]}],
        )


@case(KEY, since=3)
def append_times_with_another_codec(script: Script) -> None:
    configs = {"compression.type": "gzip", "message.timestamp.type": "LogAppendTime"}
    topic = script.topic("one", configs=configs)
    _write(script, topic, batch(3))
    producer = script.producer().take("producer_id")
    for _ in range(2):
        _write(script, topic, batch(2, producer=producer, epoch=0, sequence=0))
