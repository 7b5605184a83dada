"""Copies entries from bookie to bookie, byte for byte, and looks whether copies are sound.

Stored bytes are copied as they are: LAC and digest stay the writer's, so all copies of an entry
stay equal. Nothing is sent that does not verify, and nothing counts before the target said that
it is durable there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ledger.client.config import LedgerClientConfig
from ledger.core.entry_format import EntryFormat, master_key
from ledger.core.ledger_metadata import LedgerMetadata
from ledger.errors import BookieUnavailable, CorruptFormat, EntryUnknown
from ledger.ids import NO_ENTRY, BookieId, Buffer, EntryId, LedgerId
from ledger.ports.bookies import Bookies, EntriesReply, ReadManyReply, Status
from ledger.repair.checker import (
    UNKNOWN_CONTENTS,
    LedgerFragment,
    ReplicaContents,
    bookies_of,
    contents_of,
    fragments_of,
    share_of,
)
from ledger.repair.config import RepairConfig
from ledger.repair.entry_ranges import (
    EMPTY,
    EntryRanges,
    contains,
    count,
    difference,
    intersection,
    merged,
    ranges_of,
    union,
)

_OVERLOADED_WAIT_S: Final = 0.05
_PACE_S: Final = 0.02  # so far ahead of the allowed pace before anybody rests
_ABSENT: Final = (Status.NO_ENTRY, Status.NO_LEDGER)


@dataclass(slots=True)
class RepairProgress:
    """What a process has mended since it started."""

    entries: int = 0
    bytes: int = 0
    swaps: int = 0  # fragments that got another bookie
    fills: int = 0  # shares completed where they belong
    fences: int = 0  # ledgers recovered because their last fragment could not be mended else
    limbos_ended: int = 0
    widened: int = 0
    ledgers: int = 0  # whole again and off the list
    checked: int = 0  # copies read to see whether they are sound
    checked_bytes: int = 0


class CopyBudget:
    """Bytes under way at once, and bytes per second; who asks first gets first."""

    def __init__(self, bytes_max: int, bytes_per_s_max: int) -> None:
        self._left = bytes_max
        self._bytes_max = bytes_max
        self._bytes_per_s_max = bytes_per_s_max
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._free_at_s = 0.0

    async def acquire(self, size: int) -> None:
        """`size` bytes may be sent now; one larger than the whole budget is sent alone."""
        size = min(size, self._bytes_max)
        if self._waiting or size > self._left:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((size, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.release(size)
                raise
        else:
            self._left -= size
        await self._pace(size)

    async def _pace(self, size: int) -> None:
        if self._bytes_per_s_max == 0:
            return
        now_s = asyncio.get_running_loop().time()
        wait_s = self._free_at_s - now_s
        self._free_at_s = max(now_s, self._free_at_s) + size / self._bytes_per_s_max
        if wait_s > _PACE_S:  # a sleep for each entry would cost more than the copy
            try:
                await asyncio.sleep(wait_s)
            except asyncio.CancelledError:
                self.release(size)
                raise

    def release(self, size: int) -> None:
        """They arrived, or never will."""
        self._left += min(size, self._bytes_max)
        while self._waiting and (self._waiting[0][0] <= self._left or self._waiting[0][1].done()):
            size_next, turn = self._waiting.popleft()
            if not turn.done():
                self._left -= size_next
                turn.set_result(None)


class EntryCopier:
    """The copies of one ledger, on any bookie."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        bookies: Bookies,
        budget: CopyBudget,
        progress: RepairProgress,
        config: RepairConfig,
        client_config: LedgerClientConfig,
    ) -> None:
        self._metadata = metadata
        self._bookies = bookies
        self._budget = budget
        self._progress = progress
        self._chunk_bytes = config.chunk_bytes
        self._timeout_s = client_config.read_timeout_s
        self._overloaded_s_max = client_config.overloaded_s_max
        self._format = EntryFormat(metadata.digest_type, metadata.password)
        self._key = master_key(metadata.password)
        self.damaged: dict[BookieId, set[EntryId]] = {}  # copies found bad on the way

    async def list(self, bookie: BookieId) -> EntriesReply:
        """Which entries the bookie says it holds; UNREACHABLE when it says nothing in time."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._bookies.list_entries(bookie, self._metadata.ledger)
        except TimeoutError:
            return EntriesReply(Status.UNREACHABLE)

    async def survey(
        self, lac: EntryId, deep: Collection[BookieId] = ()
    ) -> dict[BookieId, ReplicaContents]:
        """What each registered bookie of the ledger holds of its confirmed entries.

        The copies of bookies `deep`, and of those in limbo, are read and verified.
        """
        parts = fragments_of(self._metadata, lac)
        names = sorted(bookies_of(self._metadata) & self._bookies.registered().keys())
        looks = [
            self.inspect(name, self._share_of(name, parts), deep=name in deep) for name in names
        ]
        return dict(zip(names, await asyncio.gather(*looks), strict=True))

    async def lists(self, bookies: Collection[BookieId]) -> dict[BookieId, ReplicaContents]:
        """What each of these says it holds, as far as they are registered; nothing is read."""
        names = sorted(frozenset(bookies) & self._bookies.registered().keys())
        replies = await asyncio.gather(*map(self.list, names))
        return dict(zip(names, map(contents_of, replies), strict=True))

    def _share_of(self, bookie: BookieId, parts: list[LedgerFragment]) -> EntryRanges:
        """What it should hold of all fragments together."""
        entries = EMPTY
        for fragment in parts:
            if bookie in fragment.ensemble:
                index = fragment.ensemble.index(bookie)
                entries = union(entries, share_of(fragment, index, self._metadata))
        return entries

    async def read_lac(self) -> EntryId:
        """Confirmed at least up to here: what metadata prove, or a bookie heard."""
        metadata = self._metadata
        if metadata.last_entry is not None:
            return metadata.last_entry
        replies = await asyncio.gather(*map(self._ask_lac, metadata.last_fragment.ensemble))
        # A fragment begins right after what was confirmed when it was made.
        return max(EntryId(metadata.last_fragment.first - 1), *replies)

    async def _ask_lac(self, bookie: BookieId) -> EntryId:
        if bookie not in self._bookies.registered():
            return NO_ENTRY
        try:
            async with asyncio.timeout(self._timeout_s):
                reply = await self._bookies.read_lac(bookie, self._metadata.ledger)
        except TimeoutError:
            return NO_ENTRY
        return reply.lac if reply.status is Status.OK else NO_ENTRY

    async def inspect(
        self, bookie: BookieId, entries: EntryRanges, *, deep: bool
    ) -> ReplicaContents:
        """What it holds. `deep`, or in limbo: `entries` are read and their digests verified."""
        holding = contents_of(await self.list(bookie))
        if not (deep or holding.limbo) or not (holding.complete or holding.limbo):
            return holding
        good, damaged, told = await self._read_through(bookie, entries)
        held = union(difference(holding.held, entries), union(good, damaged))
        return ReplicaContents(held, holding.complete and told, damaged, holding.limbo)

    async def _read_through(
        self, bookie: BookieId, entries: EntryRanges
    ) -> tuple[EntryRanges, EntryRanges, bool]:
        """Entries that verify, those that do not, and whether it said something of all of them.

        Once it gives no answer at all it is asked no further: one that hangs would hold up this
        ledger for as long as it has entries.
        """
        good: list[tuple[int, int]] = []
        damaged: set[EntryId] = set()
        told = True
        for first, last in entries:
            at: int = first
            while at <= last:
                entry = EntryId(at)
                reply = await self._ask(bookie, entry, last)
                if reply.status is Status.UNREACHABLE:
                    return merged(good), ranges_of(damaged), False
                sound = self._sound(entry, reply.bodies)
                self._progress.checked += max(1, len(sound))
                if sound:
                    self._progress.checked_bytes += sum(map(len, sound))
                    good.append((at, at + len(sound) - 1))
                    at += len(sound)
                    continue
                if reply.status in (Status.OK, Status.IO_ERROR):
                    damaged.add(entry)
                elif reply.status not in _ABSENT:
                    told = False
                at += 1
        return merged(good), ranges_of(damaged), told

    async def copy(
        self,
        entries: EntryRanges,
        fragment: LedgerFragment,
        holdings: Mapping[BookieId, ReplicaContents],
        target: BookieId,
    ) -> None:
        """`entries` of the span are durable on `target` too.

        Raises EntryUnknown when one cannot be read from any other replica, BookieUnavailable
        when the target does not take one. Both leave nothing behind but more copies.
        """
        lane = _Lane(
            self._bookies,
            target,
            self._key,
            self._budget,
            self._progress,
            self._overloaded_s_max,
        )
        try:
            for first, last in entries:
                await self._copy_run(first, last, fragment, holdings, lane)
            await lane.settled()
        finally:
            lane.leave()
        if lane.error is not None:
            raise lane.error

    async def _copy_run(
        self,
        first: EntryId,
        last: EntryId,
        fragment: LedgerFragment,
        holdings: Mapping[BookieId, ReplicaContents],
        lane: _Lane,
    ) -> None:
        """Everything of one run is on its way, unless the lane has failed."""
        at = first
        while at <= last and lane.error is None:
            for body in await self._read_good(at, last, fragment, holdings):
                await lane.add(self._metadata.ledger, at, body)
                at = EntryId(at + 1)

    async def _read_good(
        self,
        first: EntryId,
        last: EntryId,
        fragment: LedgerFragment,
        holdings: Mapping[BookieId, ReplicaContents],
    ) -> Sequence[Buffer]:
        """Sound entries from `first` on, at least that one."""
        for source in self._sources(first, fragment, holdings):
            reply = await self._ask(source, first, last)
            if reply.status is not Status.OK:
                continue
            sound = self._sound(first, reply.bodies)
            if sound:
                return sound
            self.damaged.setdefault(source, set()).add(first)
        raise EntryUnknown(
            f"ledger {self._metadata.ledger} entry {first}: no other replica could be read"
        )

    def _sources(
        self, entry: EntryId, fragment: LedgerFragment, holdings: Mapping[BookieId, ReplicaContents]
    ) -> Iterable[BookieId]:
        """Members of the span that show a good copy, another one first for each stretch."""
        ensemble = fragment.ensemble
        start = entry % len(ensemble)
        for bookie in (*ensemble[start:], *ensemble[:start]):
            if contains(holdings.get(bookie, UNKNOWN_CONTENTS).good, entry):
                yield bookie

    async def _ask(self, bookie: BookieId, first: EntryId, last: int) -> ReadManyReply:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._bookies.read_many(
                    bookie, self._metadata.ledger, first, EntryId(last), self._chunk_bytes
                )
        except TimeoutError:
            return ReadManyReply(Status.UNREACHABLE)

    def _sound(self, first: EntryId, bodies: Sequence[Buffer]) -> Sequence[Buffer]:
        """Bodies up to the first one that is not what it should be."""
        for number, body in enumerate(bodies):
            try:
                self._format.unpack(body, self._metadata.ledger, EntryId(first + number))
            except CorruptFormat:
                return bodies[:number]
        return bodies

    async def end_limbo(self, bookie: BookieId) -> Status:
        """As the port says; UNREACHABLE when it says nothing in time."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._bookies.end_limbo(bookie, self._metadata.ledger, self._key)
        except TimeoutError:
            return Status.UNREACHABLE

    async def check_holds(self, bookie: BookieId, entries: EntryRanges) -> None:
        """Raises BookieUnavailable unless the bookie itself lists all of `entries`."""
        holding = contents_of(await self.list(bookie))
        missing = difference(entries, holding.held)
        if missing:
            place = f"{bookie} does not list {count(missing)} entries that were copied to it"
            raise BookieUnavailable(f"ledger {self._metadata.ledger}: {place}")

    async def missing_on(self, bookie: BookieId, entries: EntryRanges) -> EntryRanges:
        """Which of `entries` must be copied there: an attempt before may have got far.

        What it has already is read first: it may have been a member once, and lie there rotten.
        Raises BookieUnavailable when it gives no answer, or may have lost some.
        """
        if entries == EMPTY:
            return EMPTY
        holding = contents_of(await self.list(bookie))
        good, _, told = await self._read_through(bookie, intersection(entries, holding.held))
        if not (holding.complete and told):
            raise BookieUnavailable(f"{bookie} does not say which entries it has")
        return difference(entries, good)


class _Lane:
    """Adds to one bookie under way; the first failure is kept, and ends the lane."""

    def __init__(
        self,
        bookies: Bookies,
        target: BookieId,
        master_key: bytes,
        budget: CopyBudget,
        progress: RepairProgress,
        overloaded_s_max: float,
    ) -> None:
        self.error: BookieUnavailable | None = None
        self._bookies = bookies
        self._target = target
        self._key = master_key
        self._budget = budget
        self._progress = progress
        self._loop = asyncio.get_running_loop()
        self._give_up_s = self._loop.time() + overloaded_s_max
        self._overloaded_s_max = overloaded_s_max
        self._under_way = 0
        self._idle: asyncio.Future[None] | None = None
        self._left = False

    async def add(self, ledger: LedgerId, entry: EntryId, body: Buffer) -> None:
        """On its way once there is room."""
        await self._budget.acquire(len(body))
        if self.error is not None:
            self._budget.release(len(body))
            return
        self._under_way += 1
        self._send(ledger, entry, body)

    def _send(self, ledger: LedgerId, entry: EntryId, body: Buffer) -> None:
        def on_added(status: Status) -> None:
            if self._is_worth_another_try(status):
                self._loop.call_later(_OVERLOADED_WAIT_S, self._send, ledger, entry, body)
            else:
                self._on_settled(entry, len(body), status)

        if self._left or self.error is not None:
            self._on_settled(entry, len(body), Status.UNREACHABLE)
        else:
            self._bookies.add(
                self._target, ledger, entry, self._key, (body,), on_added, recovery=True
            )

    def _is_worth_another_try(self, status: Status) -> bool:
        if status is not Status.OVERLOADED:
            return False
        return not self._left and self._loop.time() < self._give_up_s

    def _on_settled(self, entry: EntryId, size: int, status: Status) -> None:
        self._budget.release(size)
        self._under_way -= 1
        if status is Status.OK:
            self._progress.entries += 1
            self._progress.bytes += size
            self._give_up_s = self._loop.time() + self._overloaded_s_max
        elif self.error is None:
            answer = f"{self._target} answered {status.name}"
            self.error = BookieUnavailable(f"{answer} to entry {entry}")
        if self._under_way == 0 and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def settled(self) -> None:
        """Nothing is under way."""
        if self._under_way:
            self._idle = self._loop.create_future()
            await self._idle

    def leave(self) -> None:
        """Nobody waits any more: nothing is sent again."""
        self._left = True
