"""Lists topics by name or pattern, and describes one, with their figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from gateway.admin.client import AdminClient, AdminError, Place
from gateway.admin.segments import count_segments, from_storage
from gateway.admin.topic_figures import UNKNOWN, Figures, as_row, figures, total
from gateway.admin.topics import Row, describe_topic
from gateway.core.figures import by_size

_WILD: Final = frozenset("*?[")
_SEGMENTS_S_MAX: Final = 2.0
_ORDERS: Final = {"size": "size_bytes", "rate": "records_per_s"}


async def list_matching(client: AdminClient, globs: Sequence[str], internal: bool) -> list[Row]:
    """List the topics by name: all, or those that match one of the patterns.

    Kafka's own topics are listed with `internal`, and if they are named. Raises AdminError if a
    named topic does not exist; a pattern may match none.
    """
    return [
        {"name": topic.name, "partitions": len(topic.partitions), "internal": topic.is_internal}
        for topic in await _matching(client, globs, internal)
    ]


async def list_measured(
    client: AdminClient, globs: Sequence[str], internal: bool, order: str, now_ms: int
) -> list[Row]:
    """List topics as `list_matching` does, with their figures, by `name`, `size` or `rate`."""
    topics = await _matching(client, globs, internal)
    places = [place for topic in topics for place in _places(topic)]
    measured = await figures(client, places, now_ms)
    rows = [
        {
            "name": topic.name,
            "partitions": len(topic.partitions),
            "internal": topic.is_internal,
            **as_row(total(measured[place] for place in _places(topic))),
        }
        for topic in topics
    ]
    return in_order(rows, order)


def in_order(rows: list[Row], order: str) -> list[Row]:
    """Sort rows with names: the largest `size` or `rate` first, unknown ones last."""
    key = _ORDERS.get(order)

    def rank(row: Mapping[str, Any]) -> tuple[float, str]:
        return by_size(0 if key is None else row[key], row["name"])

    return sorted(rows, key=rank)


async def _matching(client: AdminClient, globs: Sequence[str], internal: bool) -> list[Any]:
    answer = await client.metadata(None)
    topics = sorted(answer.topics, key=lambda each: each.name)
    if not globs:
        return [each for each in topics if internal or not each.is_internal]
    named = {glob for glob in globs if not _WILD.intersection(glob)}
    for name in sorted(named.difference(each.name for each in topics)):
        raise AdminError(f"Topic '{name}' does not exist.", "UNKNOWN_TOPIC_OR_PARTITION")
    patterns = [glob for glob in globs if glob not in named]
    return [
        each
        for each in topics
        if each.name in named
        or ((internal or not each.is_internal) and _is_like(each.name, patterns))
    ]


def _is_like(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _places(topic: Any) -> list[Place]:
    return [(topic.name, each.partition_index) for each in topic.partitions]


async def describe_measured(client: AdminClient, name: str, now_ms: int) -> Row:
    """Return a topic as `describe_topic` does, with the figures of it and of its partitions.

    The number of segments is None if the ledgers are not within reach.
    """
    found = await describe_topic(client, name)
    indexes = [row["partition"] for row in found["partitions"]]
    measured = await figures(client, [(name, index) for index in indexes], now_ms)
    counts = await _segments(client, found, indexes)
    found["partitions"] = [
        {**row, **as_row(_of(measured, name, row)), "segments": counts.get(row["partition"])}
        for row in found["partitions"]
    ]
    whole = as_row(total(_of(measured, name, row) for row in found["partitions"]))
    segments = None if counts.keys() != set(indexes) else sum(counts.values())
    return {**found, **whole, "segments": segments}


def _of(measured: Mapping[Place, Figures], name: str, row: Row) -> Figures:
    return measured.get((name, row["partition"]), UNKNOWN)


async def _segments(client: AdminClient, topic: Row, indexes: Sequence[int]) -> dict[int, int]:
    topic_id = topic["topic_id"]
    if topic_id is None or not indexes:
        return {}
    counts = await from_storage(
        client, lambda storage: count_segments(storage, topic_id, indexes), _SEGMENTS_S_MAX
    )
    return counts or {}
