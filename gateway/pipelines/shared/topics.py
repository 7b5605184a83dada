"""Topics as a job's driver sees them: which there are, where they begin and end, their settings."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from gateway.admin import topics as asking
from gateway.admin.client import AdminClient, AdminError, Unreachable
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.partitions import TopicPartition

T = TypeVar("T")


class OffsetBounds(NamedTuple):
    """The first offset there is, and the one that the next record gets."""

    earliest: int
    latest: int


class TopicDescription(NamedTuple):
    """`topic_id` tells one life of a topic from the next; `configs` are what it overrides."""

    topic_id: str | None
    partitions: int
    configs: Mapping[str, str]


class Topics:
    """Those of one cluster. Each call makes a connection of its own; raises JobError."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def named(self, names: Sequence[str] = (), pattern: str = "") -> list[str]:
        """`names` and all that match `pattern` wholly, sorted; internal ones only by name.

        Raises JobError when a name does not exist, or nothing is named or matched.
        """

        async def work(client: AdminClient) -> list[asking.Row]:
            return await asking.list_topics(client, internal=True)

        known = {row["name"]: row["internal"] for row in self._ask(work)}
        for name in names:
            if name not in known:
                raise JobError(f"topic {name!r} does not exist", "UNKNOWN_TOPIC")
        found = set(names)
        if pattern:
            try:
                wanted = re.compile(pattern)
            except re.error as error:
                raise JobError(f"pattern {pattern!r}: {error}", "BAD_PATTERN") from None
            found |= {n for n, internal in known.items() if wanted.fullmatch(n) and not internal}
        if not found:
            raise JobError("no topic is named, and none matches the pattern", "NO_TOPIC")
        return sorted(found)

    def facts(self, name: str) -> TopicDescription:
        row = self._ask(lambda client: asking.describe_topic(client, name))
        return TopicDescription(row["topic_id"], len(row["partitions"]), row["configs"])

    def settings(self, name: str) -> dict[str, str | None]:
        """Every setting of the topic as it counts, defaults too."""
        return self._ask(lambda client: asking.settings(client, name))

    def bounds(
        self, names: Iterable[str], *, committed: bool = False
    ) -> dict[TopicPartition, OffsetBounds]:
        """Of every partition; with `committed`, the latest is that of readers of such records.

        Raises JobError when one cannot be told: nothing is guessed.
        """

        async def work(client: AdminClient) -> dict[TopicPartition, OffsetBounds]:
            places = await _partitions(client, list(names))
            # The earliest first: what moves meanwhile only makes the range smaller.
            first = await asking.offsets(client, places, asking.EARLIEST)
            last = await asking.offsets(client, places, asking.LATEST, committed=committed)
            found: dict[TopicPartition, OffsetBounds] = {}
            for topic, indexes in places.items():
                for index in indexes:
                    place = TopicPartition(topic, index)
                    if place not in first or place not in last:
                        raise JobError(f"{place}: nobody can tell its offsets now", "NO_LEADER")
                    found[place] = OffsetBounds(first[place], last[place])
            return found

        return self._ask(work)

    def at_time(self, names: Iterable[str], timestamp_ms: int) -> dict[TopicPartition, int | None]:
        """The first offset not older than that, of every partition; None: there is none."""

        async def work(client: AdminClient) -> dict[TopicPartition, int | None]:
            places = await _partitions(client, list(names))
            found = await asking.offsets(client, places, timestamp_ms)
            told: dict[TopicPartition, int | None] = {}
            for topic, indexes in places.items():
                for index in indexes:
                    place = TopicPartition(topic, index)
                    if place not in found:
                        raise JobError(f"{place}: nobody can tell its offsets now", "NO_LEADER")
                    told[place] = found[place] if found[place] >= 0 else None
            return told

        return self._ask(work)

    def create(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        """The topic exists, new. Raises JobError when it existed."""
        self._ask(lambda client: asking.create_topic(client, name, partitions, -1, configs))

    def _ask(self, work: Callable[[AdminClient], Awaitable[T]]) -> T:
        return run_admin(self._bootstrap, work)


def run_admin(bootstrap: str, work: Callable[[AdminClient], Awaitable[T]]) -> T:
    """What `work` brought back over a connection of its own. Raises JobError."""

    async def run() -> T:
        async with AdminClient(bootstrap) as client:
            return await work(client)

    try:
        return asyncio.run(run())
    except ValueError as error:
        raise JobError(f"bootstrap: {error}", "BAD_BOOTSTRAP") from None
    except AdminError as error:
        raise JobError(str(error), error.code) from error
    except Unreachable as error:
        raise JobError(str(error), "UNREACHABLE") from error


async def _partitions(client: AdminClient, names: Sequence[str]) -> dict[str, list[int]]:
    answer = await client.metadata(names)
    found: dict[str, list[int]] = {}
    for topic in answer.topics:
        if topic.error_code.value:
            passes = topic.error_code.name == "leader_not_available"
            code = "NO_LEADER" if passes else "UNKNOWN_TOPIC"
            raise JobError(f"topic {topic.name!r}: {topic.error_code.name}", code)
        found[topic.name] = sorted(each.partition_index for each in topic.partitions)
    return found
