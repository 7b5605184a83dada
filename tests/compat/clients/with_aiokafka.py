"""aiokafka behind the suite's verbs: its event loop runs in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from aiokafka import (
    AIOKafkaConsumer,
    AIOKafkaProducer,
    ConsumerRebalanceListener,
    ConsumerRecord,
    TopicPartition,
)
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import CommitFailedError, IllegalStateError, MessageSizeTooLargeError

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

T = TypeVar("T")
TOPIC_ALREADY_EXISTS = 36
CALL_S_MAX = 60


class Loop:
    """An event loop in a thread; `run` waits for a coroutine there."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, awaitable: Awaitable[T]) -> T:
        async def wait() -> T:
            return await asyncio.wait_for(awaitable, CALL_S_MAX)

        return asyncio.run_coroutine_threadsafe(wait(), self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _stored(record: ConsumerRecord) -> Stored:
    headers = tuple((name, value) for name, value in record.headers)
    content = Record(record.key, record.value, headers, record.timestamp)
    return Stored(record.partition, record.offset, content)


class Aiokafka:
    name = "aiokafka"
    codecs = ("gzip", "snappy", "lz4", "zstd")
    cannot_send = frozenset({"nothing"})

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.loop = Loop()
        self._admin, self._reader = self.loop.run(self._open())

    async def _open(self) -> tuple[AIOKafkaAdminClient, AIOKafkaConsumer]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        reader = AIOKafkaConsumer(bootstrap_servers=self.bootstrap, auto_offset_reset="none")
        await reader.start()
        return admin, reader

    def create_topic(
        self, topic: str, partitions: int = 1, configs: dict[str, str] | None = None
    ) -> None:
        new = NewTopic(topic, partitions, 1, topic_configs=configs or {})
        answer = self.loop.run(self._admin.create_topics([new]))
        for _topic, code, *message in answer.topic_errors:
            if code == TOPIC_ALREADY_EXISTS:
                raise TopicExists(message)
            assert code == 0, (code, message)

    def delete_topic(self, topic: str) -> None:
        answer = self.loop.run(self._admin.delete_topics([topic]))
        assert [code for _topic, code in answer.topic_error_codes] == [0]

    def add_partitions(self, topic: str, total: int) -> None:
        self.loop.run(self._admin.create_partitions({topic: NewPartitions(total)}))

    def delete_records(self, topic: str, before: int, partition: int = 0) -> None:
        place = TopicPartition(topic, partition)
        self.loop.run(self._admin.delete_records({place: RecordsToDelete(before_offset=before)}))

    def topics(self) -> set[str]:
        return set(self.loop.run(self._admin.list_topics()))

    def partitions(self, topic: str) -> int:
        (described,) = self.loop.run(self._admin.describe_topics([topic]))
        return len(described["partitions"])

    def config(self, topic: str, key: str) -> str:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        (answer,) = self.loop.run(self._admin.describe_configs([resource]))
        entries = answer.resources[0][4]
        return next(entry[1] for entry in entries if entry[0] == key)

    def producer(self, options: ProducerOptions) -> AiokafkaProducer:
        return AiokafkaProducer(self, options)

    def read(self, topic: str, offset: int, count: int, partition: int = 0) -> list[Stored]:
        return self.loop.run(self._read(TopicPartition(topic, partition), offset, count))

    async def _read(self, partition: TopicPartition, offset: int, count: int) -> list[Stored]:
        self._reader.assign([partition])
        self._reader.seek(partition, offset)
        return [_stored(await self._reader.getone(partition)) for _ in range(count)]

    def bounds(self, topic: str, partition: int = 0) -> tuple[int, int]:
        place = TopicPartition(topic, partition)
        first = self.loop.run(self._reader.beginning_offsets([place]))[place]
        return first, self.loop.run(self._reader.end_offsets([place]))[place]

    def first_at(self, topic: str, timestamp_ms: int) -> At | None:
        place = TopicPartition(topic, 0)
        found = self.loop.run(self._reader.offsets_for_times({place: timestamp_ms}))[place]
        return None if found is None else At(found.offset, found.timestamp)

    def committed(self, group: str, topic: str, partitions: int) -> list[int | None]:
        places = [TopicPartition(topic, partition) for partition in range(partitions)]
        found = self.loop.run(self._admin.list_consumer_group_offsets(group, partitions=places))
        offsets = [found[place].offset for place in places]
        return [None if offset < 0 else offset for offset in offsets]

    def member(
        self, group: str, topic: str, *, instance: str | None = None, reset: str = "earliest"
    ) -> AiokafkaMember:
        return AiokafkaMember(self, group, topic, instance, reset)

    def close(self) -> None:
        async def close() -> None:
            await self._reader.stop()
            await self._admin.close()

        self.loop.run(close())
        self.loop.close()


class AiokafkaProducer:
    def __init__(self, client: Aiokafka, options: ProducerOptions) -> None:
        self._loop = client.loop
        self._waiting: list[asyncio.Future] = []
        acks = "all" if options.acks == "all" else int(options.acks)

        async def open_producer() -> AIOKafkaProducer:
            producer = AIOKafkaProducer(
                bootstrap_servers=client.bootstrap,
                acks=acks,
                compression_type=options.codec,
                enable_idempotence=options.idempotent,
                linger_ms=options.linger_ms,
                max_request_size=options.request_bytes_max,
            )
            await producer.start()
            return producer

        self._producer = self._loop.run(open_producer())

    def send(self, topic: str, records: Sequence[Record], partition: int = 0) -> None:
        async def send() -> None:
            for key, value, headers, timestamp_ms in records:
                place = {"partition": partition, "timestamp_ms": timestamp_ms}
                self._waiting.append(
                    await self._producer.send(topic, value, key, headers=list(headers), **place)
                )

        self._loop.run(send())

    def send_batch(self, topic: str, records: Sequence[Record]) -> None:
        """Send all records as one batch into partition 0."""
        batch = self._producer.create_batch()
        for key, value, headers, timestamp_ms in records:
            added = batch.append(
                key=key, value=value, timestamp=timestamp_ms, headers=list(headers)
            )
            assert added is not None, "more than one batch"
        self._waiting.append(self._loop.run(self._producer.send_batch(batch, topic, partition=0)))

    def wait(self) -> list[int]:
        waiting, self._waiting = self._waiting, []

        async def all_of_them() -> list[int]:
            answers = await asyncio.gather(*waiting)
            return [-1 if answer is None else answer.offset for answer in answers]

        try:
            return self._loop.run(all_of_them())
        except MessageSizeTooLargeError as refused:
            raise TooLarge from refused

    def close(self) -> None:
        self._loop.run(self._producer.stop())


class AiokafkaMember(ConsumerRebalanceListener):
    def __init__(
        self, client: Aiokafka, group: str, topic: str, instance: str | None, reset: str
    ) -> None:
        self._loop = client.loop
        self.rebalances = 0

        async def open_consumer() -> AIOKafkaConsumer:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=client.bootstrap,
                group_id=group,
                group_instance_id=instance,
                auto_offset_reset=reset,
                enable_auto_commit=False,
                heartbeat_interval_ms=200,
                session_timeout_ms=session_ms(instance),
            )
            consumer.subscribe([topic], listener=self)
            await consumer.start()
            return consumer

        self._consumer = self._loop.run(open_consumer())

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        pass

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self.rebalances += 1

    def poll(self) -> list[Stored]:
        batches = self._loop.run(self._consumer.getmany(timeout_ms=50))
        return [_stored(record) for records in batches.values() for record in records]

    def assignment(self) -> set[int]:
        return {place.partition for place in self._consumer.assignment()}

    def commit(self) -> None:
        try:
            self._loop.run(self._consumer.commit())
        except (CommitFailedError, IllegalStateError) as refused:
            raise Rebalancing from refused

    def close(self) -> None:
        self._loop.run(self._consumer.stop())
