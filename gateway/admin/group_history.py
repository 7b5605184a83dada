"""`gateway group history` and `restore`: the commits of a group, read from its log.

The history is the log of commits, whose closed segments are kept for a week. The log is read from
the metadata store and the bookies, not from a gateway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple
from uuid import UUID

from gateway.admin.client import AdminError, Place
from gateway.admin.group_seek import Scope, remembered, within
from gateway.admin.groups import Committed, no_such_group
from gateway.admin.ledger_owners import read_topic_names
from gateway.admin.notation import write_time
from gateway.admin.storage import Storage
from gateway.admin.topics import Row
from gateway.groups.stored_membership import decode_membership
from ledger.streams.plain_log import PlainLogs
from subscriptions.committed_offset import CommittedOffset, TopicIdPartition
from subscriptions.segments.log_store import SubscriptionLogStore
from subscriptions.store import OffsetChange, SubscriptionHistory, offsets_at


class Past(NamedTuple):
    """The history of a group, with a function that returns the name of a topic.

    The function returns None for a deleted topic.
    """

    group: str
    history: SubscriptionHistory
    topic: Callable[[UUID], str | None]


async def read_past(storage: Storage, group: str) -> Past:
    """Read the history of a group.

    Raises AdminError if the group does not exist, or if its store keeps no history.
    """
    store = SubscriptionLogStore(storage.store, PlainLogs(storage.client), storage.clock)
    history = await store.history(group)
    if not history.changes:
        if not (await store.read(group)).exists:
            raise no_such_group(group)
        raise AdminError(
            f"Group '{group}' has no history: its offsets are not in log segments. Start all "
            "gateways of the cluster with --log-segment-based-subscriptions-store-enabled; then "
            "each commit is kept for a week.",
            "NO_HISTORY",
        )
    names = await read_topic_names(storage.store)
    return Past(group, history, names.get)


def rows(past: Past, scope: Scope, since_ms: int, newest: int) -> list[Row]:
    """Return the newest changes as rows, oldest first.

    Each row contains the difference from the previous committed offset of its partition.
    """
    last: dict[TopicIdPartition, CommittedOffset] = dict(past.history.offsets)
    found: list[Row] = []
    for change in past.history.changes:
        before = None if change.key is None else last.get(change.key)
        if change.key is not None:
            if change.committed is None:
                last.pop(change.key, None)
            else:
                last[change.key] = change.committed
        if change.time_ms >= since_ms and _wanted(past, scope, change):
            found.append(_row(past, change, before))
    return found[-newest:] if newest else found


def _wanted(past: Past, scope: Scope, change: OffsetChange) -> bool:
    if not scope.topics:
        return True
    if change.key is None:
        return False
    name = past.topic(change.key.topic_id)
    return name is not None and within(scope, (name, change.key.partition))


def _row(past: Past, change: OffsetChange, before: CommittedOffset | None) -> Row:
    row: Row = {"time": write_time(change.time_ms), "topic": None, "partition": None}
    if change.key is None:
        return {**row, "offset": None, "change": None, "note": _membership(past, change)}
    name = past.topic(change.key.topic_id)
    row["topic"] = name or str(change.key.topic_id)
    row["partition"] = change.key.partition
    note = None if name is not None else "the topic is deleted"
    if change.committed is None:
        return {**row, "offset": None, "change": None, "note": note or "removed"}
    offset = change.committed.offset
    moved = None if before is None else offset - before.offset
    if remembered(change.committed.metadata) is not None:
        note = note or "seek"
    return {**row, "offset": offset, "change": moved, "note": note}


def _membership(past: Past, change: OffsetChange) -> str:
    membership = decode_membership(change.note or b"", f"group {past.group!r}").membership
    members = len(membership.members)
    return f"generation {membership.generation}: {members} member{'' if members == 1 else 's'}"


def positions_then(past: Past, at_ms: int) -> dict[Place, Committed]:
    """Return the commits at that time, for topics that still exist. Raises AdminError."""
    found = offsets_at(past.history, at_ms)
    if found is None:
        first = write_time(past.history.since_ms)
        raise AdminError(
            f"The history of group '{past.group}' begins at {first}; pass a later --at.",
            "NO_HISTORY",
        )
    return {
        (name, key.partition): Committed(
            committed.offset, committed.leader_epoch, committed.metadata
        )
        for key, committed, name in _named(past, found.items())
    }


def _named(
    past: Past, offsets: Iterable[tuple[TopicIdPartition, CommittedOffset]]
) -> Iterable[tuple[TopicIdPartition, CommittedOffset, str]]:
    for key, committed in offsets:
        name = past.topic(key.topic_id)
        if name is not None:
            yield key, committed, name


def last_seeks(past: Past, scope: Scope) -> dict[Place, str]:
    """Return the metadata of the last seek of each partition, as `replaced_by` expects it."""
    found: dict[Place, str] = {}
    for change in past.history.changes:
        if change.key is None or change.committed is None:
            continue
        name = past.topic(change.key.topic_id)
        place = (name or "", change.key.partition)
        metadata = change.committed.metadata
        if name is not None and within(scope, place) and remembered(metadata) is not None:
            found[place] = metadata
    return found
