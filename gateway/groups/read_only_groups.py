"""Read-only groups, from the fetches of this gateway and the answers of the other gateways.

Each gateway keeps the last fetched offsets of the partitions that it serves. A query for a group
merges the offsets of all gateways. A group with a commit or a member takes precedence: the handlers
ask its coordinator first, and use a read-only group only for missing results.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any
from uuid import UUID

from gateway.cluster.peers import Peers
from gateway.cluster.port import Cluster
from gateway.config import ReaderLimits
from gateway.core.group_members import MemberView, State
from gateway.core.read_progress import (
    LastFetch,
    ReadGroup,
    ReadKey,
    ReadProgress,
    is_read_group,
    merge_read_groups,
)
from gateway.groups.views import GroupListing, GroupView
from gateway.topics.catalog import Catalog, Topic
from gateway.wire.fetch_request import FetchRequest
from ledger.ports.clock import Clock
from subscriptions.committed_offset import CommittedOffset, TopicIdPartition

TYPE = "read-only"
"""The type in ListGroups. DescribeGroups returns it in the place of the assignment strategy."""

_OFFSET_FETCH = 9
_PER_PART = 500  # partitions of a Fetch that are noted in one turn
_CONSUMER = "consumer"

_Offset = tuple[str | UUID, int, int]
"""Topic, partition and offset of a Fetch."""


class ReadOnlyGroups:
    """The read-only groups of one process. `note` is called for each Fetch that may be Spark's."""

    def __init__(
        self, catalog: Catalog, clock: Clock, cluster: Cluster, limits: ReaderLimits
    ) -> None:
        self._catalog = catalog
        self._clock = clock
        self._peers = Peers(cluster, clock, limits.ask_s_max)
        self._progress = ReadProgress(limits)
        catalog.on_deleted.append(self._on_deleted)
        catalog.on_forgotten.append(self._on_forgotten)

    async def _on_deleted(self, topic: Topic) -> None:
        self._progress.forget_topic(topic.topic_id)

    def _on_forgotten(self, topic: Topic) -> None:
        self._progress.forget_topic(topic.topic_id)

    def note(self, client: str, host: str, asked: FetchRequest, *, now_ms: int) -> Iterator[None]:
        """Record the offsets of a client's Fetch. Other partitions keep their last offsets.

        Yields after each part of the work.
        """
        offsets = asked.offsets()
        part = list(islice(offsets, _PER_PART))
        while self._progress.note(client, host, self._wanted(part), now_ms):
            yield
            part = list(islice(offsets, _PER_PART))
            if not part:
                break

    def _wanted(self, asked: Iterable[_Offset]) -> Iterator[tuple[ReadKey, int]]:
        for named, index, offset in asked:
            topic = self._catalog.by_name_or_id(named)
            if topic is not None and 0 <= index < topic.partitions and offset >= 0:
                yield (topic.topic_id, index), offset

    # queries

    def known(self) -> Iterator[ReadGroup]:
        """Return the groups that fetched from this gateway, the latest fetch first."""
        return self._progress.groups(self._clock.now_ms())

    def names(self) -> list[str]:
        """Return the ids of the groups that fetched from this gateway."""
        return self._progress.names(self._clock.now_ms())

    def here(self, name: str) -> ReadGroup | None:
        """Return the part of a group that fetched from this gateway, or None."""
        return self._progress.get(name, self._clock.now_ms())

    def listings(self, real: Callable[[str], bool]) -> list[GroupListing]:
        """Return the groups that fetch from this gateway, except those for which `real` is True."""
        return [
            GroupListing(name, _CONSUMER, State.STABLE, TYPE)
            for name in self._progress.names(self._clock.now_ms())
            if not real(name)
        ]

    async def find(self, name: str) -> ReadGroup | None:
        """Return the group merged from all gateways, or None if the group does not exist."""
        if not is_read_group(name):
            return None
        parts = [await self._elsewhere(name)]
        here = self._progress.get(name, self._clock.now_ms())
        if here is not None:
            parts.append([here])
        return merge_read_groups(name, (part for some in parts for part in some))

    async def describe(self, name: str) -> GroupView | None:
        """Return the group with its clients as members, and their last fetches as assignments."""
        group = await self.find(name)
        if group is None:
            return None
        held: dict[tuple[str, str], list[ReadKey]] = {who: [] for who in group.clients}
        for key, fetched in group.fetches.items():
            held.setdefault((fetched.client, fetched.host), []).append(key)
        members = tuple(
            MemberView(f"{client}@{host}", None, client, host, b"", self._assignment(keys))
            for (client, host), keys in held.items()
        )
        return GroupView(State.STABLE, _CONSUMER, TYPE, members)

    async def offsets(self, name: str) -> dict[TopicIdPartition, CommittedOffset]:
        """Return the group's last fetched offsets as committed ones. Empty for any other group."""
        group = await self.find(name)
        return {} if group is None else _as_positions(group, lambda _: "")

    def offsets_here(self, name: str) -> dict[TopicIdPartition, CommittedOffset]:
        """Return this gateway's offsets for another gateway, with the client in the metadata."""
        group = self._progress.get(name, self._clock.now_ms())
        return {} if group is None else _as_positions(group, _packed)

    async def _elsewhere(self, name: str) -> list[ReadGroup]:
        asked = {"group_id": name, "topics": None, "member_id": None, "member_epoch": -1}
        answers = await self._peers.ask(
            _OFFSET_FETCH, lambda _: {"groups": [asked], "require_stable": False}
        )
        return [_unpacked(name, group) for answer in answers.values() for group in answer.groups]

    def _assignment(self, keys: Iterable[ReadKey]) -> bytes:
        """Encode a ConsumerProtocolAssignment v0, as consumers write it."""
        topics: dict[str, list[int]] = {}
        for topic_id, index in sorted(keys):
            topic = self._catalog.by_id(topic_id)
            if topic is not None:
                topics.setdefault(topic.name, []).append(index)
        parts = [b"\0\0", len(topics).to_bytes(4, "big")]
        for name, indexes in topics.items():
            raw = name.encode()
            parts += [len(raw).to_bytes(2, "big"), raw, len(indexes).to_bytes(4, "big")]
            parts += [index.to_bytes(4, "big") for index in indexes]
        return b"".join([*parts, b"\xff\xff\xff\xff"])  # the last four bytes mean null user data


def _as_positions(
    group: ReadGroup, metadata: Callable[[LastFetch], str]
) -> dict[TopicIdPartition, CommittedOffset]:
    return {
        TopicIdPartition(*key): CommittedOffset(
            offset=fetched.offset, metadata=metadata(fetched), commit_time_ms=fetched.at_ms
        )
        for key, fetched in group.fetches.items()
    }


def _packed(fetched: LastFetch) -> str:
    return json.dumps([fetched.at_ms, fetched.client, fetched.host])


def _unpacked(name: str, answer: Any) -> ReadGroup:
    """Decode the result of another gateway's `offsets_here`. Unreadable entries are left out."""
    group = ReadGroup(name, {}, {})
    for topic in answer.topics:
        for each in topic.partitions:
            with suppress(ValueError, TypeError):
                at_ms, client, host = json.loads(each.metadata or "")
                fetched = LastFetch(each.committed_offset, int(at_ms), str(client), str(host))
                topic_id: UUID = topic.topic_id
                group.fetches[topic_id, each.partition_index] = fetched
                who = (fetched.client, fetched.host)
                group.clients[who] = max(fetched.at_ms, group.clients.get(who, 0))
    return group
