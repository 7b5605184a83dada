"""How far groups are behind: in records, and in seconds since the oldest record not yet read.

The seconds are the age of the first record at or behind the committed offset, by its timestamp. A
committed offset below the start of the log counts from the start. Requests are for many groups and
partitions at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from gateway.admin.client import AdminClient, AdminError, Broker, Place, Unreachable
from gateway.admin.consume_batches import Batch, DamagedBatch, read_records, split
from gateway.admin.groups import committed, list_groups, no_such_group
from gateway.admin.topic_figures import offsets_at
from gateway.admin.topics import EARLIEST, LATEST, LOOK_RETRY_S_MAX, Row
from gateway.core.figures import age_s, first_unread, lag_in_records
from gateway.wire.batches import CONTROL, LOG_APPEND_TIME
from gateway.wire.fetch_request import fetch_fields

_FETCH, _OFFSET_FETCH, _FIND_COORDINATOR = 1, 9, 10
_FETCH_VERSION_MAX = 12  # later ones have ids in place of names
_NAMES_UP_TO = 9  # last version of OffsetFetch with topic names
_SEVERAL_GROUPS_FROM = 8  # first version of OffsetFetch that requests several groups
_SEVERAL_KEYS_FROM = 4  # first version of FindCoordinator that requests several keys
_GROUPS_AT_ONCE: Final = 100
_PARTITIONS_AT_ONCE: Final = 100
_HEAD_BYTES: Final = 64 * 1024  # of each partition; a larger first batch is requested alone
NOT_READ_BY_OFFSETS: Final = "share"
"""Groups of this type commit nothing."""


class Lag(NamedTuple):
    """The lag of groups: a row for each committed offset, and why some rows are missing."""

    rows: list[Row]
    missing: list[AdminError]


async def group_lag(client: AdminClient, names: Sequence[str], now_ms: int) -> Lag:
    """Return the lag of these groups, or of all. Raises AdminError if one does not exist.

    `now_ms` is the time of this machine, from which ages count.
    """
    known = {row["group"]: row for row in await list_groups(client)}
    for name in names:
        if name not in known:
            raise no_such_group(name)
    chosen = [name for name in known if not names or name in names]
    groups = [name for name in chosen if known[name]["type"] != NOT_READ_BY_OFFSETS]
    found = Lag([], [])
    offsets = await _committed(client, groups, found.missing)
    found.rows.extend(await lag_rows(client, offsets, now_ms))
    return found


async def lag_rows(
    client: AdminClient, offsets: Mapping[str, Mapping[Place, int]], now_ms: int
) -> list[Row]:
    """Return the lag of groups whose committed offsets are known, by group and partition."""
    places = sorted({place for each in offsets.values() for place in each})
    starts = await offsets_at(client, places, EARLIEST)
    ends = await offsets_at(client, places, LATEST)
    rows = [
        lag_row(group, place, offset, starts.get(place), ends.get(place))
        for group in sorted(offsets)
        for place, offset in sorted(offsets[group].items())
    ]
    wanted = {(*_place(row), row["from"]) for row in rows if row["lag"]}
    times = await _times(client, wanted, ends)
    return [_with_age(row, times, now_ms) for row in rows]


def lag_row(group: str, place: Place, offset: int, start: int | None, end: int | None) -> Row:
    """Return the lag in records, and as `from` the offset of the first record not yet read."""
    return {
        "group": group,
        "topic": place[0],
        "partition": place[1],
        "current_offset": offset,
        "log_end_offset": end,
        "lag": lag_in_records(offset, start, end),
        "from": first_unread(offset, start),
    }


def _place(row: Row) -> Place:
    return row["topic"], row["partition"]


def _with_age(row: Row, times: Mapping[tuple[str, int, int], int], now_ms: int) -> Row:
    """Replace `from` by `lag_s`: 0 without lag, None if the time of the record is unknown."""
    shown = {key: value for key, value in row.items() if key != "from"}
    if row["lag"] is None:
        return {**shown, "lag_s": None}
    if not row["lag"]:
        return {**shown, "lag_s": 0.0}
    return {**shown, "lag_s": age_s(times.get((*_place(row), row["from"])), now_ms)}


# committed offsets


async def _committed(
    client: AdminClient, groups: Sequence[str], missing: list[AdminError]
) -> dict[str, dict[Place, int]]:
    """Return the committed offsets of these groups; adds to `missing` why some are unknown."""
    found = await committed_at_once(client, groups)
    for group in groups:
        if group in found:
            continue
        try:  # alone, with retries: its coordinator moved, or the server is an older one
            offsets = await committed(client, group)
        except AdminError as error:
            missing.append(AdminError(f"group {group}: {error}", error.code))
            continue
        found[group] = {place: each.offset for place, each in offsets.items()}
    return found


async def committed_at_once(
    client: AdminClient, groups: Sequence[str]
) -> dict[str, dict[Place, int]]:
    """Return the committed offsets of these groups, in requests for many groups at a time.

    A group whose coordinator does not answer at once is left out. So are all at a server that is
    older than these requests.
    """
    found: dict[str, dict[Place, int]] = {}
    for at in range(0, len(groups), _GROUPS_AT_ONCE):
        found |= await _of_some(client, groups[at : at + _GROUPS_AT_ONCE])
    return found


async def _of_some(client: AdminClient, groups: Sequence[str]) -> dict[str, dict[Place, int]]:
    """Return the committed offsets of groups whose coordinators answer at once."""
    if client.version(_FIND_COORDINATOR) < _SEVERAL_KEYS_FROM:
        return {}
    answer = await client.send(_FIND_COORDINATOR, {"key_type": 0, "coordinator_keys": list(groups)})
    led: dict[Broker, list[str]] = {}
    for each in answer.coordinators:
        if not each.error_code.value:
            led.setdefault(Broker(each.node_id, each.host, each.port), []).append(each.key)
    found: dict[str, dict[Place, int]] = {}
    for broker, here in led.items():
        found |= await _at_coordinator(client, broker, here)
    return found


async def _at_coordinator(
    client: AdminClient, broker: Broker, groups: Sequence[str]
) -> dict[str, dict[Place, int]]:
    def fields(version: int) -> dict[str, Any]:
        if version < _SEVERAL_GROUPS_FROM:
            raise AdminError("OffsetFetch takes one group", "UNSUPPORTED_VERSION")
        asked = [{"group_id": name, "topics": None, "member_epoch": -1} for name in groups]
        return {"groups": asked, "require_stable": False}

    try:
        answer = await client.at_broker(broker, _OFFSET_FETCH, fields, _NAMES_UP_TO)
    except (AdminError, Unreachable):
        return {}
    return {
        group.group_id: dict(_offsets_in(group))
        for group in answer.groups
        if not group.error_code.value
    }


def _offsets_in(group: Any) -> Iterator[tuple[Place, int]]:
    for topic in group.topics:
        for each in topic.partitions:
            if not each.error_code.value and each.committed_offset >= 0:
                yield (topic.name, each.partition_index), each.committed_offset


# the times of records

_Position = tuple[str, int, int]  # topic, partition, offset


async def _times(
    client: AdminClient, positions: Iterable[_Position], ends: Mapping[Place, int]
) -> dict[_Position, int]:
    """Return the time of the first record at or behind each position, in ms.

    One whose leader does not answer is left out. Where only markers of transactions are left, it is
    the end of time: a group is not behind.
    """
    wanted = sorted(positions)
    leaders = await client.leaders({(name, index) for name, index, _ in wanted}, LOOK_RETRY_S_MAX)
    led: dict[Broker, list[_Position]] = {}
    for position in wanted:
        leader = leaders.get(position[:2])
        if leader is not None:
            led.setdefault(leader, []).append(position)
    found: dict[_Position, int] = {}
    for leader, here in led.items():
        for some in _portions(here):
            found |= await _fetch_times(client, leader, some, ends, _HEAD_BYTES)
        for position in here:  # a first batch that is larger than what the others left
            if position not in found:
                found |= await _fetch_times(client, leader, [position], ends, 1)
    return found


def _portions(positions: Sequence[_Position]) -> Iterator[Sequence[_Position]]:
    """Yield positions for one request each, which names no partition twice."""
    waiting = list(positions)
    while waiting:
        some: dict[Place, _Position] = {}
        rest: list[_Position] = []
        for position in waiting:
            full = len(some) == _PARTITIONS_AT_ONCE or position[:2] in some
            if full:
                rest.append(position)
            else:
                some[position[:2]] = position
        yield list(some.values())
        waiting = rest


async def _fetch_times(
    client: AdminClient,
    leader: Broker,
    positions: Sequence[_Position],
    ends: Mapping[Place, int],
    bytes_max: int,
) -> dict[_Position, int]:
    fields = fetch_fields(
        positions,
        partition_bytes_max=bytes_max,
        bytes_max=bytes_max * len(positions),
        bytes_min=1,
        wait_ms=0,
        committed=False,
    )
    try:
        answer = await client.at_broker(leader, _FETCH, lambda _: fields, _FETCH_VERSION_MAX)
    except (AdminError, Unreachable):
        return {}
    by_place = {position[:2]: position for position in positions}
    found: dict[_Position, int] = {}
    for topic in answer.responses:
        for each in topic.partitions:
            position = by_place.get((topic.topic, each.partition_index))
            if position is None or each.error_code.value or not each.records:
                continue
            time_ms = record_time(bytes(each.records), position[2], ends[position[:2]])
            if time_ms is not None:
                found[position] = time_ms
    return found


NEVER_MS: Final = 2**62
"""The time of a record that is not there: only markers of transactions are left."""


def record_time(data: bytes, offset: int, end: int) -> int | None:
    """Return the time of the first record at or behind `offset` in these batches, in ms.

    Markers of transactions are passed. NEVER_MS if nothing else is left before `end`. None if no
    record was returned, or if it has no time.
    """
    last = offset - 1
    try:
        for batch in split(data, offset):
            last = batch.last_offset
            if last < offset or batch.header.attributes & CONTROL:
                continue
            time_ms = _time_in(batch, offset)
            if time_ms is not None:
                return None if time_ms < 0 else time_ms
    except DamagedBatch:
        return None
    return NEVER_MS if last + 1 >= end else None


def _time_in(batch: Batch, offset: int) -> int | None:
    """Return the time of the first record at or behind `offset`; None if the batch has none."""
    if batch.header.attributes & LOG_APPEND_TIME and batch.header.records:
        return batch.header.max_timestamp
    for records in read_records(batch, offset):
        for record in records:
            return -1 if record.timestamp is None else record.timestamp
    return None
