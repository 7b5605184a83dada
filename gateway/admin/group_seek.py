"""`gateway group seek`: plans and commits new offsets of a group, and undoes a seek.

A seek stores the offsets that it replaces in the metadata of its commits. So any broker keeps the
replaced offsets until the group commits again. Source: Kafka's kafka-consumer-groups.sh
--reset-offsets.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from gateway.admin.client import AdminClient, AdminError, Place
from gateway.admin.groups import (
    Committed,
    commit,
    committed,
    delete_offsets,
    find_group,
    no_such_group,
    state_by_new_protocol,
)
from gateway.admin.notation import SeekTarget
from gateway.admin.topics import EARLIEST, LATEST, Row, offsets

METADATA_SIZE_MAX = 4096  # Kafka's default of offset.metadata.max.bytes
_MARK = "gateway-seek:"
_LATEST_MS = 9_999_999_999_999  # a time with as many digits as any until the year 2286
_IDLE = ("Empty", "Dead", "")


class Step(NamedTuple):
    """The move of one partition. If `target` is None, its committed offset is deleted."""

    place: Place
    current: Committed | None
    target: Committed | None
    remark: str = ""

    @property
    def changes(self) -> bool:
        return self.current != self.target


class Scope(NamedTuple):
    """The partitions to move, by topic.

    A topic with an empty list stands for all partitions of the topic. A scope without topics stands
    for all partitions with a committed offset.
    """

    topics: Mapping[str, Sequence[int]] = {}


# plans


async def require_idle(client: AdminClient, group: str) -> bool:
    """Check that the group has no members.

    Returns False if the group does not exist. Raises AdminError if the group has members.
    """
    state: str | None
    try:
        state = (await find_group(client, group)).group_state
    except AdminError as error:
        if error.code != "GROUP_ID_NOT_FOUND":
            raise
        state = await state_by_new_protocol(client, group)
    if state is None:
        return False
    if state not in _IDLE:
        raise AdminError(
            f"Offsets can only be moved while group '{group}' is inactive, but its state is "
            f"{state}; stop its consumers first.",
            "NON_EMPTY_GROUP",
        )
    return True


async def plan(client: AdminClient, group: str, scope: Scope, target: SeekTarget) -> list[Step]:
    """Plan the moves to `target`, by topic and partition. Raises AdminError."""
    exists = await require_idle(client, group)
    if not exists and not scope.topics:
        raise no_such_group(group)
    current = await committed(client, group) if exists else {}
    places = await _places(client, scope, current)
    if not places:
        raise AdminError(f"Group '{group}' has no offsets to move.", "NO_OFFSETS")
    wanted: dict[Place, int] = {}
    if target.kind in ("offset", "shift"):
        wanted = {place: _counted(place, current.get(place), target) for place in places}
    elif target.kind == "current":
        wanted = {place: current[place].offset for place in places if place in current}
    elif target.kind == "time":
        found = await offsets(client, _by_topic(places), target.number)
        wanted = {place: at for place, at in found.items() if at >= 0}
    return await _steps(client, places, current, wanted, target.kind)


def _counted(place: Place, current: Committed | None, target: SeekTarget) -> int:
    if target.kind == "offset":
        return target.number
    if current is None:
        name = f"{place[0]}-{place[1]}"
        raise AdminError(
            f"Cannot shift {name}: nothing is committed for it; leave it out with --topic.",
            "NO_OFFSETS",
        )
    return current.offset + target.number


async def plan_offsets(client: AdminClient, group: str, wanted: Mapping[Place, int]) -> list[Step]:
    """Plan the moves to these offsets. Raises AdminError."""
    exists = await require_idle(client, group)
    current = await committed(client, group) if exists else {}
    await _places(client, Scope(_by_topic(wanted)), current)
    return await _steps(client, sorted(wanted), current, wanted, "offset")


async def _places(
    client: AdminClient, scope: Scope, current: Mapping[Place, Committed]
) -> list[Place]:
    """Return the partitions in `scope`. Raises AdminError if a partition does not exist."""
    if not scope.topics:
        return sorted(current)
    answer = await client.metadata(sorted(scope.topics))
    known = {topic.name: topic for topic in answer.topics if not topic.error_code.value}
    places: list[Place] = []
    for name, indexes in sorted(scope.topics.items()):
        if name not in known:
            raise AdminError(f"Topic '{name}' does not exist.", "UNKNOWN_TOPIC_OR_PARTITION")
        there = {each.partition_index for each in known[name].partitions}
        for index in indexes:
            if index not in there:
                raise AdminError(
                    f"Topic '{name}' has no partition {index}; it has {len(there)}.",
                    "UNKNOWN_TOPIC_OR_PARTITION",
                )
        places += [(name, index) for index in sorted(indexes or there)]
    return places


async def _steps(
    client: AdminClient,
    places: Sequence[Place],
    current: Mapping[Place, Committed],
    wanted: Mapping[Place, int],
    kind: str,
) -> list[Step]:
    """Return the moves to the wanted offsets, limited to the start and end of each log.

    A partition without a wanted offset moves to the start of the log if `kind` is "earliest", and
    to the end otherwise.
    """
    starts = await offsets(client, _by_topic(places), EARLIEST)
    ends = await offsets(client, _by_topic(places), LATEST)
    steps: list[Step] = []
    for place in places:
        if place not in starts or place not in ends:
            name = f"{place[0]}-{place[1]}"
            raise AdminError(
                f"The start and end of {name} are unknown: it has no leader now; try again.",
                "LEADER_NOT_AVAILABLE",
            )
        low, high = starts[place], ends[place]
        offset = wanted.get(place, low if kind == "earliest" else high)
        remark = ""
        if place not in wanted and kind == "time":
            remark = "no record is that new; moved to the end"
        if place not in wanted and kind == "current":
            remark = "no offset was committed; moved to the end"
        if kind != "current" and not low <= offset <= high:
            remark = f"{offset} is {'before the start' if offset < low else 'beyond the end'}"
            offset = min(max(offset, low), high)
        now = current.get(place)
        keeps = now is not None and now.offset == offset
        if now is not None and not keeps and not fits_undo(now):
            size = f"an undo cannot restore its metadata of {len(now.metadata)} characters"
            remark = f"{remark}; {size}" if remark else size
        steps.append(Step(place, now, now if keeps else Committed(offset), remark))
    return steps


# execution


async def execute(client: AdminClient, group: str, steps: Iterable[Step], now_ms: int) -> None:
    """Commit the moves. Raises AdminError.

    The metadata of each commit stores the commit that the move replaces.
    """
    moves = [step for step in steps if step.changes]
    await commit(
        client,
        group,
        {
            step.place: step.target._replace(metadata=remember(step.current, now_ms))
            for step in moves
            if step.target is not None
        },
    )
    await delete_offsets(client, group, [step.place for step in moves if step.target is None])


async def undo(client: AdminClient, group: str, steps: Iterable[Step]) -> None:
    """Commit the moves of an undo, with the offsets and metadata from before the seek."""
    moves = list(steps)
    back = {step.place: step.target for step in moves if step.target is not None}
    await commit(client, group, back)
    await delete_offsets(client, group, [step.place for step in moves if step.target is None])


def remember(replaced: Committed | None, now_ms: int) -> str:
    """Return the metadata of a commit that replaces `replaced`.

    The metadata lists the replaced commits of all seeks so far, newest first. The oldest are
    dropped if the metadata would be too large.
    """
    entry: dict[str, Any] = {"at_ms": now_ms, "offset": -1}
    before: list[dict[str, Any]] = []
    if replaced is not None:
        entry["offset"] = replaced.offset
        entry["leader_epoch"] = replaced.leader_epoch
        seeks = remembered(replaced.metadata)
        if seeks is None:
            entry["metadata"] = replaced.metadata
        else:
            before = seeks
    if len(_encode([entry])) > METADATA_SIZE_MAX:
        del entry["metadata"]
    while before and len(_encode([entry, *before])) > METADATA_SIZE_MAX:
        before = before[:-1]
    return _encode([entry, *before])


def fits_undo(replaced: Committed) -> bool:
    """Return whether `remember` keeps the metadata of this commit."""
    if remembered(replaced.metadata) is not None:
        return True
    entries = remembered(remember(replaced, _LATEST_MS))
    return entries is not None and "metadata" in entries[0]


def remembered(metadata: str) -> list[dict[str, Any]] | None:
    """Return the commits that the seeks up to this commit replaced, newest first.

    Returns None if `metadata` was not written by a seek.
    """
    if not metadata.startswith(_MARK):
        return None
    try:
        found: Any = json.loads(metadata.removeprefix(_MARK))
    except ValueError:
        return None
    if not isinstance(found, list) or not all(map(_is_entry, cast("list[Any]", found))):
        return None
    return cast("list[dict[str, Any]]", found) or None


def _is_entry(found: Any) -> bool:
    return isinstance(found, dict) and isinstance(cast("dict[str, Any]", found).get("offset"), int)


def replaced_by(seek: str) -> Committed | None:
    """Return the commit that the seek with this metadata replaced.

    Returns None if the partition had no committed offset.
    """
    entries = remembered(seek)
    assert entries is not None
    entry, before = entries[0], entries[1:]
    if entry["offset"] < 0:
        return None
    metadata = _encode(before) if before else entry.get("metadata", "")
    return Committed(entry["offset"], entry.get("leader_epoch", -1), metadata)


def _encode(entries: list[dict[str, Any]]) -> str:
    return _MARK + json.dumps(entries, ensure_ascii=False, separators=(",", ":"))


async def plan_undo(
    client: AdminClient, group: str, scope: Scope, seeks: Mapping[Place, str] | None = None
) -> list[Step]:
    """Plan the moves back to before the last seek. Raises AdminError.

    `seeks` contains the metadata of the last seek of each partition, read from the history. If
    `seeks` is None, the current commits are used. Then partitions whose consumers have committed
    since the seek are left out.
    """
    if not await require_idle(client, group):
        raise no_such_group(group)
    current = await committed(client, group)
    if seeks is None:
        seeks = {
            place: each.metadata
            for place, each in current.items()
            if remembered(each.metadata) is not None
        }
    steps = [
        Step(place, current.get(place), replaced_by(metadata))
        for place, metadata in sorted(seeks.items())
        if within(scope, place)
    ]
    if not steps:
        raise AdminError(
            f"There is no seek of group '{group}' to undo, or its consumers have committed since: "
            "`gateway group restore --at TIME` goes back by the history.",
            "NOTHING_TO_UNDO",
        )
    return steps


async def plan_restore(
    client: AdminClient, group: str, scope: Scope, then: Mapping[Place, Committed]
) -> list[Step]:
    """Plan the moves to exactly these commits. Offsets of other partitions are deleted."""
    exists = await require_idle(client, group)
    current = await committed(client, group) if exists else {}
    return [
        Step(place, current.get(place), then.get(place))
        for place in sorted({*current, *then})
        if within(scope, place)
    ]


def within(scope: Scope, place: Place) -> bool:
    indexes = scope.topics.get(place[0])
    return not scope.topics or (indexes is not None and (not indexes or place[1] in indexes))


def rows(group: str, steps: Iterable[Step]) -> list[Row]:
    """Return the rows that show these moves."""
    return [
        {
            "group": group,
            "topic": step.place[0],
            "partition": step.place[1],
            "current_offset": None if step.current is None else step.current.offset,
            "new_offset": None if step.target is None else step.target.offset,
            "remark": step.remark or None,
        }
        for step in steps
    ]


def _by_topic(places: Iterable[Place]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for name, index in places:
        found.setdefault(name, []).append(index)
    return found
