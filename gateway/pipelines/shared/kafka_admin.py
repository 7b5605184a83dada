"""Topics as Kafka's own admin client in Spark's JVM sees them, with any Kafka client property.

The driver then connects exactly as the Kafka source does in Spark's tasks: with TLS, SASL, or
whatever the properties name. Source: Apache Kafka 3.9, org.apache.kafka.clients.admin.Admin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.kafka_servers import expect_token
from gateway.pipelines.shared.partitions import TopicPartition
from gateway.pipelines.shared.refusals import refusal_of
from gateway.pipelines.shared.topics import OffsetBounds, TopicDescription

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
_UNREACHABLE = frozenset({"TimeoutException", "DisconnectException", "KafkaException"})


class KafkaAdmin:
    """The topics of one cluster. Each call opens its own client and may raise JobError.

    Without a token for the login it raises AdminError and Unreachable.
    """

    def __init__(self, spark: SparkSession, bootstrap: str, properties: Mapping[str, str]) -> None:
        self._jvm: Any = spark.sparkContext._jvm  # pyright: ignore[reportPrivateUsage]
        self._properties = {**properties, "bootstrap.servers": bootstrap}

    def named(self, names: Sequence[str] = ()) -> list[str]:
        """Return `names`, sorted. Raises JobError if one does not exist."""
        for name in names:
            self.describe(name)
        return sorted(names)

    def describe(self, name: str) -> TopicDescription:
        """Describe the topic, without its settings."""

        def work(admin: Any) -> TopicDescription:
            found = _one(admin.describeTopics(self._list([name])).allTopicNames().get())
            topic_id = _uuid(found.topicId())
            return TopicDescription(topic_id, found.partitions().size(), {})

        return self._ask(work)

    def settings(self, name: str) -> dict[str, str | None]:
        """Return every setting of the topic, including defaults."""
        config = self._jvm.org.apache.kafka.common.config.ConfigResource
        resource = config(config.Type.TOPIC, name)

        def work(admin: Any) -> dict[str, str | None]:
            found = _one(admin.describeConfigs(self._list([resource])).all().get())
            entries = self._jvm.java.util.ArrayList(found.entries())
            return {each.name(): each.value() for each in entries}

        return self._ask(work)

    def bounds(self, names: Iterable[str]) -> dict[TopicPartition, OffsetBounds]:
        """Return the bounds of every partition."""
        spec = self._jvm.org.apache.kafka.clients.admin.OffsetSpec
        partitions = [
            TopicPartition(name, index)
            for name in names
            for index in range(self.describe(name).partitions)
        ]

        def work(admin: Any) -> dict[TopicPartition, OffsetBounds]:
            # As in Topics.bounds: the log may advance between the two requests.
            first = self._offsets(admin, partitions, spec.earliest())
            last = self._offsets(admin, partitions, spec.latest())
            return {each: OffsetBounds(first[each], last[each]) for each in partitions}

        return self._ask(work)

    def _offsets(
        self, admin: Any, partitions: Sequence[TopicPartition], spec: Any
    ) -> dict[TopicPartition, int]:
        wanted = self._jvm.java.util.HashMap()
        places = {
            each: self._jvm.org.apache.kafka.common.TopicPartition(*each) for each in partitions
        }
        for place in places.values():
            wanted.put(place, spec)
        found = admin.listOffsets(wanted)
        return {
            each: int(found.partitionResult(place).get().offset()) for each, place in places.items()
        }

    def _list(self, items: Iterable[Any]) -> Any:
        found = self._jvm.java.util.ArrayList()
        for each in items:
            found.add(each)
        return found

    def _ask(self, work: Callable[[Any], T]) -> T:
        """Return the result of `work`, run with a new client.

        Raises JobError, and AdminError and Unreachable without a token for the login.
        """
        from py4j.protocol import Py4JJavaError

        properties = self._jvm.java.util.HashMap()
        for key, value in self._properties.items():
            properties.put(key, value)
        try:
            admin = self._jvm.org.apache.kafka.clients.admin.Admin.create(properties)
        except Py4JJavaError as error:
            name, message = _cause(error)
            if name == "LoginException":
                expect_token(self._properties)
            raise JobError(f"Kafka client: {message}", "BAD_CLIENT_PROPERTY") from error
        try:
            return work(admin)
        except Py4JJavaError as error:
            name, message = _cause(error)
            where = self._properties["bootstrap.servers"]
            if name == "UnknownTopicOrPartitionException":
                raise JobError(f"topic does not exist: {message}", "UNKNOWN_TOPIC") from error
            raise JobError(f"Kafka at {where}: {message}", _code_of(name)) from error
        finally:
            admin.close()


def _code_of(exception: str) -> str:
    """Return the code of an exception of Kafka's client: Kafka's own for a login or a right."""
    if exception in _UNREACHABLE:
        return "UNREACHABLE"
    return refusal_of(exception) or "KAFKA_CLIENT"


def _one(found: Any) -> Any:
    """Return the only value of a Java map."""
    return next(iter(found.values()))


def _uuid(found: Any) -> str | None:
    """Return the topic id as the gateway writes it, or None if the cluster has no topic ids."""
    from uuid import UUID

    high, low = found.getMostSignificantBits(), found.getLeastSignificantBits()
    number = (high % (1 << 64) << 64) | (low % (1 << 64))
    return str(UUID(int=number)) if number else None


def _cause(error: Any) -> tuple[str, str]:
    """Return the class and the message of the innermost cause."""
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    name = cause.getClass().getSimpleName()
    return name, f"{name}: {cause.getMessage()}"
