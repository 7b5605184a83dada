"""confluent-kafka (librdkafka) behind the suite's verbs."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from tests.compat.clients.base import (
    At,
    ProducerOptions,
    Rebalancing,
    Record,
    Stored,
    TooLarge,
    TopicExists,
    session_ms,
)

CALL_S_MAX = 60
REBALANCING = (
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,  # its session ended: it joins again
)


def _stored(message: Message) -> Stored:
    assert message.error() is None, message.error()
    headers = tuple((name, value) for name, value in message.headers() or ())
    _kind, timestamp_ms = message.timestamp()
    content = Record(message.key(), message.value(), headers, timestamp_ms)
    return Stored(message.partition(), message.offset(), content)


class Confluent:
    name = "confluent"
    codecs = ("gzip", "snappy", "lz4", "zstd")
    cannot_send = frozenset()

    def __init__(self, bootstrap: str) -> None:
        self.common = {"bootstrap.servers": bootstrap, "topic.metadata.refresh.sparse": True}
        self._admin = AdminClient(self.common)
        self._reader = Consumer({**self.common, "group.id": "unused", "enable.auto.commit": False})

    def create_topic(
        self, topic: str, partitions: int = 1, configs: dict[str, str] | None = None
    ) -> None:
        new = NewTopic(topic, partitions, 1, config=configs or {})
        try:
            self._admin.create_topics([new])[topic].result(CALL_S_MAX)
        except KafkaException as refused:
            if refused.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                raise TopicExists(refused.args[0].str()) from None
            raise

    def delete_topic(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(CALL_S_MAX)

    def topics(self) -> set[str]:
        return set(self._admin.list_topics(timeout=CALL_S_MAX).topics)

    def partitions(self, topic: str) -> int:
        return len(self._admin.list_topics(topic, timeout=CALL_S_MAX).topics[topic].partitions)

    def config(self, topic: str, key: str) -> str:
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        entries = self._admin.describe_configs([resource])[resource].result(CALL_S_MAX)
        return entries[key].value

    def producer(self, options: ProducerOptions) -> ConfluentProducer:
        return ConfluentProducer(self, options)

    def read(self, topic: str, offset: int, count: int, partition: int = 0) -> list[Stored]:
        self._reader.assign([TopicPartition(topic, partition, offset)])
        found: list[Stored] = []
        while len(found) < count:
            messages = self._reader.consume(count - len(found), timeout=CALL_S_MAX)
            assert messages, f"{len(found)} of {count} records within {CALL_S_MAX} s"
            found.extend(_stored(message) for message in messages)
        self._reader.unassign()
        return found

    def bounds(self, topic: str, partition: int = 0) -> tuple[int, int]:
        place = TopicPartition(topic, partition)
        return self._reader.get_watermark_offsets(place, timeout=CALL_S_MAX)

    def first_at(self, topic: str, timestamp_ms: int) -> At | None:
        place = TopicPartition(topic, 0, timestamp_ms)
        (found,) = self._reader.offsets_for_times([place], timeout=CALL_S_MAX)
        assert found.error is None, found.error
        return None if found.offset < 0 else At(found.offset, None)

    def committed(self, group: str, topic: str, partitions: int) -> list[int | None]:
        places = [TopicPartition(topic, partition) for partition in range(partitions)]
        wanted = ConsumerGroupTopicPartitions(group, places)
        answer = self._admin.list_consumer_group_offsets([wanted])[group].result(CALL_S_MAX)
        found = {place.partition: place.offset for place in answer.topic_partitions}
        return [None if found[place.partition] < 0 else found[place.partition] for place in places]

    def member(
        self, group: str, topic: str, *, instance: str | None = None, reset: str = "earliest"
    ) -> ConfluentMember:
        return ConfluentMember(self, group, topic, instance, reset)

    def close(self) -> None:
        self._reader.close()


class ConfluentProducer:
    def __init__(self, client: Confluent, options: ProducerOptions) -> None:
        self._producer = Producer(
            {
                **client.common,
                "acks": options.acks,
                "compression.type": options.codec or "none",
                "enable.idempotence": options.idempotent,
                "linger.ms": options.linger_ms,
                "message.max.bytes": options.request_bytes_max,
            }
        )
        self._offsets: list[int] = []
        self._errors: list[KafkaError] = []
        self._expected = 0

    def _on_delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._errors.append(error)
            return
        offset = message.offset()
        self._offsets.append(-1 if offset is None or offset < 0 else offset)

    def send(self, topic: str, records: Sequence[Record], partition: int = 0) -> None:
        for key, value, headers, timestamp_ms in records:
            self._producer.produce(
                topic,
                value=value,
                key=key,
                headers=list(headers),
                timestamp=timestamp_ms,
                partition=partition,
                on_delivery=self._on_delivered,
            )
        self._expected += len(records)

    def wait(self) -> list[int]:
        left = self._producer.flush(CALL_S_MAX)
        if any(error.code() == KafkaError.MSG_SIZE_TOO_LARGE for error in self._errors):
            raise TooLarge
        assert left == 0 and not self._errors, (left, self._errors[:1])
        assert len(self._offsets) == self._expected
        offsets, self._offsets, self._expected = self._offsets, [], 0
        return offsets

    def close(self) -> None:
        self._producer.flush(CALL_S_MAX)


class ConfluentMember:
    def __init__(
        self, client: Confluent, group: str, topic: str, instance: str | None, reset: str
    ) -> None:
        settings = {
            **client.common,
            "group.id": group,
            "auto.offset.reset": reset,
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 200,
            "session.timeout.ms": session_ms(instance),
        }
        if instance is not None:
            settings["group.instance.id"] = instance
        self._consumer = Consumer(settings)
        self.rebalances = 0
        self._consumer.subscribe([topic], on_assign=self._on_assigned)

    def _on_assigned(self, _consumer: Consumer, _places: list[TopicPartition]) -> None:
        self.rebalances += 1

    def poll(self) -> list[Stored]:
        return [_stored(message) for message in self._consumer.consume(500, timeout=0.05)]

    def assignment(self) -> set[int]:
        return {place.partition for place in self._consumer.assignment()}

    def commit(self) -> None:
        try:
            self._consumer.commit(asynchronous=False)
        except KafkaException as refused:
            code = refused.args[0].code()
            if code in REBALANCING:
                raise Rebalancing from refused
            if code != KafkaError._NO_OFFSET:  # nothing was read yet
                raise

    def close(self) -> None:
        self._consumer.close()
