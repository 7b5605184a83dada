"""Where the groups of this gateway stand, for the metrics: bounded, however many groups there are.

Groups in memory come first. A resting group is read from the store, and what was read of it holds
for a while: nobody commits to it, or it would be in memory.
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
from ledger.errors import CorruptFormat, LedgerError
from ledger.ports.clock import Clock
from subscriptions.committed_offset import CommittedOffset, TopicIdPartition
from subscriptions.store import SubscriptionsStore

_AT_ONCE = 16


class GroupSnapshot(NamedTuple):
    """One group of this gateway."""

    name: str
    state: State
    members: int
    offsets: Mapping[TopicIdPartition, CommittedOffset]


class GroupSnapshots:
    """Looked at now and then; keeps what it read of resting groups, those of the last look only."""

    def __init__(
        self,
        store: SubscriptionsStore,
        residents: LoadedGroups,
        census: GroupScanner,
        claims: GroupClaims,
        clock: Clock,
    ) -> None:
        self._store = store
        self._residents = residents
        self._census = census
        self._claims = claims
        self._clock = clock
        self._read: dict[str, tuple[float, Mapping[TopicIdPartition, CommittedOffset]]] = {}

    async def look(self, limits: MetricsLimits) -> tuple[list[GroupSnapshot], int]:
        """The groups, and how many more there may be that are left out. Never raises LedgerError.

        Who may not answer as coordinator knows of no groups.
        """
        if not self._residents.serves():
            return [], 0
        found = [
            GroupSnapshot(name, each.group.state, len(each.group.members), each.offsets)
            for name, each in self._residents.groups.items()
            if each.group.state is not State.DEAD
        ]
        resting, unseen = self._resting(limits.groups_max - len(found))
        read = await self._offsets(resting, limits)
        left_out = max(len(found) - limits.groups_max, 0) + unseen + len(resting) - len(read)
        found = found[: limits.groups_max]
        found += [GroupSnapshot(name, State.EMPTY, 0, offsets) for name, offsets in read.items()]
        return (found, left_out) if self._residents.serves() else ([], 0)

    def forget(self, name: str) -> None:
        """It may stand elsewhere than when it was read."""
        self._read.pop(name, None)

    def _resting(self, room: int) -> tuple[list[str], int]:
        """Groups that rest with us, and how many more rest somewhere: no room to look at them."""
        ours: list[str] = []
        unseen = 0
        for name in self._census.resting:
            if name in self._residents.groups:
                continue
            if len(ours) >= room:
                unseen += 1
            elif self._claims.candidate(name):
                ours.append(name)
        return ours, unseen

    async def _offsets(
        self, resting: list[str], limits: MetricsLimits
    ) -> dict[str, Mapping[TopicIdPartition, CommittedOffset]]:
        """What is known of them; the oldest that is known, and what is not, was read anew."""
        kept = {name: self._read[name] for name in resting if name in self._read}
        self._read = kept
        old_s = self._clock.monotonic_s() - limits.reads_hold_s
        due = [name for name in resting if name not in kept]
        due += sorted(
            (name for name, (at_s, _) in kept.items() if at_s < old_s),
            key=lambda name: kept[name][0],
        )
        waiting = iter(due[: limits.reads_max])
        elsewhere: set[str] = set()
        try:
            async with asyncio.timeout(limits.read_s_max):
                elsewhere = await self._claims.claimed_elsewhere(resting) if resting else set()
                await asyncio.gather(*(self._read_each(waiting) for _ in range(_AT_ONCE)))
        except (LedgerError, TimeoutError):
            pass  # what was read before still holds
        return {
            name: self._read[name][1]
            for name in resting
            if name in self._read and name not in elsewhere
        }

    async def _read_each(self, names: Iterator[str]) -> None:
        for name in names:
            try:
                found = await self._store.read(name)
            except CorruptFormat:
                continue  # the census says so
            self._read[name] = (self._clock.monotonic_s(), found.offsets)
