"""Snapshots of a bounded number of this broker's groups, for the metrics.

Loaded groups come first. An idle group is read from the store. Its snapshot stays valid for a
while, because a commit would load the group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gateway.cluster.port import GroupClaims
from gateway.config import MetricsLimits
from gateway.core.group_members import State
from gateway.groups.group_scanner import GroupScanner
from gateway.groups.loaded_groups import LoadedGroups
from gateway.groups.views import CLASSIC_GROUP, GroupState
from ledger.errors import CorruptFormat, LedgerError
from ledger.ports.clock import Clock
from subscriptions.committed_offset import CommittedOffset, TopicIdPartition
from subscriptions.store import SubscriptionsStore

_AT_ONCE = 16


class GroupSnapshot(NamedTuple):
    """The state, member count and committed offsets of one group."""

    name: str
    state: GroupState
    members: int
    offsets: Mapping[TopicIdPartition, CommittedOffset]
    kind: str = CLASSIC_GROUP


class GroupSnapshots:
    """Snapshots of groups, taken on request, with a cache of the offsets of idle groups."""

    def __init__(
        self,
        store: SubscriptionsStore,
        loaded_groups: LoadedGroups,
        scanner: GroupScanner,
        claims: GroupClaims,
        clock: Clock,
    ) -> None:
        self._store = store
        self._loaded_groups = loaded_groups
        self._scanner = scanner
        self._claims = claims
        self._clock = clock
        # The offsets of idle groups, with the monotonic time at which they were read. Only groups
        # of the last request are kept. `forget` removes a group when it is unloaded.
        self._read: dict[str, tuple[float, Mapping[TopicIdPartition, CommittedOffset]]] = {}

    async def look(self, limits: MetricsLimits) -> tuple[list[GroupSnapshot], int]:
        """Return snapshots, and the number of groups that are left out. Raises no LedgerError.

        Returns no snapshots while this broker may not answer as coordinator.
        """
        if not self._loaded_groups.serves():
            return [], 0
        found = [
            GroupSnapshot(name, each.state, each.members, each.offsets, each.kind)
            for name, each in self._loaded_groups.groups.items()
            if each.group.state is not State.DEAD
        ]
        idle, unseen = self._idle(limits.groups_max - len(found))
        read = await self._offsets(idle, limits)
        left_out = max(len(found) - limits.groups_max, 0) + unseen + len(idle) - len(read)
        found = found[: limits.groups_max]
        found += [
            GroupSnapshot(name, State.EMPTY, 0, offsets, self._scanner.idle_kind(name))
            for name, offsets in read.items()
        ]
        return (found, left_out) if self._loaded_groups.serves() else ([], 0)

    def forget(self, name: str) -> None:
        """Discard the cached offsets of a group, because they may have changed."""
        self._read.pop(name, None)

    def _idle(self, room: int) -> tuple[list[str], int]:
        """Return up to `room` idle groups of this broker, and the number of groups not examined."""
        ours: list[str] = []
        unseen = 0
        for name in self._scanner.idle:
            if name in self._loaded_groups.groups:
                continue
            if len(ours) >= room:
                unseen += 1
            elif self._claims.candidate(name):
                ours.append(name)
        return ours, unseen

    async def _offsets(
        self, idle: list[str], limits: MetricsLimits
    ) -> dict[str, Mapping[TopicIdPartition, CommittedOffset]]:
        """Return the offsets of idle groups. Reads uncached groups first, then the oldest ones."""
        kept = {name: self._read[name] for name in idle if name in self._read}
        self._read = kept
        old_s = self._clock.monotonic_s() - limits.reads_hold_s
        due = [name for name in idle if name not in kept]
        due += sorted(
            (name for name, (at_s, _) in kept.items() if at_s < old_s),
            key=lambda name: kept[name][0],
        )
        waiting = iter(due[: limits.reads_max])
        elsewhere: set[str] = set()
        try:
            async with asyncio.timeout(limits.read_s_max):
                elsewhere = await self._claims.claimed_elsewhere(idle) if idle else set()
                await asyncio.gather(*(self._read_each(waiting) for _ in range(_AT_ONCE)))
        except (LedgerError, TimeoutError):
            pass  # return the cached offsets
        return {
            name: self._read[name][1]
            for name in idle
            if name in self._read and name not in elsewhere
        }

    async def _read_each(self, names: Iterator[str]) -> None:
        for name in names:
            try:
                found = await self._store.read(name)
            except CorruptFormat:
                continue  # the scanner logs the corrupt group
            self._read[name] = (self._clock.monotonic_s(), found.offsets)
