"""Reads a ledger, open or closed, without disturbing its writer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from ledger.client import metadata_format
from ledger.client.config import LedgerClientConfig
from ledger.client.health import UNHEALTHY, Answer, BookieHealth
from ledger.client.speculative_read import Attempt, SpeculativeRead
from ledger.client.update_metadata import LedgerMetadataStore
from ledger.core.entry_format import EntryFormat
from ledger.core.latency import SampleKind
from ledger.core.ledger_metadata import LedgerMetadata, Versioned
from ledger.core.loss import CopyAnswer, EntryAwaited, EntryLost, waited_for
from ledger.core.quorum import Coverage, write_sets
from ledger.core.read_plan import ReadPlan
from ledger.errors import (
    CorruptFormat,
    EntryUnknown,
    MetadataUnavailable,
    NoSuchEntry,
    Unauthorized,
)
from ledger.ids import NO_ENTRY, BookieId, Buffer, EntryId
from ledger.ports.bookies import Bookies, ReadManyReply, ReadReply, Status
from ledger.ports.metadata import Unwatch

_ABSENT = (Status.NO_ENTRY, Status.NO_LEDGER)
ANSWERS = {
    Status.NO_ENTRY: CopyAnswer.DENIED,
    Status.NO_LEDGER: CopyAnswer.DENIED,
    Status.UNKNOWN_LEDGER_STATE: CopyAnswer.LOST,
}
"""What a bookie's refusal to show an entry says of its copy. Every other status says nothing."""

Entries = list[tuple[EntryId, memoryview]]
_Span = tuple[EntryId, EntryId, int]
"""First entry, last entry and most bytes of a read."""

_REST_BYTES_MIN = 64 * 1024
"""A large read sends no further request for a rest below this many bytes."""


class LedgerReader:
    """A reader of one ledger, which returns no entry above its LAC."""

    def __init__(
        self,
        stored: Versioned,
        metadata_store: LedgerMetadataStore,
        bookies: Bookies,
        config: LedgerClientConfig,
        health: BookieHealth,
    ) -> None:
        """`health` is shared with the other readers and writers of the process."""
        # The metadata as last read by this reader. `refresh` and failed reads replace them.
        self.metadata: LedgerMetadata = stored.metadata
        # The highest LAC that this reader knows, which never falls. A writer in the same process
        # may raise it too.
        self.last_add_confirmed: EntryId = NO_ENTRY
        # The last entry of a ledger that was just recovered, so that it need not be read. Set once.
        self.last_read: tuple[EntryId, memoryview] | None = None
        self._metadata_store = metadata_store
        self._bookies = bookies
        self._loop = asyncio.get_running_loop()
        self._health = health
        self._timeout_s = config.read_timeout_s
        self._late_s = config.speculative_read_s
        self._format = EntryFormat(self.metadata.digest_type, self.metadata.password)
        # The bookie of the last successful read, which the next read prefers.
        self._last_good: BookieId | None = None
        self._adopt(self.metadata)

    def _adopt(self, metadata: LedgerMetadata) -> None:
        self.metadata = metadata
        # Every entry below the start of a fragment was confirmed when the fragment was created.
        known = (
            metadata.last_entry if metadata.closed else EntryId(metadata.last_fragment.first - 1)
        )
        assert known is not None
        self._raise_lac(known)

    def _raise_lac(self, lac: EntryId) -> None:
        self.last_add_confirmed = max(self.last_add_confirmed, lac)

    async def refresh(self) -> None:
        """Read the metadata again, unless the ledger is closed.

        Raises NoSuchLedger if the ledger was deleted.
        """
        if not self.metadata.closed:
            self._adopt((await self._metadata_store.read(self.metadata.ledger)).metadata)

    def watch(self, on_changed: Callable[[], None]) -> Unwatch:
        """Call `on_changed` after each later change of the stored metadata, for a `refresh`."""
        path = metadata_format.ledger_path(self.metadata.ledger)
        return self._metadata_store.store.watch(path, on_changed)

    async def read(self, first: EntryId, last: EntryId, max_bytes: int) -> Entries:
        """Read consecutive entries from `first` on, at least one, up to `last` or `max_bytes`.

        Payloads are views of the bookies' answers, with verified digests. Raises NoSuchEntry if the
        ledger is closed below `first`, and EntryLost if no bookie can hold the entry any more.
        Raises EntryUnknown if no replica can be read now, or `first` is above the LAC.
        """
        assert 0 <= first <= last
        if self.last_read is not None and self.last_read[0] == first:
            return [self.last_read]
        if last > self.last_add_confirmed and not self.metadata.closed:
            await self.read_lac()
        if first > self.last_add_confirmed:
            place = f"ledger {self.metadata.ledger} entry {first}"
            if self.metadata.closed:
                raise NoSuchEntry(f"{place}: closed at {self.metadata.last_entry}")
            raise EntryUnknown(f"{place} is not known to be confirmed")
        last = min(last, self.last_add_confirmed)
        entries = await self._read_first(first, last, max_bytes)
        if entries[-1][0] == last:
            return entries
        size = sum(len(payload) for _, payload in entries)
        while _is_worth_more(size, len(entries[-1][1]), max_bytes) and entries[-1][0] < last:
            try:
                some = await self._read_some(EntryId(entries[-1][0] + 1), last, max_bytes - size)
            except (EntryUnknown, NoSuchEntry):
                break  # a later read from this entry reports the reason
            entries += some
            size += sum(len(payload) for _, payload in some)
        return entries

    async def _read_first(self, first: EntryId, last: EntryId, max_bytes: int) -> Entries:
        """Read as `_read_some`, and retry if the entry was moved to other bookies.

        Ensemble changes move entries of open ledgers. Re-replication also moves entries of closed
        ledgers.
        """
        while True:
            asked = self.metadata  # a concurrent read of this reader may replace `self.metadata`
            try:
                return await self._read_some(first, last, max_bytes)
            except (EntryUnknown, NoSuchEntry):
                ledger = asked.ledger
                try:
                    stored = await self._metadata_store.read_latest(ledger)
                except MetadataUnavailable as unanswered:
                    place = f"ledger {ledger} entry {first}"
                    raise EntryUnknown(f"{place}: its current bookies are unknown") from unanswered
                self._adopt(stored.metadata)
                if self.metadata.bookies_of(first) == asked.bookies_of(first):
                    raise

    async def _read_some(self, first: EntryId, last: EntryId, max_bytes: int) -> Entries:
        """Read entries first..last, at least `first`, from one bookie."""
        metadata = self.metadata
        write_set = metadata.bookies_of(first)
        bookies = self._health.read_order(
            write_set, self._last_good, len(write_set) - 1, SampleKind.READ
        )
        plan = ReadPlan(bookies, metadata.ack_quorum, self._loop.time() + self._timeout_s)

        def next_attempt() -> Attempt[Entries] | None:
            bookie = plan.next()
            if bookie is None:
                return None
            return self._read_from(plan, bookie, first, last, max_bytes)

        # Start each attempt early enough that the last replica can answer before the timeout.
        late_s = min(self._late_s, self._timeout_s / (len(bookies) + 1))
        entries = await SpeculativeRead(
            next_attempt,
            late_s=late_s,
            late_s_max=late_s,
            timeout_s=self._timeout_s,
            on_late=self._health.on_speculative_read,
        ).run()
        if entries is not None:
            return entries
        place = f"ledger {metadata.ledger} entry {first}"
        if plan.verdict.lost:
            raise EntryLost(
                f"{place}: none of its bookies has it", metadata.ledger, first, plan.copies
            )
        bookies = waited_for(plan.copies)
        raise EntryAwaited(
            f"{place}: no replica could be read; {', '.join(bookies)} may have it", bookies
        )

    async def _read_from(
        self, plan: ReadPlan, bookie: BookieId, first: EntryId, last: EntryId, max_bytes: int
    ) -> Entries | None:
        """Read and verify entries first..last of one bookie, or return None without `first`."""

        def probe(other: BookieId) -> Coroutine[Any, Any, None]:
            return self._probe(other, span, plan.bookies, bookie)

        span = (first, last, max(1, max_bytes))
        other = self._health.start_probe(bookie, SampleKind.READ, plan.bookies, probe)
        asked_at_s = self._loop.time()
        ok: bool | None = None
        try:
            reply = await self._bookies.read_many(bookie, self.metadata.ledger, *span)
            if reply.status is Status.UNAUTHORIZED:
                raise Unauthorized(f"ledger {self.metadata.ledger}: {bookie} refuses its key")
            entries = self._entries_of(bookie, first, last, reply)
            plan.on_answer(bookie, _answer_of(reply, entries))
            ok = bool(entries) or reply.status not in (Status.OK, *UNHEALTHY)
            if not entries:
                return None
            plan.on_found(self._loop.time() - asked_at_s)
            beside = () if other is None else (other,)
            self._on_read(bookie, reply, asked_at_s, plan.bookies, beside)
            self._last_good = bookie
            self._raise_lac(reply.lac)
            return entries
        finally:
            if ok is not None:
                self._health.on_result(bookie, ok)
            elif plan.is_late(asked_at_s, self._loop.time(), self._late_s):
                self._health.on_result(bookie, False)  # cancelled, as another bookie was faster

    async def _probe(
        self, bookie: BookieId, span: _Span, replicas: tuple[BookieId, ...], beside: BookieId
    ) -> None:
        """Read the same entries as from `beside` from one more bookie, only to measure it."""
        asked_at_s = self._loop.time()
        reply = ReadManyReply(Status.UNREACHABLE)
        try:
            async with asyncio.timeout(self._timeout_s):
                reply = await self._bookies.read_many(bookie, self.metadata.ledger, *span)
        except TimeoutError:
            pass
        self._health.on_result(bookie, reply.status not in UNHEALTHY)
        if reply.status is Status.OK and reply.bodies:
            self._on_read(bookie, reply, asked_at_s, replicas, (beside,))

    def _on_read(
        self,
        bookie: BookieId,
        reply: ReadManyReply,
        asked_at_s: float,
        replicas: tuple[BookieId, ...],
        beside: tuple[BookieId, ...] = (),
    ) -> None:
        """Count how long the bookie took for an answer with entries."""
        answer = Answer(SampleKind.READ, sum(map(len, reply.bodies)), replicas)
        self._health.on_sample(bookie, answer, self._loop.time() - asked_at_s, beside)

    def _entries_of(
        self, bookie: BookieId, first: EntryId, last: EntryId, reply: ReadManyReply
    ) -> Entries:
        """Return the valid entries of the answer, up to `last`: a bookie may send more."""
        if reply.status is not Status.OK:
            return []
        return self.verified(bookie, first, reply.bodies[: last - first + 1])

    def verified(self, bookie: BookieId, first: EntryId, bodies: Sequence[Buffer]) -> Entries:
        """Return the payloads from `first` on, up to the first corrupt copy, which is reported."""
        entries: Entries = []
        ledger = self.metadata.ledger
        entry = first
        for body in bodies:
            try:
                payload = self._format.unpack(body, ledger, entry)
            except CorruptFormat:
                self._health.report_corrupt(bookie, ledger, entry)
                break
            entries.append((entry, payload))
            entry = EntryId(entry + 1)
        return entries

    async def read_lac(self, *, refresh: bool = True) -> EntryId:
        """Read the LAC of an open ledger from its bookies, and return it.

        Without `refresh` the caller has just read the metadata.

        The LAC covers every entry confirmed before the call, except the last one that was added.
        For a closed ledger, the result is the last entry. Raises EntryUnknown if too few bookies of
        the last ensemble answer.
        """
        if refresh:
            await self.refresh()
        if self.metadata.closed:
            return self.last_add_confirmed
        metadata = self.metadata
        coverage = Coverage(
            write_sets(metadata.ensemble_size, metadata.write_quorum), metadata.ack_quorum
        )

        def on_reply(index: int, known: bool) -> bool:
            if known:
                coverage.on_known(index)
            else:
                coverage.on_unknown(index)
            return coverage.reached or coverage.lost

        await self._read_lacs(on_reply)
        if not coverage.reached:
            raise EntryUnknown(
                f"ledger {metadata.ledger}: fewer than a quorum of bookies returned their LAC"
            )
        return self.last_add_confirmed

    async def try_read_lac(self) -> EntryId:
        """Return a higher LAC as soon as a bookie reports one, otherwise the known LAC.

        This is faster than `read_lac`, but the result may lag behind. Raises EntryUnknown if no
        bookie answers.
        """
        before = self.last_add_confirmed
        answered = False

        def on_reply(_: int, known: bool) -> bool:
            nonlocal answered
            answered = answered or known
            return self.last_add_confirmed > before

        if not self.metadata.closed:
            await self._read_lacs(on_reply)
            if not answered:
                raise EntryUnknown(f"ledger {self.metadata.ledger}: no bookie returned its LAC")
        return self.last_add_confirmed

    async def _read_lacs(self, on_reply: Callable[[int, bool], bool]) -> None:
        """Read the LAC of all bookies of the last ensemble, until `on_reply` returns True."""
        ensemble = self.metadata.last_fragment.ensemble
        reading = {
            asyncio.ensure_future(self._read_lac_of(index, bookie))
            for index, bookie in enumerate(ensemble)
        }
        enough = False
        try:
            while reading and not enough:
                done, reading = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
                for index, reply in sorted(task.result() for task in done):
                    enough |= self._on_lac(index, reply, on_reply)
        finally:
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)

    def _on_lac(self, index: int, reply: ReadReply, on_reply: Callable[[int, bool], bool]) -> bool:
        known = reply.status is Status.OK or reply.status in _ABSENT
        if known:
            self._raise_lac(reply.lac)
        return on_reply(index, known)

    async def _read_lac_of(self, index: int, bookie: BookieId) -> tuple[int, ReadReply]:
        try:
            async with asyncio.timeout(self._timeout_s):
                return index, await self._bookies.read_lac(bookie, self.metadata.ledger)
        except TimeoutError:
            return index, ReadReply(Status.UNREACHABLE)


def _answer_of(reply: ReadManyReply, entries: Entries) -> CopyAnswer:
    """Return what the answer to a read says of the bookie's copy of the first entry.

    An answer without that entry that is not a refusal says nothing: the batch ended before it.
    """
    if entries:
        return CopyAnswer.HELD
    if reply.status is not Status.OK:
        return ANSWERS.get(reply.status, CopyAnswer.UNKNOWN)
    return CopyAnswer.DAMAGED if reply.bodies else CopyAnswer.UNKNOWN


def _is_worth_more(size: int, entry_bytes: int, max_bytes: int) -> bool:
    """Return whether another request pays off for a read of `size` bytes so far.

    It does not if an entry like the last one would not fit, nor for a small part of `max_bytes`.
    """
    return max_bytes - size >= max(entry_bytes, min(_REST_BYTES_MIN, max_bytes // 4))
