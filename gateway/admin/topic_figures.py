"""The size, records and rate of partitions, in a bounded number of requests for all of them.

Kafka's protocol has all of it, so these figures are the same at a gateway and at Apache Kafka:

- the size is the bytes of all copies, from DescribeLogDirs of every broker;
- records are the offsets between start and end, so an upper bound for compacted topics;
- the rate counts the records whose timestamps are of the last minute, by ListOffsets.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from gateway.admin.client import AdminClient, AdminError, Broker, Place, Unreachable
from gateway.admin.topics import EARLIEST, LATEST, LOOK_RETRY_S_MAX, Row, offsets
from gateway.core import figures as formulas

_DESCRIBE_LOG_DIRS: Final = 35
_OFFSETS_AT_ONCE: Final = 10_000  # partitions in one request
_SIZES_AT_ONCE: Final = 2_000  # a gateway reads the metadata of their ledgers, within 10 s
RATE_S: Final = 60
"""The time for which records count for the rate."""


class Figures(NamedTuple):
    """The figures of one partition, or of a topic. None is unknown."""

    size_bytes: int | None
    records: int | None
    records_per_s: float | None


UNKNOWN: Final = Figures(None, None, None)


async def figures(
    client: AdminClient, places: Sequence[Place], now_ms: int
) -> dict[Place, Figures]:
    """Return the figures of each of these partitions; `now_ms` is the time of this machine."""
    sizes = await stored_sizes(client, places)
    starts = await offsets_at(client, places, EARLIEST)
    ends = await offsets_at(client, places, LATEST)
    recent = await offsets_at(client, places, now_ms - 1000 * RATE_S)
    return {
        place: figures_of(sizes.get(place), starts.get(place), ends.get(place), recent.get(place))
        for place in places
    }


def figures_of(
    size_bytes: int | None, start: int | None, end: int | None, recent: int | None
) -> Figures:
    """Return the figures of a partition. `recent` is its first offset of the last minute, or -1."""
    if start is None or end is None:
        return Figures(size_bytes, None, None)
    records = max(0, end - start)
    if recent is None:
        return Figures(size_bytes, records, None)
    written = 0 if recent < 0 else max(0, end - max(recent, start))
    return Figures(size_bytes, records, formulas.rate(written, RATE_S))


def total(parts: Iterable[Figures]) -> Figures:
    """Return the figures of all these partitions together. One that is unknown makes the sum so."""
    listed = list(parts)
    rate = formulas.total(each.records_per_s for each in listed)
    return Figures(
        formulas.total(each.size_bytes for each in listed),
        formulas.total(each.records for each in listed),
        None if rate is None else round(float(rate), 3),
    )


def as_row(found: Figures) -> Row:
    return found._asdict()


async def offsets_at(
    client: AdminClient, places: Sequence[Place], timestamp: int
) -> dict[Place, int]:
    """Return offsets as `topics.offsets` does, in requests of a bounded size."""
    found: dict[Place, int] = {}
    for some in _portions(places, _OFFSETS_AT_ONCE):
        found |= await offsets(client, _by_topic(some), timestamp, retry_s_max=LOOK_RETRY_S_MAX)
    return found


async def stored_sizes(client: AdminClient, places: Sequence[Place]) -> dict[Place, int]:
    """Return the bytes of all copies of each partition, as the brokers report them.

    A partition that no broker reports is left out. If one of the brokers does not answer, no size
    is known: it may have copies of each.
    """
    if not places:
        return {}
    brokers = await client.brokers()
    answers = await asyncio.gather(*[_sizes_at(client, broker, places) for broker in brokers])
    found: Counter[Place] = Counter()
    for sizes in answers:
        if sizes is None:
            return {}
        for place, size in sizes.items():
            found[place] += size
    return dict(found)


async def _sizes_at(
    client: AdminClient, broker: Broker, places: Sequence[Place]
) -> Mapping[Place, int] | None:
    """Return the bytes that one broker reports for each partition; None if it reports none."""
    found: Counter[Place] = Counter()
    for some in _portions(places, _SIZES_AT_ONCE):
        topics = [
            {"topic": name, "partitions": indexes} for name, indexes in _by_topic(some).items()
        ]
        try:
            answer = await client.at_broker(broker, _DESCRIBE_LOG_DIRS, _with_topics(topics))
        except (AdminError, Unreachable):
            return None
        if getattr(answer, "error_code", None) is not None and answer.error_code.value:
            return None
        for place, size in _sizes_in(answer):
            found[place] += size
    return found


def _with_topics(topics: list[dict[str, Any]]) -> Callable[[int], dict[str, Any]]:
    def fields(_: int) -> dict[str, Any]:
        return {"topics": topics}

    return fields


def _sizes_in(answer: Any) -> Iterator[tuple[Place, int]]:
    for topic in (topic for directory in answer.results for topic in directory.topics):
        for each in topic.partitions:
            if not each.is_future_key:
                yield (topic.name, each.partition_index), each.partition_size


def _portions(places: Sequence[Place], size: int) -> Iterator[Sequence[Place]]:
    for at in range(0, len(places), size):
        yield places[at : at + size]


def _by_topic(places: Iterable[Place]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for name, index in places:
        topics.setdefault(name, []).append(index)
    return topics
