"""The figures of topics and groups over all gateways, from the rows that each sent. Pure.

A partition counts once, even if two gateways sent it while it moved: the row of its leader counts.
What no gateway sent is unknown, and makes the sum unknown. The last rows of a silent gateway count
in sums, but not in rates, which are of the past.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from gateway.core.figures import by_size, lag_in_records, total
from gateway.figures.held import HeldShare
from gateway.figures.rows import READ_ONLY, GroupRow, PartitionFigures

LeaderOf = Callable[[int], int]
"""Returns the node id of the leader of a partition of one topic, -1 if there is none."""

Ends = Mapping[int, "HeldPartition"]


class HeldPartition(NamedTuple):
    """A partition and the gateway that sent its figures."""

    node_id: int
    figures: PartitionFigures
    silent: bool


class TopicFigures(NamedTuple):
    """A topic of the cluster. None is unknown."""

    name: str
    internal: bool
    partitions: int
    records: int | None
    size_bytes: int | None
    segments: int | None
    records_per_s: float | None
    bytes_per_s: float | None
    blocked_partitions: int
    lost_records: int
    known_partitions: int  # of which some gateway sent figures
    silent: bool  # some figures are the last ones of a gateway that is silent now


class GroupFigures(NamedTuple):
    """A group of the cluster. None is unknown."""

    group: str
    state: str
    type: str
    protocol: str
    members: int
    partitions: int | None
    topics: tuple[str, ...]
    lag: int | None
    read_per_s: float | None
    seen_ms: int | None
    silent: bool


TOPIC_ORDERS: Final[Mapping[str, Callable[[TopicFigures], tuple[float, str]]]] = {
    "name": lambda row: (0.0, row.name),
    "rate": lambda row: by_size(row.records_per_s, row.name),
    "size": lambda row: by_size(row.size_bytes, row.name),
    "records": lambda row: by_size(row.records, row.name),
}
GROUP_ORDERS: Final[Mapping[str, Callable[[GroupFigures], tuple[float, str]]]] = {
    "name": lambda row: (0.0, row.group),
    "lag": lambda row: by_size(row.lag, row.group),
}


def merge_partitions(
    topic: str, shares: Sequence[HeldShare], leader_of: LeaderOf
) -> dict[int, HeldPartition]:
    """Return each partition of a topic once, with the figures of its leader."""
    found: dict[int, HeldPartition] = {}
    for share in shares:
        silent = share.silent is not None
        for row in _rows_of(topic, share):
            if row.partition not in found or leader_of(row.partition) == share.node_id:
                found[row.partition] = HeldPartition(share.node_id, row, silent)
    return found


def _rows_of(topic: str, share: HeldShare) -> Iterator[PartitionFigures]:
    for part in share.topics.get(topic, {}).values():
        yield from part.partitions


def topic_figures(
    name: str,
    partitions: int,
    held: Mapping[int, HeldPartition],
    *,
    internal: bool,
    has_streams: bool,
    silent: bool,
) -> TopicFigures:
    """Return the figures of a topic. `silent` is whether any gateway is silent."""
    rows = [each.figures for each in held.values() if each.figures.partition < partitions]
    complete = len(rows) == partitions or not has_streams
    stale = any(each.silent for each in held.values()) or (silent and not complete)
    rated = complete and not stale
    return TopicFigures(
        name=name,
        internal=internal,
        partitions=partitions,
        records=total(row.records for row in rows) if complete else None,
        size_bytes=total(row.size_bytes for row in rows) if complete else None,
        segments=total(row.segments for row in rows) if complete else None,
        records_per_s=_rounded(total(row.records_per_s for row in rows)) if rated else None,
        bytes_per_s=_rounded(total(row.bytes_per_s for row in rows)) if rated else None,
        blocked_partitions=sum(row.blocked > 0 for row in rows),
        lost_records=sum(row.lost_records for row in rows),
        known_partitions=len(rows) if has_streams else partitions,
        silent=stale,
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(float(value), 3)


# -- groups -----------------------------------------------------------------------------------


class HeldGroup(NamedTuple):
    """A group once, and whether one of the gateways that sent it is silent."""

    row: GroupRow
    silent: bool


def merge_group(name: str, shares: Iterable[HeldShare]) -> HeldGroup | None:
    """Return a group once: as the gateway has it that claimed it, or a read-only one joined."""
    found: HeldGroup | None = None
    for share in shares:
        row = share.groups.get(name)
        if row is None:
            continue
        each = HeldGroup(row, share.silent is not None)
        found = each if found is None else _merged(found, each)
    return found


def _merged(known: HeldGroup, other: HeldGroup) -> HeldGroup:
    if known.row.type == other.row.type == READ_ONLY:
        return HeldGroup(_joined(known.row, other.row), known.silent or other.silent)
    if (known.row.type == READ_ONLY) != (other.row.type == READ_ONLY):
        return known if other.row.type == READ_ONLY else other
    # An idle group may have been claimed by another gateway meanwhile, which has its offsets.
    better = (other.row.claimed, not other.silent) > (known.row.claimed, not known.silent)
    return other if better else known


def _joined(one: GroupRow, two: GroupRow) -> GroupRow:
    """Join the parts of a read-only group. A partition that both have counts once."""
    positions = None
    if one.positions is not None and two.positions is not None:
        positions = {
            topic: _places(one.positions.get(topic, ()), two.positions.get(topic, ()))
            for topic in sorted({*one.positions, *two.positions})
        }
    clients = tuple(sorted({*one.clients, *two.clients}))
    rate = total([one.read_per_s, two.read_per_s])
    return one._replace(
        positions=positions,
        clients=clients,
        members=max(len(clients), one.members, two.members),
        read_per_s=_rounded(rate),
        seen_ms=max(one.seen_ms or 0, two.seen_ms or 0) or None,
    )


def _places(*parts: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted({partition: at for part in parts for partition, at in part}.items()))


def group_figures(held: HeldGroup, ends_of: Callable[[str], Ends]) -> GroupFigures:
    """Return the figures of a group. `ends_of` returns the partitions of a topic."""
    row = held.row
    lags: list[int | None] = []
    silent = held.silent
    positions = row.positions or {}
    for topic, places in positions.items():
        ends = ends_of(topic)
        for partition, offset in places:
            end = ends.get(partition)
            if end is None:
                lags.append(None)
                continue
            lags.append(lag_in_records(offset, end.figures.start, end.figures.end))
            silent = silent or end.silent
    return GroupFigures(
        group=row.group,
        state=row.state,
        type=row.type,
        protocol=row.protocol,
        members=row.members,
        partitions=None if row.positions is None else len(lags),
        topics=tuple(positions),
        lag=total(lags) if lags else None,
        read_per_s=None if held.silent else row.read_per_s,
        seen_ms=row.seen_ms,
        silent=silent,
    )
