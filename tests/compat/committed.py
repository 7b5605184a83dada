"""The brokers and the committed records of tests of applications that write in transactions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, IsolationLevel, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.peers.broker import Broker
from tests.peers.gateway import Gateway
from tests.peers.kafka import ApacheKafka
from tests.peers.processes import wait_until

SECONDS_MAX = 180


def transacting_broker(kind: str, data: Path) -> Broker:
    """Return the gateway with transactions, or "kafka", not started."""
    if kind == "kafka":
        return ApacheKafka(data)
    return Gateway(data, ["--group-initial-rebalance-delay-ms", "0"])


class Committed:
    """A read_committed consumer of a whole topic, and what it has read."""

    def __init__(self, bootstrap: str, topic: str, partitions: int):
        self.places = [TopicPartition(topic, place, 0) for place in range(partitions)]
        servers = {"bootstrap.servers": bootstrap, "log_level": 0}
        settings = {"group.id": "reader", "isolation.level": "read_committed"}
        more = {"enable.auto.commit": False, "enable.partition.eof": True}
        self.consumer = Consumer({**servers, **settings, **more})
        self.consumer.assign(self.places)
        # In the order of reading, which is that of the log in each partition.
        self.messages: list[Message] = []
        # The partitions whose end the consumer has met, whether more came later or not.
        self.ended: set[int] = set()

    def poll(self) -> None:
        """Read some records, if there are any."""
        for message in self.consumer.consume(1_000, 0.2):
            error = message.error()
            if error is None:
                self.messages.append(message)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                self.ended.add(message.partition())

    @property
    def values(self) -> list[str]:
        return [message.value().decode() for message in self.messages]

    def read_until(self, total: int, check: Callable[[], None]) -> None:
        """Read until there are `total` records. `check` raises if there will be no more."""

        def enough() -> bool:
            check()
            self.poll()
            return len(self.messages) >= total

        wait_until(enough, f"{total} committed records", SECONDS_MAX)

    def close(self) -> None:
        self.consumer.close()


def read_all(bootstrap: str, topic: str, partitions: int) -> Committed:
    """Read the committed records of a topic, up to its first open transaction."""
    reader = Committed(bootstrap, topic, partitions)

    def all_read() -> bool:
        reader.poll()
        return len(reader.ended) == partitions

    wait_until(all_read, f"the end of {topic}", SECONDS_MAX)
    reader.close()
    return reader


def wait_ended(bootstrap: str, topic: str, partitions: int) -> None:
    """Wait until no transaction of a topic is open.

    A producer's commit or abort returns before that: once the outcome is durable.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    places = [TopicPartition(topic, place) for place in range(partitions)]

    def ends(level: IsolationLevel) -> list[int]:
        asked = {each: OffsetSpec.latest() for each in places}
        answers = admin.list_offsets(asked, isolation_level=level)
        return [answers[each].result(SECONDS_MAX).offset for each in places]

    def no_transaction_is_open() -> bool:
        return ends(IsolationLevel.READ_COMMITTED) == ends(IsolationLevel.READ_UNCOMMITTED)

    wait_until(no_transaction_is_open, f"the end of all transactions in {topic}", SECONDS_MAX)


def read_all_ended(bootstrap: str, topic: str, partitions: int) -> Committed:
    """Read the committed records of a topic, after the last open transaction has ended."""
    wait_ended(bootstrap, topic, partitions)
    return read_all(bootstrap, topic, partitions)
