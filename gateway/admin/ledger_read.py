"""Reads a ledger as a client does, entry by entry, for `gateway ledger read`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, cast

from gateway.admin.client import AdminError
from gateway.admin.losses import lost_row
from gateway.admin.storage import Storage
from ledger.client.client import LedgerClient
from ledger.client.reader import LedgerReader
from ledger.core.accepted_losses import LostRange
from ledger.core.gaps import ENTRY_MAX, Evidence, OffsetRange, joined
from ledger.core.loss import EntryLost, judge
from ledger.core.records import POSITION_MAX, LogRecord, parse_entry
from ledger.errors import CorruptFormat, EntryUnknown
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.losses.place import LedgerPlace, find_place
from ledger.ports.bookies import Bookies, ReadManyReply, ReadReply
from ledger.streams.compressed_entries import decompressed

Row = dict[str, Any]

_CHUNK_BYTES = 1024 * 1024
_TAIL_S = 30.0


class _CountedBookies:
    """The bookies, with the bytes of entries that each of them returned."""

    def __init__(self, bookies: Bookies, served: Counter[BookieId]) -> None:
        self._bookies = bookies
        self._served = served

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bookies, name)

    async def read_many(
        self, bookie: BookieId, ledger: LedgerId, first: EntryId, last: EntryId, max_bytes: int
    ) -> ReadManyReply:
        reply = await self._bookies.read_many(bookie, ledger, first, last, max_bytes)
        self._served[bookie] += sum(map(len, reply.bodies))
        return reply

    async def wait_lac(
        self, bookie: BookieId, ledger: LedgerId, previous: EntryId, timeout_s: float
    ) -> ReadReply:
        reply = await self._bookies.wait_lac(bookie, ledger, previous, timeout_s)
        self._served[bookie] += len(reply.body)
        return reply


class LedgerLines:
    """One reading of a ledger. `show` receives a row for each entry and each gap, in order."""

    def __init__(self, ledger: LedgerId, show: Callable[[Row], None]) -> None:
        # The bytes of entries that each bookie returned. Only grows.
        self.served: Counter[BookieId] = Counter()
        self._ledger = ledger
        self._show = show
        # The offset that follows what was shown, None while it is unknown.
        self._offset: int | None = None
        # The first of the lost entries that are not shown yet, and their evidence.
        self._lost_from: EntryId | None = None
        self._evidence: list[Evidence] = []

    async def read(
        self, storage: Storage, first: EntryId, until: EntryId | None, *, follow: bool
    ) -> None:
        """Show entries `first` to `until`, or to the end. Raises AdminError if one is awaited."""
        metadata = await storage.metadata_of(self._ledger)
        if metadata.last_entry is not None and first > metadata.last_entry + 1:
            raise AdminError(
                f"--first {first}: the last entry of ledger {self._ledger} is "
                f"{metadata.last_entry}",
                "NO_SUCH_ENTRY",
            )
        place = await find_place(storage.store, metadata)
        bookies = cast("Bookies", _CountedBookies(storage.bookies, self.served))
        client = LedgerClient(storage.store, bookies, storage.clock, storage.client_config)
        reader = await client.open(self._ledger)
        self._offset = place.start if first == 0 else None
        at = int(first)
        end = ENTRY_MAX if until is None else until
        try:
            at = await self._read_confirmed(reader, place, at, end)
            while follow and at <= end and not reader.metadata.closed:
                await self._wait(client, reader, EntryId(at))
                at = await self._read_confirmed(reader, place, at, end)
        except EntryUnknown as error:
            raise AdminError(
                f"{error}; see `gateway ledger why {self._ledger} {at}`", "AWAITED"
            ) from error
        self._end(reader, place, at, end)

    async def _wait(self, client: LedgerClient, reader: LedgerReader, entry: EntryId) -> None:
        """Wait until the entry is confirmed or the ledger is closed."""
        tail = client.tail(reader)
        try:
            while reader.last_add_confirmed < entry and not reader.metadata.closed:
                await tail.wait_lac(EntryId(entry - 1), _TAIL_S)  # the entry itself may be lost
                await reader.refresh()
        finally:
            tail.close()

    async def _read_confirmed(
        self, reader: LedgerReader, place: LedgerPlace, at: int, end: int
    ) -> int:
        """Show the confirmed entries from `at` to `end`. Returns the entry that follows."""
        while at <= min(end, reader.last_add_confirmed):
            accepted = next((each for each in place.accepted if each.last >= at), None)
            if accepted is not None and accepted.first <= at:
                self._flush(place, at, accepted.offsets.first)
                self._show(lost_row(accepted, "accepted"))
                self._offset = accepted.offsets.last + 1
                at = accepted.last + 1
                continue
            last = min(end, reader.last_add_confirmed)
            if accepted is not None:
                last = min(last, accepted.first - 1)
            at = await self._read_chunk(reader, place, EntryId(at), EntryId(last))
        return at

    async def _read_chunk(
        self, reader: LedgerReader, place: LedgerPlace, first: EntryId, last: EntryId
    ) -> int:
        try:
            entries = await reader.read(first, last, _CHUNK_BYTES)
        except EntryLost as error:
            verdict = judge(error.copies, reader.metadata.ack_quorum)
            if self._lost_from is None:
                self._lost_from = first
            self._evidence.append(Evidence(self._ledger, verdict, error.copies))
            return first + 1
        for entry, payload in entries:
            self._show_entry(place, entry, payload)
        return entries[-1][0] + 1

    def _show_entry(self, place: LedgerPlace, entry: EntryId, payload: memoryview) -> None:
        row: Row = {"kind": "entry", "entry": entry, "bytes": len(payload), "records": None}
        try:
            records = list(parse_entry(decompressed(payload)))
        except CorruptFormat:
            records = list[LogRecord]()  # another program's ledger
        if not records:
            self._flush(place, entry, None)
            self._show(row)
            return
        final, head = records[-1], records[0]
        begin = place.start + head.position - (0 if head.control else 1)
        self._flush(place, entry, begin)
        self._offset = place.start + final.position + max(final.records - 1, 0)
        count = sum(each.records for each in records)
        offsets = [begin, self._offset - 1]
        self._show({**row, "records": count, "offsets": offsets, "exact": True})

    def _flush(self, place: LedgerPlace, before: int, offset: int | None) -> None:
        """Show the lost entries before `before`, whose first record has `offset`."""
        first = self._lost_from
        if first is None:
            return
        left = place.start if self._offset is None else self._offset
        right = left + POSITION_MAX if offset is None else offset
        exact = self._offset is not None and offset is not None
        offsets = OffsetRange(left, max(right, left) - 1, exact)
        evidence = joined(self._evidence)
        lost = LostRange(place.number, first, EntryId(before - 1), offsets, evidence)
        self._show(lost_row(lost, "lost"))
        self._lost_from = None
        self._evidence.clear()
        self._offset = offset

    def _end(self, reader: LedgerReader, place: LedgerPlace, at: int, end: int) -> None:
        last = reader.metadata.last_entry
        over = last is not None and at > last
        self._flush(place, at, place.end if over else None)
        if not over or end <= (last or 0) or at > ENTRY_MAX:
            return
        rest = next((each for each in place.accepted if each.forced), None)
        if rest is not None:  # closed by force: the rest is lost, not empty
            self._show(lost_row(rest, "accepted"))
            return
        first = self._offset if self._offset is not None else place.end
        self._show(
            {
                "kind": "BRIDGE",
                "entries": [at, ENTRY_MAX],
                "offsets": [first or 0, (first or 0) - 1],
                "exact": first is not None,
            }
        )
