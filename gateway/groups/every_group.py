"""All groups of this broker with their offsets, looked at in slices.

Loaded groups are in memory. The offsets of an idle group are read from the store, a bounded number
in each look, and remembered until the group is loaded, as by a commit, and for `HOLD_S` at most. A
group that another broker has claimed may be among the idle ones; `claimed` is False for it. Its
commits are seen only there, so its offsets are read again.

A group that has the same mark as at the last look has not changed since. The caller may leave it
out before its offsets are decoded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from gateway.cluster.port import GroupClaims
from gateway.core.group_members import State
from gateway.groups.group_scanner import GroupScanner
from gateway.groups.loaded_groups import LoadedGroups
from gateway.groups.views import CLASSIC_GROUP, GroupState
from ledger.errors import LedgerError
from subscriptions.committed_offset import CommittedOffset, TopicIdPartition
from subscriptions.segments.segment_records import DecodedOffsets
from subscriptions.store import SubscriptionsStore

HOLD_S = 300.0
"""The age at which an idle group is read again: another broker may have had it meanwhile."""

_AT_ONCE = 4

Offsets = Mapping[TopicIdPartition, CommittedOffset]
Mark = tuple[object, ...]
"""The state of a group besides its offsets, and a count that moves with them. It is compared."""

IsKnown = Callable[[str, Mark], bool]
"""Returns whether the caller has read the group of this name in the state of this mark."""


class Turns(Protocol):
    """A clock that decides when other tasks run. It is asked after each group."""

    @property
    def used_up(self) -> bool: ...

    async def rest(self) -> None: ...


class GroupStanding(NamedTuple):
    """The state, member count and committed offsets of one group."""

    name: str
    state: GroupState
    protocol_type: str
    members: int
    claimed: bool  # False: it is idle, and another broker may have claimed it meanwhile
    offsets: Offsets | None  # as they change; None until they were read from the store
    mark: Mark
    type: str = CLASSIC_GROUP  # as in ListGroups

    def offsets_now(self) -> Offsets:
        """Return the offsets as they are now: later commits do not show. Nothing is decoded yet."""
        offsets = self.offsets or {}
        return offsets.copy() if isinstance(offsets, DecodedOffsets) else dict(offsets)


class EveryGroup:
    """The groups of this broker, for one caller that looks again and again."""

    def __init__(
        self,
        store: SubscriptionsStore,
        loaded_groups: LoadedGroups,
        scanner: GroupScanner,
        claims: GroupClaims,
    ) -> None:
        self._store = store
        self._loaded_groups = loaded_groups
        self._scanner = scanner
        self._claims = claims
        # When the idle groups of this broker were read last, and their offsets. Pruned by a look
        # that finds others in it.
        self._read: dict[str, tuple[float, Offsets]] = {}

    @property
    def serves(self) -> bool:
        """True while this broker may answer as coordinator."""
        return self._loaded_groups.serves()

    def is_loaded(self, name: str) -> bool:
        """Return whether a look at the loaded groups of now would find this group."""
        each = self._loaded_groups.groups.get(name)
        return each is not None and each.group.state is not State.DEAD and self.serves

    async def loaded(self, turns: Turns, is_known: IsKnown) -> AsyncGenerator[GroupStanding]:
        """Yield every loaded group once, except known ones."""
        groups = self._loaded_groups.groups
        for name in list(groups):
            self._read.pop(name, None)
            each = groups.get(name)
            if each is not None and each.group.state is not State.DEAD:
                kind = each.protocol_type or ""
                mark: Mark = (each, each.commits, each.state, kind, each.members, each.kind)
                if not is_known(name, mark):
                    yield GroupStanding(
                        name, each.state, kind, each.members, True, each.offsets, mark, each.kind
                    )
            if turns.used_up:
                await turns.rest()

    async def idle(
        self, turns: Turns, reads_max: int, is_known: IsKnown
    ) -> AsyncGenerator[GroupStanding]:
        """Yield every idle group once, except known ones.

        Reads up to `reads_max` groups from the store: those not read yet come first.
        """
        idle = await self._candidates(turns)
        await self._read_some(await self._due(idle, turns), reads_max)
        was_read = 0
        for name in idle:
            known = self._scanner.idle.get(name)
            if known is not None and name not in self._loaded_groups.groups:
                read = self._read.get(name)
                was_read += read is not None
                offsets = None if read is None else read[1]
                # Two reads differ in their times: no offsets are decoded to compare them.
                mark: Mark = (known, read)
                if not is_known(name, mark):
                    kind = known.protocol_type
                    yield GroupStanding(
                        name, State.EMPTY, kind, 0, False, offsets, mark, known.kind
                    )
            if turns.used_up:
                await turns.rest()
        if was_read != len(self._read):
            await self._prune(idle, turns)

    async def _candidates(self, turns: Turns) -> list[str]:
        """Return the idle groups that this broker would coordinate."""
        found: list[str] = []
        for name in list(self._scanner.idle):
            if name not in self._loaded_groups.groups and self._claims.candidate(name):
                found.append(name)
            if turns.used_up:
                await turns.rest()
        return found

    async def _due(self, idle: Iterable[str], turns: Turns) -> list[str]:
        """Return the groups that were not read yet, then those that were read long ago."""
        new: list[str] = []
        old: list[str] = []
        old_s = asyncio.get_running_loop().time() - HOLD_S
        for name in idle:
            read = self._read.get(name)
            if read is None:
                new.append(name)
            elif read[0] < old_s:
                old.append(name)
            if turns.used_up:
                await turns.rest()
        return new + old

    async def _read_some(self, names: Iterable[str], reads_max: int) -> None:
        waiting = iter(list(names)[:reads_max])
        await asyncio.gather(*(self._read_each(waiting) for _ in range(_AT_ONCE)))

    async def _read_each(self, names: Iterator[str]) -> None:
        for name in names:
            try:
                found = await self._store.read(name)
            except LedgerError:
                continue  # the next look tries again; the scanner logs corrupt groups
            if name not in self._loaded_groups.groups:
                self._read[name] = asyncio.get_running_loop().time(), found.offsets
            await asyncio.sleep(0)

    async def _prune(self, idle: Iterable[str], turns: Turns) -> None:
        kept = set(idle)
        for name in [each for each in self._read if each not in kept]:
            del self._read[name]
            if turns.used_up:
                await turns.rest()
