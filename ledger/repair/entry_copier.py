"""Copy entries from bookie to bookie, byte for byte, and verify copies.

Stored bytes are copied unchanged, including the writer's LAC and digest, so all copies of an entry
stay equal. Only verified entries are sent, and a copy counts once it is durable on the target.
Source: BookKeeper EntryCopier.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ledger.client.config import LedgerClientConfig
from ledger.client.reader import ANSWERS
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
_PACE_S: Final = 0.02  # shorter waits for the allowed rate are skipped
_ABSENT: Final = (Status.NO_ENTRY, Status.NO_LEDGER)


@dataclass(slots=True)
class RepairProgress:
    """Counters of a process since its start. Counters never fall."""

    entries: int = 0
    bytes: int = 0
    swaps: int = 0  # bookies replaced in fragments
    fills: int = 0  # completed shares of bookies that lacked entries
    fences: int = 0  # ledgers recovered because their open last fragment needed repair
    limbos_ended: int = 0
    widened: int = 0
    ledgers: int = 0  # ledgers repaired and taken off the list
    checked: int = 0  # copies read and verified
    checked_bytes: int = 0


class CopyBudget:
    """A bound on the bytes in flight and on the bytes per second. Callers are served in order."""

    def __init__(self, bytes_max: int, bytes_per_s_max: int) -> None:
        # Bytes that may still be acquired, from 0 to `_bytes_max`.
        self._left = bytes_max
        self._bytes_max = bytes_max
        self._bytes_per_s_max = bytes_per_s_max
        # Waiting acquisitions with their sizes, oldest first. Removed when the bytes are granted,
        # or later if cancelled.
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        # The time at which the rate allows the next byte. Runs ahead of the clock while copies are
        # too fast.
        self._free_at_s = 0.0

    async def acquire(self, size: int) -> None:
        """Wait until `size` bytes may be sent. A size above the budget takes the entire budget."""
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
        if wait_s > _PACE_S:  # a sleep per entry would cost more than the copy
            try:
                await asyncio.sleep(wait_s)
            except asyncio.CancelledError:
                self.release(size)
                raise

    def release(self, size: int) -> None:
        """Release `size` bytes that were written or given up."""
        self._left += min(size, self._bytes_max)
        while self._waiting and (self._waiting[0][0] <= self._left or self._waiting[0][1].done()):
            size_next, turn = self._waiting.popleft()
            if not turn.done():
                self._left -= size_next
                turn.set_result(None)


class EntryCopier:
    """The reads, checks and copies of one ledger's replicas."""

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
        # The start of each registered bookie, from before anything was examined. Constant.
        self._starts = {
            bookie: info.start
            for bookie, info in bookies.registered().items()
            if bookie in bookies_of(metadata)
        }
        # Corrupt copies found while copying, by bookie. Only grows.
        self.damaged: dict[BookieId, set[EntryId]] = {}

    async def list_entries(self, bookie: BookieId) -> EntriesReply:
        """List the bookie's entries. Returns UNREACHABLE after the timeout."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._bookies.list_entries(bookie, self._metadata.ledger)
        except TimeoutError:
            return EntriesReply(Status.UNREACHABLE)

    async def survey(
        self, lac: EntryId, deep: Collection[BookieId] = ()
    ) -> dict[BookieId, ReplicaContents]:
        """Return the contents of each registered bookie of the ledger, for the confirmed entries.

        The copies on bookies of `deep`, and on bookies in limbo, are read and verified.
        """
        parts = fragments_of(self._metadata, lac)
        names = sorted(bookies_of(self._metadata) & self._bookies.registered().keys())
        inspections = [
            self.inspect(name, self.share_of_bookie(name, parts), deep=name in deep)
            for name in names
        ]
        return dict(zip(names, await asyncio.gather(*inspections), strict=True))

    async def list_replicas(self, bookies: Collection[BookieId]) -> dict[BookieId, ReplicaContents]:
        """Return the contents listed by each of these bookies that is registered; read
        no entries.
        """
        names = sorted(frozenset(bookies) & self._bookies.registered().keys())
        replies = await asyncio.gather(*map(self.list_entries, names))
        return dict(zip(names, map(contents_of, replies), strict=True))

    def share_of_bookie(self, bookie: BookieId, parts: list[LedgerFragment]) -> EntryRanges:
        """Return the bookie's share of all fragments together."""
        entries = EMPTY
        for fragment in parts:
            if bookie in fragment.ensemble:
                index = fragment.ensemble.index(bookie)
                entries = union(entries, share_of(fragment, index, self._metadata))
        return entries

    async def read_lac(self) -> EntryId:
        """Return a lower bound of the LAC, from metadata and from bookies."""
        metadata = self._metadata
        if metadata.last_entry is not None:
            return metadata.last_entry
        replies = await asyncio.gather(*map(self._read_lac_from, metadata.last_fragment.ensemble))
        # A fragment begins right after the entries that were confirmed when the fragment was
        # created.
        return max(EntryId(metadata.last_fragment.first - 1), *replies)

    async def _read_lac_from(self, bookie: BookieId) -> EntryId:
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
        """Return the bookie's contents. If `deep` or in limbo, `entries` are read and verified."""
        replica = contents_of(await self.list_entries(bookie))
        if not (deep or replica.limbo) or not (replica.complete or replica.limbo):
            return replica
        read = await self._verify_entries(bookie, entries)
        held = union(difference(replica.held, entries), union(read.good, read.damaged))
        complete = replica.complete and read.certain
        return ReplicaContents(held, complete, read.damaged, replica.limbo, read.lacks)

    async def _verify_entries(self, bookie: BookieId, entries: EntryRanges) -> _Verified:
        """Return the valid, the corrupt and the missing entries, and whether these are all.

        After one timeout the bookie is not asked again. Otherwise a hanging bookie would delay this
        ledger by one timeout per entry.
        """
        good: list[tuple[int, int]] = []
        damaged: set[EntryId] = set()
        lacks: set[EntryId] = set()
        certain = True
        for first, last in entries:
            at: int = first
            while at <= last:
                entry = EntryId(at)
                reply = await self._read_many(bookie, entry, last)
                if reply.status is Status.UNREACHABLE:
                    return _Verified(
                        merged(good), ranges_of(damaged), ranges_of(lacks), certain=False
                    )
                valid = self._valid_prefix(entry, reply.bodies)
                self._progress.checked += max(1, len(valid))
                if valid:
                    self._progress.checked_bytes += sum(map(len, valid))
                    good.append((at, at + len(valid) - 1))
                    at += len(valid)
                    continue
                if reply.status in (Status.OK, Status.IO_ERROR):
                    damaged.add(entry)
                elif reply.status in ANSWERS:
                    lacks.add(entry)
                    certain = certain and reply.status in _ABSENT
                else:
                    certain = False
                at += 1
        return _Verified(merged(good), ranges_of(damaged), ranges_of(lacks), certain)

    async def read_prefix(self, bookie: BookieId, first: EntryId, last: EntryId) -> ReadManyReply:
        """Read entries from `first` on. The reply has only those before the first invalid one.

        Its status is UNREACHABLE after the timeout, and IO_ERROR if `first` is invalid.
        """
        if bookie not in self._bookies.registered():
            return ReadManyReply(Status.UNREACHABLE)
        reply = await self._read_many(bookie, first, last)
        valid = self._valid_prefix(first, reply.bodies)
        if reply.status is Status.OK and not valid:
            return ReadManyReply(Status.IO_ERROR)
        return reply._replace(bodies=valid)

    async def read_payload(self, entry: EntryId) -> memoryview | None:
        """Return the payload of a valid copy on a bookie of the write set, None without one."""
        for bookie in self._metadata.bookies_of(entry):
            reply = await self.read_prefix(bookie, entry, entry)
            if reply.bodies:
                return self._format.unpack(reply.bodies[0], self._metadata.ledger, entry)
        return None

    async def copy(
        self,
        entries: EntryRanges,
        fragment: LedgerFragment,
        replicas: Mapping[BookieId, ReplicaContents],
        target: BookieId,
    ) -> None:
        """Copy `entries` of the fragment to `target`, durably.

        Raises EntryUnknown if no other replica of an entry can be read, BookieUnavailable if the
        target does not accept an entry. After an error, only additional copies are left behind.
        """
        writer = _TargetWriter(
            self._bookies,
            target,
            self._key,
            self._budget,
            self._progress,
            self._overloaded_s_max,
        )
        try:
            for first, last in entries:
                await self._copy_range(first, last, fragment, replicas, writer)
            await writer.settled()
        finally:
            writer.abandon()
        if writer.error is not None:
            raise writer.error

    async def _copy_range(
        self,
        first: EntryId,
        last: EntryId,
        fragment: LedgerFragment,
        replicas: Mapping[BookieId, ReplicaContents],
        writer: _TargetWriter,
    ) -> None:
        """Send the entries of one range, until the writer fails."""
        at = first
        while at <= last and writer.error is None:
            for body in await self._read_valid(at, last, fragment, replicas):
                await writer.add(self._metadata.ledger, at, body)
                at = EntryId(at + 1)

    async def _read_valid(
        self,
        first: EntryId,
        last: EntryId,
        fragment: LedgerFragment,
        replicas: Mapping[BookieId, ReplicaContents],
    ) -> Sequence[Buffer]:
        """Return valid entries from `first` on, at least `first` itself."""
        for source in self._sources(first, fragment, replicas):
            reply = await self._read_many(source, first, last)
            if reply.status is not Status.OK:
                continue
            valid = self._valid_prefix(first, reply.bodies)
            if valid:
                return valid
            self.damaged.setdefault(source, set()).add(first)
        raise EntryUnknown(
            f"ledger {self._metadata.ledger} entry {first}: no other replica could be read"
        )

    def _sources(
        self, entry: EntryId, fragment: LedgerFragment, replicas: Mapping[BookieId, ReplicaContents]
    ) -> Iterable[BookieId]:
        """Yield the fragment's bookies with a valid copy, in an order that differs per entry."""
        ensemble = fragment.ensemble
        start = entry % len(ensemble)
        for bookie in (*ensemble[start:], *ensemble[:start]):
            if contains(replicas.get(bookie, UNKNOWN_CONTENTS).good, entry):
                yield bookie

    async def _read_many(self, bookie: BookieId, first: EntryId, last: int) -> ReadManyReply:
        try:
            async with asyncio.timeout(self._timeout_s):
                reply = await self._bookies.read_many(
                    bookie,
                    self._metadata.ledger,
                    first,
                    EntryId(last),
                    self._chunk_bytes,
                    from_disk=True,
                )
        except TimeoutError:
            return ReadManyReply(Status.UNREACHABLE)
        return reply._replace(bodies=reply.bodies[: last - first + 1])  # a bookie may send more

    def _valid_prefix(self, first: EntryId, bodies: Sequence[Buffer]) -> Sequence[Buffer]:
        """Return the bodies before the first invalid one."""
        for number, body in enumerate(bodies):
            try:
                self._format.unpack(body, self._metadata.ledger, EntryId(first + number))
            except CorruptFormat:
                return bodies[:number]
        return bodies

    async def end_limbo(self, bookie: BookieId) -> Status:
        """End the limbo as `Bookies.end_limbo` does, of the start when this object was made.

        Returns UNREACHABLE after the timeout, or if the bookie was not registered then.
        """
        if bookie not in self._starts:
            return Status.UNREACHABLE
        ledger, start = self._metadata.ledger, self._starts[bookie]
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._bookies.end_limbo(bookie, ledger, self._key, start)
        except TimeoutError:
            return Status.UNREACHABLE

    async def check_holds(self, bookie: BookieId, entries: EntryRanges) -> None:
        """Raise BookieUnavailable unless the bookie lists all of `entries`."""
        replica = contents_of(await self.list_entries(bookie))
        missing = difference(entries, replica.held)
        if missing:
            place = f"{bookie} does not list {count(missing)} entries that were copied to it"
            raise BookieUnavailable(f"ledger {self._metadata.ledger}: {place}")

    async def missing_on(self, bookie: BookieId, entries: EntryRanges) -> EntryRanges:
        """Return the part of `entries` that must still be copied to the bookie.

        Entries that the bookie lists already are verified first, because an earlier membership may
        have left corrupt copies. Raises BookieUnavailable if the bookie does not answer or may have
        lost some.
        """
        if entries == EMPTY:
            return EMPTY
        replica = contents_of(await self.list_entries(bookie))
        read = await self._verify_entries(bookie, intersection(entries, replica.held))
        if not (replica.complete and read.certain):
            raise BookieUnavailable(f"{bookie} does not report which entries it has")
        return difference(entries, read.good)


class _Verified(NamedTuple):
    """What a bookie answered for the entries that were read from it."""

    good: EntryRanges
    damaged: EntryRanges
    lacks: EntryRanges  # entries that the bookie does not have
    certain: bool  # True if it answered for all, and lost nothing


class _TargetWriter:
    """The adds in flight to one bookie. The first failure is kept and stops the writer."""

    def __init__(
        self,
        bookies: Bookies,
        target: BookieId,
        master_key: bytes,
        budget: CopyBudget,
        progress: RepairProgress,
        overloaded_s_max: float,
    ) -> None:
        # The first failure, or None. Set once.
        self.error: BookieUnavailable | None = None
        self._bookies = bookies
        self._target = target
        self._key = master_key
        self._budget = budget
        self._progress = progress
        self._loop = asyncio.get_running_loop()
        # The time from which OVERLOADED counts as a failure. Postponed by each success.
        self._give_up_s = self._loop.time() + overloaded_s_max
        self._overloaded_s_max = overloaded_s_max
        # Adds sent and not settled, retries included.
        self._in_flight = 0
        # Resolved when `_in_flight` reaches 0, while `settled` waits.
        self._idle: asyncio.Future[None] | None = None
        # True once the copy has ended. Nothing is sent after that.
        self._abandoned = False

    async def add(self, ledger: LedgerId, entry: EntryId, body: Buffer) -> None:
        """Send the entry as soon as the budget allows."""
        await self._budget.acquire(len(body))
        if self.error is not None:
            self._budget.release(len(body))
            return
        self._in_flight += 1
        self._send(ledger, entry, body)

    def _send(self, ledger: LedgerId, entry: EntryId, body: Buffer) -> None:
        def on_added(status: Status) -> None:
            if self._is_worth_another_try(status):
                self._loop.call_later(_OVERLOADED_WAIT_S, self._send, ledger, entry, body)
            else:
                self._on_settled(entry, len(body), status)

        if self._abandoned or self.error is not None:
            self._on_settled(entry, len(body), Status.UNREACHABLE)
        else:
            self._bookies.add(
                self._target, ledger, entry, self._key, (body,), on_added, recovery=True
            )

    def _is_worth_another_try(self, status: Status) -> bool:
        if status is not Status.OVERLOADED:
            return False
        return not self._abandoned and self._loop.time() < self._give_up_s

    def _on_settled(self, entry: EntryId, size: int, status: Status) -> None:
        self._budget.release(size)
        self._in_flight -= 1
        if status is Status.OK:
            self._progress.entries += 1
            self._progress.bytes += size
            self._give_up_s = self._loop.time() + self._overloaded_s_max
        elif self.error is None:
            answer = f"{self._target} answered {status.name}"
            self.error = BookieUnavailable(f"{answer} to entry {entry}")
        if self._in_flight == 0 and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def settled(self) -> None:
        """Wait until no add is in flight."""
        if self._in_flight:
            self._idle = self._loop.create_future()
            await self._idle

    def abandon(self) -> None:
        """Send nothing any more, because the copy has ended."""
        self._abandoned = True
