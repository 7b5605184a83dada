"""`gateway group seek`: where a group's offsets would go, how to get there, and the way back.

What a seek replaces is written into the metadata of the commits that it makes, so that any server
keeps it until the group commits again. Source: Kafka's kafka-consumer-groups.sh --reset-offsets.
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
)
from gateway.admin.notation import SeekTarget
from gateway.admin.topics import EARLIEST, LATEST, Row, offsets
from ledger.command_line.output import headings

COLUMNS = headings("group", "topic", "partition", "current_offset", "new_offset")
METADATA_SIZE_MAX = 4096  # a server's offset.metadata.max.bytes
_MARK = "gateway-seek:"
_IDLE = ("Empty", "Dead", "")


class Step(NamedTuple):
    """One partition's move. `target` None: the position is removed."""

    place: Place
    current: Committed | None
    target: Committed | None
    remark: str = ""

    @property
    def changes(self) -> bool:
        return self.current != self.target


class Scope(NamedTuple):
    """Which partitions: topics with their indexes (none: all of them); no topics: all committed."""

    topics: Mapping[str, Sequence[int]] = {}


# what would be done


async def require_idle(client: AdminClient, group: str) -> bool:
    """Nobody is in the group; False: it does not exist. Raises AdminError."""
    try:
        found = await find_group(client, group)
    except AdminError as error:
        if error.code == "GROUP_ID_NOT_FOUND":
            return False
        raise
    if found.group_state not in _IDLE:
        raise AdminError(
            f"Offsets can only be moved while group '{group}' is inactive, but its state is "
            f"{found.group_state}; stop its consumers first.",
            "NON_EMPTY_GROUP",
        )
    return True


async def plan(client: AdminClient, group: str, scope: Scope, target: SeekTarget) -> list[Step]:
    """The moves, by topic and partition. Raises AdminError."""
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
    """The moves to these very offsets. Raises AdminError."""
    exists = await require_idle(client, group)
    current = await committed(client, group) if exists else {}
    await _places(client, Scope(_by_topic(wanted)), current)
    return await _steps(client, sorted(wanted), current, wanted, "offset")


async def _places(
    client: AdminClient, scope: Scope, current: Mapping[Place, Committed]
) -> list[Place]:
    """Raises AdminError for a partition that does not exist."""
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
    """Offsets are kept between the ends of the log; what is not wanted goes to one of them."""
    starts = await offsets(client, _by_topic(places), EARLIEST)
    ends = await offsets(client, _by_topic(places), LATEST)
    steps: list[Step] = []
    for place in places:
        if place not in starts or place not in ends:
            name = f"{place[0]}-{place[1]}"
            raise AdminError(
                f"The ends of {name} cannot be told now: no gateway leads it; try again.",
                "LEADER_NOT_AVAILABLE",
            )
        low, high = starts[place], ends[place]
        offset = wanted.get(place, low if kind == "earliest" else high)
        remark = ""
        if place not in wanted and kind == "time":
            remark = "no record is that new: the end"
        if place not in wanted and kind == "current":
            remark = "nothing is committed: the end"
        if kind != "current" and not low <= offset <= high:
            remark = f"{offset} is {'before the start' if offset < low else 'beyond the end'}"
            offset = min(max(offset, low), high)
        now = current.get(place)
        keeps = now is not None and now.offset == offset
        steps.append(Step(place, now, now if keeps else Committed(offset), remark))
    return steps


# doing it


async def execute(client: AdminClient, group: str, steps: Iterable[Step], now_ms: int) -> None:
    """Every move is made, and what it replaced is remembered. Raises AdminError."""
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
    """As `execute` of steps that lead back: exactly what was there before, remembering nothing."""
    moves = list(steps)
    back = {step.place: step.target for step in moves if step.target is not None}
    await commit(client, group, back)
    await delete_offsets(client, group, [step.place for step in moves if step.target is None])


def remember(replaced: Committed | None, now_ms: int) -> str:
    """The metadata of a commit that replaces this one: newest seek first, the oldest may go."""
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


def remembered(metadata: str) -> list[dict[str, Any]] | None:
    """What the seeks behind this commit replaced, newest first; None: no seek made it."""
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
    """What the seek that left this metadata replaced; None: nothing was committed."""
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
    """The moves back to before the last seek. Raises AdminError.

    `seeks` are the metadata of the last seek of each partition, by the history; None: as they are
    committed, where nobody has committed since.
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
    """The moves to exactly these positions: what is not among them is removed."""
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
    """What is shown of the moves."""
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
