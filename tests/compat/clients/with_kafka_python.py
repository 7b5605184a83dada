"""kafka-python 3 behind the suite's verbs."""

from __future__ import annotations

import queue
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas in an old way
    from kafka import (
        ConsumerRebalanceListener,
        KafkaAdminClient,
        KafkaConsumer,
        KafkaProducer,
        TopicPartition,
    )
    from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
    from kafka.consumer.fetcher import ConsumerRecord
    from kafka.errors import (
        CommitFailedError,
        MessageSizeTooLargeError,
        RebalanceInProgressError,
        TopicAlreadyExistsError,
    )
    from kafka.net.sasl.oauth import (
        AbstractTokenProvider as TokenProvider,  # noqa: F401 (for the tests of logins)
    )

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
POLL_MS = 300


def _stored(record: ConsumerRecord) -> Stored:
    headers = tuple((name, value) for name, value in record.headers)
    content = Record(record.key, record.value, headers, record.timestamp)
    return Stored(record.partition, record.offset, content)


class KafkaPython:
    name = "kafka-python"
    codecs = ("gzip", "zstd")  # snappy and lz4 need packages that it does not bring
    cannot_send = frozenset({"nothing", "null header"})

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._members: list[KafkaPythonMember] = []
        self._admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        self._reader = KafkaConsumer(
            bootstrap_servers=bootstrap, auto_offset_reset="none", enable_auto_commit=False
        )

    def create_topic(
        self, topic: str, partitions: int = 1, configs: dict[str, str] | None = None
    ) -> None:
        new = NewTopic(topic, partitions, 1, topic_configs=configs or {})
        try:
            self._admin.create_topics([new])
        except TopicAlreadyExistsError as refused:
            raise TopicExists(str(refused)) from None

    def delete_topic(self, topic: str) -> None:
        self._admin.delete_topics([topic])

    def topics(self) -> set[str]:
        return set(self._admin.list_topics())

    def partitions(self, topic: str) -> int:
        (described,) = self._admin.describe_topics([topic])
        return len(described["partitions"])

    def config(self, topic: str, key: str) -> str:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        answer = self._admin.describe_configs([resource], config_filter="all")
        return answer["topic"][topic][key]["value"]

    def producer(self, options: ProducerOptions) -> KafkaPythonProducer:
        return KafkaPythonProducer(self, options)

    def read(self, topic: str, offset: int, count: int, partition: int = 0) -> list[Stored]:
        place = TopicPartition(topic, partition)
        self._reader.assign([place])
        self._reader.seek(place, offset)
        found: list[Stored] = []
        while len(found) < count:
            batches = self._reader.poll(CALL_S_MAX * 1000, max_records=count - len(found))
            assert batches, f"{len(found)} of {count} records within {CALL_S_MAX} s"
            found.extend(_stored(record) for record in batches[place])
        return found

    def bounds(self, topic: str, partition: int = 0) -> tuple[int, int]:
        place = TopicPartition(topic, partition)
        first = self._reader.beginning_offsets([place])[place]
        return first, self._reader.end_offsets([place])[place]

    def first_at(self, topic: str, timestamp_ms: int) -> At | None:
        place = TopicPartition(topic, 0)
        found = self._reader.offsets_for_times({place: timestamp_ms})[place]
        return None if found is None else At(found.offset, found.timestamp)

    def committed(self, group: str, topic: str, partitions: int) -> list[int | None]:
        places = [TopicPartition(topic, partition) for partition in range(partitions)]
        found = self._admin.list_group_offsets({group: places})[group]
        offsets = [found[place].offset for place in places]
        return [None if offset < 0 else offset for offset in offsets]

    def member(
        self, group: str, topic: str, *, instance: str | None = None, reset: str = "earliest"
    ) -> KafkaPythonMember:
        member = KafkaPythonMember(self, group, topic, instance, reset)
        self._members.append(member)
        return member

    def close(self) -> None:
        for member in self._members:  # those that a failed test left open
            member.close()
        self._reader.close()
        self._admin.close()


class KafkaPythonProducer:
    def __init__(self, client: KafkaPython, options: ProducerOptions) -> None:
        self._producer = KafkaProducer(
            bootstrap_servers=client.bootstrap,
            acks="all" if options.acks == "all" else int(options.acks),
            compression_type=options.codec,
            enable_idempotence=options.idempotent,
            linger_ms=options.linger_ms,
            max_request_size=options.request_bytes_max,
        )
        self._waiting = []

    def send(self, topic: str, records: Sequence[Record], partition: int = 0) -> None:
        for key, value, headers, timestamp_ms in records:
            self._waiting.append(
                self._producer.send(
                    topic,
                    value=value,
                    key=key,
                    headers=list(headers),
                    partition=partition,
                    timestamp_ms=timestamp_ms,
                )
            )

    def wait(self) -> list[int]:
        waiting, self._waiting = self._waiting, []
        self._producer.flush(CALL_S_MAX)
        try:
            return [future.get(CALL_S_MAX).offset for future in waiting]
        except MessageSizeTooLargeError as refused:
            raise TooLarge from refused

    def close(self) -> None:
        self._producer.close(timeout=CALL_S_MAX)


class KafkaPythonMember(ConsumerRebalanceListener):
    """A consumer in a thread of its own, as applications run it.

    Two that take turns in one thread, with short polls, lose joins that outlive a poll.
    """

    def __init__(
        self, client: KafkaPython, group: str, topic: str, instance: str | None, reset: str
    ) -> None:
        self._settings = {
            "bootstrap_servers": client.bootstrap,
            "group_id": group,
            "group_instance_id": instance,
            "auto_offset_reset": reset,
            "enable_auto_commit": False,
            "heartbeat_interval_ms": 200,
            "session_timeout_ms": session_ms(instance),
        }
        self.rebalances = 0
        self._topic = topic
        self._found: queue.SimpleQueue[Stored] = queue.SimpleQueue()
        self._calls: queue.SimpleQueue[tuple[Callable[[], object], Future]] = queue.SimpleQueue()
        self._assigned: set[int] = set()
        self._closed = False
        self._fault: BaseException | None = None  # what ended the thread
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._consume()
        except BaseException as fault:
            self._fault = fault

    def _consume(self) -> None:
        consumer = self._consumer = KafkaConsumer(**self._settings)
        # Known before it joins: else it may share out a topic that it has not heard of yet.
        consumer.partitions_for_topic(self._topic)
        consumer.subscribe([self._topic], listener=self)
        while not self._closed:
            for records in consumer.poll(timeout_ms=POLL_MS).values():
                for record in records:
                    self._found.put(_stored(record))
            self._assigned = {place.partition for place in consumer.assignment()}
            while not self._calls.empty():
                call, answer = self._calls.get()
                try:
                    answer.set_result(call())
                except Exception as refused:
                    answer.set_exception(refused)
        consumer.close(autocommit=False)

    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        self._assigned = set()

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self.rebalances += 1

    def poll(self) -> list[Stored]:
        if self._fault is not None:
            raise AssertionError("the member's thread ended") from self._fault
        found: list[Stored] = []
        while not self._found.empty():
            found.append(self._found.get())
        return found

    def assignment(self) -> set[int]:
        return self._assigned

    def commit(self) -> None:
        answer: Future[object] = Future()
        self._calls.put((self._consumer.commit, answer))
        try:
            answer.result(CALL_S_MAX)
        except (CommitFailedError, RebalanceInProgressError) as refused:
            raise Rebalancing from refused

    def close(self) -> None:
        self._closed = True
        self._thread.join(CALL_S_MAX)
        assert not self._thread.is_alive()
