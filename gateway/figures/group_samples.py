"""Looks at the groups of this gateway again and again, and puts what changed into a table.

The offsets of a group are decoded again only if its mark differs from that of the last sample, or
while its pace may still change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from hashlib import blake2s
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.core.group_members import State
from gateway.figures.rows import READ_ONLY, GroupRow, Positions
from gateway.figures.slices import SORTED_AT_ONCE, sorted_in_slices
from gateway.figures.topic_samples import Rates

if TYPE_CHECKING:
    from uuid import UUID

    from gateway.figures.slices import Slices
    from gateway.figures.versions import VersionedRows
    from gateway.groups.every_group import EveryGroup, GroupStanding, Mark
    from gateway.handlers.api import Context

GROUPS_MAX: Final = 50_000
POSITIONS_MAX: Final = 500_000
"""Offsets of all groups of one gateway. A group that does not fit is shown without its lag."""

OF_ONE_MAX: Final = 2_000
"""Offsets of one group, those of deleted topics included, so that it fits into one answer."""

_READS: Final = 100  # groups at rest that one sample reads from the store
_CLIENTS_MAX: Final = 100
_SORTED_OF_A_STEP: Final = 16


class _Found(NamedTuple):
    """The decoded offsets of one group, how many partitions have one, and their sum."""

    positions: Positions
    partitions: int
    total: int


class _Seen:
    """One group between two samples."""

    __slots__ = ("count", "mark", "rates", "round", "settled")

    def __init__(self, rates: Rates) -> None:
        self.rates = rates
        self.round = 0
        self.mark: object = None  # the same mark means no change; None is always another one
        self.count = 0  # offsets of its row
        self.settled = False  # time alone does not change its row


class GroupSamples:
    """Samples of the groups of one gateway."""

    def __init__(self, ctx: Context, table: VersionedRows[str, GroupRow]) -> None:
        self._ctx = ctx
        self._table = table
        self._every: EveryGroup | None = None  # made by the first sample
        self._seen: dict[str, _Seen] = {}
        self._rounds = 0
        self._entered = 0  # groups of `_seen` that this sample has found so far
        # The topics of the last sample: rows of unchanged groups name those that were there.
        self._topics: object = None
        self._same_topics = False
        self._room = 0  # offsets that this sample may still take
        self._before_s = 0.0  # when the last sample began, on the clock of the loop
        self.left_out = 0  # groups that did not fit into the last sample

    async def take(self, slices: Slices) -> None:
        """Look at every group once, and read those that changed."""
        began_s = asyncio.get_running_loop().time()
        self._rounds += 1
        self._entered = self.left_out = 0
        self._room = POSITIONS_MAX
        topics = self._ctx.catalog.all()
        self._same_topics = topics is self._topics
        if self._every is None:
            self._every = self._ctx.groups.every_group()
        if self._every.serves:
            async for standing in self._every.loaded(slices, self._is_known):
                await self._take(standing, slices)
            async for standing in self._every.idle(slices, _READS, self._is_known):
                await self._take(standing, slices)
        for name in self._ctx.read_only_groups.names():
            if not self._ctx.groups.stored(name):
                await self._take_reader(name, slices)
            await slices.pause()
        if self._entered != len(self._seen):
            await self._drop_others(slices)
        # Not sooner: a sample that an error ended is repeated as a whole.
        self._topics, self._before_s = topics, began_s

    async def _drop_others(self, slices: Slices) -> None:
        """Drop the groups that this sample has not found.

        One that was loaded while the sample looked at idle ones is found by the next.
        """
        every = self._every
        for name in [name for name, each in self._seen.items() if each.round != self._rounds]:
            if every is None or not every.is_loaded(name):
                del self._seen[name]
                self._table.drop(name)
            await slices.pause()

    def _is_known(self, name: str, mark: Mark) -> bool:
        """Return whether the row of a group is as it was at the last sample."""
        seen = self._seen.get(name)
        if seen is None or not self._same_topics or not seen.settled or seen.mark != mark:
            return False
        if seen.count > self._room:
            return False
        self._room -= seen.count
        seen.mark = mark  # it may be an equal one: two would be kept, and compared each time
        self._note(seen)
        return True

    def _enter(self, name: str) -> _Seen | None:
        """Return what is known about a group, None if there are too many groups."""
        seen = self._seen.get(name)
        if seen is None:
            if len(self._seen) >= GROUPS_MAX:
                self.left_out += 1
                return None
            seen = self._seen[name] = _Seen(Rates(asyncio.get_running_loop().time(), 0, 0))
        self._note(seen)
        return seen

    def _note(self, seen: _Seen) -> None:
        self._entered += seen.round != self._rounds
        seen.round = self._rounds

    async def _take(self, standing: GroupStanding, slices: Slices) -> None:
        seen = self._enter(standing.name)
        if seen is None:
            return
        now_s, found = asyncio.get_running_loop().time(), None
        is_large = standing.offsets is not None and len(standing.offsets) > OF_ONE_MAX
        if is_large:
            seen.rates = Rates(now_s, 0, 0)  # what it has when it is smaller is no progress
        elif standing.offsets is not None:
            # A commit during the decoding changes the mark: the next sample shows it.
            taken = standing.offsets_now()
            places = ((key.topic_id, key.partition, each.offset) for key, each in taken.items())
            found = await self._found(places, slices)
        row = GroupRow(
            group=standing.name,
            state=standing.state.value,
            type=standing.type,
            protocol=standing.protocol_type,
            members=standing.members,
            claimed=standing.claimed,
            positions=None if found is None else found.positions,
            read_per_s=self._rate(seen, found, now_s),
        )
        self._table.put(standing.name, row)
        seen.mark, seen.count = standing.mark, 0 if found is None else found.partitions
        still = found is not None and seen.rates.still and row.read_per_s == 0
        seen.settled = standing.offsets is None or is_large or still

    async def _take_reader(self, name: str, slices: Slices) -> None:
        """Look at the part of a read-only group whose partitions this gateway leads."""
        group = self._ctx.read_only_groups.here(name)
        seen = None if group is None else self._enter(name)
        if group is None or seen is None:
            return
        seen.mark, seen.settled = None, False
        now_s = asyncio.get_running_loop().time()
        places = (
            (topic_id, index, fetched.offset)
            for (topic_id, index), fetched in group.fetches.items()
            if self._leads(topic_id, index)
        )
        found = await self._found(places, slices)
        clients = [
            blake2s(f"{client}\0{host}".encode(), digest_size=6).hexdigest()
            for client, host in group.clients
        ]
        row = GroupRow(
            group=name,
            state=State.STABLE.value,
            type=READ_ONLY,
            protocol="consumer",
            members=len(clients),
            claimed=True,
            positions=None if found is None else found.positions,
            read_per_s=self._rate(seen, found, now_s),
            clients=tuple(clients[-_CLIENTS_MAX:]),
            seen_ms=max(group.clients.values(), default=None),
        )
        self._table.put(name, row)

    def _leads(self, topic_id: UUID, index: int) -> bool:
        topic = self._ctx.catalog.by_id(topic_id)
        partition = None if topic is None else self._ctx.partitions.opened(topic.name, index)
        return partition is not None and partition.is_leader

    async def _found(
        self, places: Iterable[tuple[UUID, int, int]], slices: Slices
    ) -> _Found | None:
        """Return the offsets of a group by topic, None if there are too many."""
        found: dict[str, list[tuple[int, int]]] = {}
        count = total = 0
        for topic_id, index, offset in places:
            if slices.used_up:
                await slices.rest()
            topic = self._ctx.catalog.by_id(topic_id)
            if topic is None or offset < 0:
                continue
            count += 1
            total += offset
            if count > OF_ONE_MAX or count > self._room:
                return None
            found.setdefault(topic.name, []).append((index, offset))
        self._room -= count
        positions = {topic: await _in_order(found[topic], slices) for topic in sorted(found)}
        return _Found(positions, count, total)

    def _rate(self, seen: _Seen, found: _Found | None, now_s: float) -> float | None:
        """Return the offsets per second that the group moved on by."""
        if found is None:
            return None
        if seen.settled:
            seen.rates.rested(self._before_s)
        # A further partition is no progress: its offset would count as if it had been read.
        if seen.rates.count != found.partitions:
            seen.rates = Rates(now_s, found.total, 0, found.partitions)
            return None
        return seen.rates.look(now_s, found.total, 0)[0]


async def _in_order(places: list[tuple[int, int]], slices: Slices) -> tuple[tuple[int, int], ...]:
    """Return the partitions and offsets of one topic by partition."""
    if len(places) > SORTED_AT_ONCE:
        return tuple(place for _, place in await sorted_in_slices(places, tuple, slices))
    places.sort()
    if slices.spent(1 + len(places) // _SORTED_OF_A_STEP):
        await slices.rest()
    return tuple(places)
