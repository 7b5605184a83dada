"""Topics as a job's driver sees them: names, offsets and settings, by admin requests."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from kio.schema.errors import ErrorCode

from gateway.admin import topics as asking
from gateway.admin.client import AdminClient, AdminError, Unreachable
from gateway.admin.client_settings import UnsupportedSecurity
from gateway.core.topic_names import topic_name_fault
from gateway.interrupt import run_interruptibly
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.kafka_servers import UNSUPPORTED, KafkaServers
from gateway.pipelines.shared.partitions import TopicPartition

T = TypeVar("T")

_METADATA, _DESCRIBE_CONFIGS = 3, 32
_TOPIC_RESOURCE = 2


class OffsetBounds(NamedTuple):
    """The first available offset of a partition, and the offset that its next record will get."""

    earliest: int
    latest: int


class TopicDescription(NamedTuple):
    """A topic's id and its own settings, `configs`, without defaults.

    A recreated topic has another id.
    """

    topic_id: str | None
    partitions: int
    configs: Mapping[str, str]


class ListedTopic(NamedTuple):
    """A topic in the list of all topics. Old brokers assign no ids."""

    topic_id: str | None
    internal: bool


class ChosenTopics(NamedTuple):
    """The topics that names and a pattern select, sorted, and the names that do not exist."""

    found: list[str]
    missing: list[str]


def choose_topics(
    listed: Mapping[str, ListedTopic], names: Sequence[str], pattern: str
) -> ChosenTopics:
    """Choose `names` and all topics whose whole name matches `pattern`.

    The pattern matches no internal topics. Raises JobError if the pattern is invalid.
    """
    found = {name for name in names if name in listed}
    if pattern:
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise JobError(f"pattern {pattern!r}: {error}", "BAD_PATTERN") from None
        found |= {
            name for name, each in listed.items() if compiled.fullmatch(name) and not each.internal
        }
    return ChosenTopics(sorted(found), sorted({name for name in names if name not in listed}))


class Topics:
    """The topics of one cluster. Each call opens its own connection and may raise JobError."""

    def __init__(self, bootstrap: KafkaServers) -> None:
        self._bootstrap = bootstrap

    def named(self, names: Sequence[str] = (), pattern: str = "") -> list[str]:
        """Return the topics of `choose_topics`.

        Raises JobError if a name does not exist, or if no topic is named or matched.
        """
        chosen = choose_topics(self.listed(), names, pattern)
        if chosen.missing:
            raise self.why_missing(chosen.missing)[chosen.missing[0]]
        if not chosen.found:
            raise no_topic()
        return chosen.found

    def listed(self) -> dict[str, ListedTopic]:
        """Return all topics by name, as one broker has them in memory."""

        async def work(client: AdminClient) -> dict[str, ListedTopic]:
            answer = await client.metadata(None)
            return {
                topic.name: ListedTopic(_id_of(topic), topic.is_internal)
                for topic in answer.topics
                if not topic.error_code.value
            }

        return self._ask(work)

    def why_missing(self, names: Sequence[str]) -> dict[str, JobError]:
        """Return the error of each of these topics, which the list of all topics lacks.

        The list leaves out topics that the login may not describe. The code of such a topic is
        Kafka's, and UNKNOWN_TOPIC otherwise.
        """
        legal = [name for name in names if topic_name_fault(name) is None]

        async def work(client: AdminClient) -> set[str]:
            answer = await client.metadata(legal)
            denied = ErrorCode.topic_authorization_failed
            return {each.name for each in answer.topics if each.error_code is denied}

        denied = self._ask(work) if legal else set[str]()
        return {name: _denied(name) if name in denied else _unknown(name) for name in names}

    def ids_at_brokers(self, names: Iterable[str]) -> list[dict[str, str | None]]:
        """Return the ids of the topics that exist, as each broker has them in memory.

        A broker that served records of a topic has the id of that topic, while another one may
        still have an older id. Raises JobError if a broker does not answer.
        """
        asked = [{"name": name} for name in names]
        fields = {"topics": asked, "allow_auto_topic_creation": False}

        async def work(client: AdminClient) -> list[dict[str, str | None]]:
            answers = await client.at_every_broker(_METADATA, lambda _: fields, lambda _: [])
            return [
                {each.name: _id_of(each) for each in answer.topics if not each.error_code.value}
                for answer in answers
            ]

        return self._ask(work)

    def describe(self, name: str) -> TopicDescription:
        row = self._ask(lambda client: asking.describe_topic(client, name))
        return TopicDescription(row["topic_id"], len(row["partitions"]), row["configs"])

    def settings(self, name: str) -> dict[str, str | None]:
        """Return every setting of the topic, including defaults."""
        return self._ask(lambda client: asking.settings(client, name))

    def setting(self, names: Iterable[str], key: str) -> dict[str, str]:
        """Return the value of one setting, including its default, for the topics that exist."""
        resources = [
            {
                "resource_type": _TOPIC_RESOURCE,
                "resource_name": name,
                "configuration_keys": [key],
            }
            for name in names
        ]

        async def work(client: AdminClient) -> dict[str, str]:
            answer = await client.send(_DESCRIBE_CONFIGS, {"resources": resources})
            return {
                result.resource_name: each.value
                for result in answer.results
                if not result.error_code.value
                for each in result.configs
                if each.name == key and each.value is not None
            }

        return self._ask(work)

    def bounds(
        self, names: Iterable[str], *, committed: bool = False
    ) -> dict[TopicPartition, OffsetBounds]:
        """Return the bounds of every partition.

        With `committed`, the end is the last stable offset. Raises JobError if the bounds of a
        partition are unknown.
        """

        async def work(client: AdminClient) -> dict[TopicPartition, OffsetBounds]:
            partitions = await _partitions(client, list(names))
            # Request the earliest offsets first: if a log start advances meanwhile, the bounds
            # still contain all available records.
            first = await asking.offsets(client, partitions, asking.EARLIEST)
            last = await asking.offsets(client, partitions, asking.LATEST, committed=committed)
            found: dict[TopicPartition, OffsetBounds] = {}
            for topic, indexes in partitions.items():
                for index in indexes:
                    partition = TopicPartition(topic, index)
                    if partition not in first or partition not in last:
                        raise _no_leader(partition)
                    found[partition] = OffsetBounds(first[partition], last[partition])
            return found

        return self._ask(work)

    def at_time(self, names: Iterable[str], timestamp_ms: int) -> dict[TopicPartition, int | None]:
        """Return for each partition the first offset at or after the time, or None."""

        async def work(client: AdminClient) -> dict[TopicPartition, int | None]:
            partitions = await _partitions(client, list(names))
            found = await asking.offsets(client, partitions, timestamp_ms)
            offsets: dict[TopicPartition, int | None] = {}
            for topic, indexes in partitions.items():
                for index in indexes:
                    partition = TopicPartition(topic, index)
                    if partition not in found:
                        raise _no_leader(partition)
                    offsets[partition] = found[partition] if found[partition] >= 0 else None
            return offsets

        return self._ask(work)

    def create(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Create the topic. Raises JobError if it exists."""
        self._ask(lambda client: asking.create_topic(client, name, partitions, -1, configs))

    def _ask(self, work: Callable[[AdminClient], Awaitable[T]]) -> T:
        return run_admin(self._bootstrap, work)


def run_admin(bootstrap: KafkaServers, work: Callable[[AdminClient], Awaitable[T]]) -> T:
    """Return the result of `work`, run over a new connection. Raises JobError."""

    async def run() -> T:
        async with AdminClient(bootstrap) as client:
            return await work(client)

    try:
        return run_interruptibly(run())
    except ValueError as error:
        raise JobError(f"bootstrap: {error}", "BAD_BOOTSTRAP") from None
    except UnsupportedSecurity as error:
        raise JobError(str(error), UNSUPPORTED) from None
    except AdminError as error:
        raise JobError(str(error), error.code) from error
    except Unreachable as error:
        raise JobError(str(error), "UNREACHABLE") from error


def _unknown(name: str) -> JobError:
    return JobError(f"topic {name!r} does not exist; see `gateway topic list`", "UNKNOWN_TOPIC")


def _denied(name: str) -> JobError:
    text = f"topic {name!r}: the login may not describe it; see `gateway acl explain`"
    return JobError(text, ErrorCode.topic_authorization_failed.name.upper())


def no_topic() -> JobError:
    return JobError("no topic is named, and no topic matches the pattern", "NO_TOPIC")


def _id_of(topic: Any) -> str | None:
    """Return the id in a topic of a Metadata reply, or None if the broker assigns none."""
    topic_id = getattr(topic, "topic_id", None)
    return None if topic_id is None else str(topic_id)


def _no_leader(partition: TopicPartition) -> JobError:
    return JobError(f"{partition}: no leader answers for its offsets now; retry", "NO_LEADER")


async def _partitions(client: AdminClient, names: Sequence[str]) -> dict[str, list[int]]:
    answer = await client.metadata(names)
    found: dict[str, list[int]] = {}
    for topic in answer.topics:
        if topic.error_code.value:
            transient = topic.error_code.name == "leader_not_available"
            code = "NO_LEADER" if transient else "UNKNOWN_TOPIC"
            raise JobError(f"topic {topic.name!r}: {topic.error_code.name}", code)
        found[topic.name] = sorted(each.partition_index for each in topic.partitions)
    return found
