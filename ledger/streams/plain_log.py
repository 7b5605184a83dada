"""One ledger as a log of small records: append in order, recover and read.

Entries are DistributedLog's (see docs/formats/segment.md): an envelope around plain records, which
are compressed if the caller permits it. The transaction id of a record is the wall time of its
append, which never decreases within a log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from ledger.client.accepted_entries import accepted_entries
from ledger.client.client import LedgerClient
from ledger.client.reader import LedgerReader
from ledger.client.writer import LedgerWriter
from ledger.core.loss import EntryLost
from ledger.core.records import (
    RECORD,
    RECORD_BYTES,
    control_record,
    envelope,
    is_compressed,
    parse_entry,
)
from ledger.errors import CorruptFormat, LedgerError, NoSuchEntry, NoSuchLedger
from ledger.ids import Buffer, EntryId, LedgerId
from ledger.log import Throttle, logger

ENTRY_BYTES = 1024 * 1024  # the largest size of an append, unless a single record is larger
_READ_BYTES = 1024 * 1024
RECORDS_PER_STEP = 1_000  # records of one entry that are parsed before other tasks run

_throttle = Throttle()

OnDurable = Callable[[LedgerError | None], None]


class LogQuorum(NamedTuple):
    """The ensemble size, write quorum and ack quorum of a new log."""

    ensemble: int = 1
    write: int = 1
    ack: int = 1

    @classmethod
    def majority_of(cls, copies: int) -> LogQuorum:
        """Return the quorum of `copies` copies, one on each bookie, acknowledged by a majority."""
        return cls(copies, copies, copies // 2 + 1)


class PlainRecord(NamedTuple):
    """One stored record; `time_ms` is when it was appended."""

    time_ms: int
    data: memoryview


class PlainLog:
    """The writer of a log. It ends with the first error that it raises or reports."""

    __slots__ = ("_writer", "ledger", "records", "size_bytes", "time_ms")

    def __init__(self, writer: LedgerWriter) -> None:
        self._writer = writer
        self.ledger = writer.ledger
        # Appended records without control records: their count, and their bytes with headers and
        # before they are compressed.
        self.records = 0
        self.size_bytes = 0
        # The time of the last record. Never decreases, even if the wall clock does.
        self.time_ms = 0

    def append(
        self,
        records: Sequence[bytes],
        now_ms: int,
        on_durable: OnDurable,
        *,
        compress: bool = False,
    ) -> None:
        """Append records as one entry, all or none. With `compress` it takes fewer bytes.

        `on_durable` runs once, in order, never inside `append`: with None once the entry is on Qa
        bookies. After an error, any prefix of the entries in flight may turn out to be durable.
        Raises Fenced, LedgerClosed, AddFailed, EntryTooLarge. The caller limits the entries in
        flight.
        """
        if now_ms > self.time_ms:
            self.time_ms = now_ms
        parts = [b""]
        position, time_ms, pack = self.records, self.time_ms, RECORD.pack
        size = RECORD_BYTES * len(records)
        for data in records:
            position += 1
            parts.append(pack(position << 16, time_ms, len(data)))
            parts.append(data)
            size += len(data)
        parts[0] = envelope(size, 0)
        self._add(b"".join(parts), on_durable, compress=compress)
        self.records = position
        self.size_bytes += size

    def _add(self, entry: bytes, on_durable: OnDurable, *, compress: bool) -> None:
        if compress:
            from ledger.streams.compressed_entries import compressed  # not for a start

            entry = compressed(entry)
        self._writer.add((entry,), on_durable)

    def copy(
        self, records: Sequence[PlainRecord], on_durable: OnDurable, *, compress: bool = False
    ) -> None:
        """Append records of another log as one entry, with their times. See `append`."""
        parts = [b""]
        for each in records:
            self.time_ms = max(self.time_ms, each.time_ms)
            self.records += 1
            parts.append(RECORD.pack(self.records << 16, self.time_ms, len(each.data)))
            parts.append(bytes(each.data))
        size = sum(map(len, parts))
        parts[0] = envelope(size, 0)
        self._add(b"".join(parts), on_durable, compress=compress)
        self.size_bytes += size

    def announce(self, on_durable: OnDurable | None = None) -> None:
        """Append a control record, so that readers that do not fence see the last record soon.

        They see it once `on_durable` has run with None. Without `on_durable` a failure is ignored.
        Source: DistributedLog, control records (seed 000).
        """
        record = control_record(self.records, self.time_ms, b"")
        try:
            self._writer.add((envelope(len(record), 0), record), on_durable or _ignore)
        except LedgerError as error:  # the next append raises it too
            if on_durable is not None:
                on_durable(error)

    async def close(self) -> None:
        """Wait for the entries in flight and close the ledger, which then needs no recovery.

        Raises the error that ended the log, and MetadataUnavailable.
        """
        await self._writer.close()


def _ignore(_: LedgerError | None) -> None:
    pass


class PlainLogs:
    """The logs of a ledger client. `quorum` is called for each new log."""

    def __init__(self, client: LedgerClient, quorum: Callable[[], LogQuorum] = LogQuorum) -> None:
        self._client = client
        self._quorum = quorum

    async def create(self, custom: Mapping[str, bytes]) -> PlainLog:
        """Create a log. `custom` is stored in its ledger's metadata and names its owner.

        Raises NotEnoughBookies, MetadataUnavailable.
        """
        quorum = self._quorum()
        writer = await self._client.create(
            ensemble_size=quorum.ensemble,
            write_quorum=quorum.write,
            ack_quorum=quorum.ack,
            custom=custom,
        )
        return PlainLog(writer)

    async def recover(self, ledger: LedgerId) -> list[PlainRecord]:
        """Fence the log's writer and return every acknowledged record.

        Raises NoSuchLedger, CorruptFormat, and EntryUnknown, AddFailed or MetadataUnavailable,
        after which a retry may succeed.
        """
        return await _read_all(await self._client.recover(ledger))

    async def read(self, ledger: LedgerId) -> list[PlainRecord]:
        """Return the records up to the LAC, without fencing the writer. Raises as `recover`.

        All records of a closed log are returned. Of an open log the last entry may be missing. If
        too few of its bookies return their LAC, EntryUnknown is raised: what they would name is not
        taken for absent.
        """
        reader = await self._client.open(ledger, read_lac=False)
        await reader.read_lac(refresh=False)
        return await _read_all(reader)

    async def read_small(self, ledger: LedgerId, size_max: int) -> list[PlainRecord] | None:
        """Return the records of a closed log of at most `size_max` bytes, otherwise None.

        A larger log is not read. Its size is that of its entries, with headers and control records.
        Raises as `recover`.
        """
        reader = await self._client.open(ledger, read_lac=False)  # a closed log has its end
        if not reader.metadata.closed or reader.metadata.length > size_max:
            return None
        return await _read_all(reader)

    async def delete(self, ledger: LedgerId) -> None:
        """Delete the log, if it exists. Raises as `recover`."""
        try:
            await self._client.delete(ledger)
        except NoSuchLedger:
            pass


def _warn_of_loss(reader: LedgerReader, first: EntryId, last: EntryId) -> None:
    ledger = reader.metadata.ledger
    if _throttle.allows("lost entries", str(ledger), asyncio.get_running_loop().time()):
        logger().warning(
            "a log is read without entries that an operator gave up",
            ledger=ledger,
            first=first,
            last=last,
        )


async def _read_all(reader: LedgerReader) -> list[PlainRecord]:
    """Read all records, without entries that an operator gave up. A warning names these."""
    found: list[PlainRecord] = []
    entry, last = EntryId(0), reader.last_add_confirmed
    while entry <= last:
        lost = [each for each in accepted_entries(reader.metadata) if entry <= each[1]]
        if lost and lost[0][0] <= entry:
            _warn_of_loss(reader, entry, min(lost[0][1], last))
            entry = EntryId(lost[0][1] + 1)
            continue
        try:
            until = min(last, EntryId(lost[0][0] - 1)) if lost else last
            entries = await reader.read(entry, until, _READ_BYTES)
        except EntryLost as error:
            # The reader has read the metadata again: the loss may be accepted by now.
            if any(first <= entry <= end for first, end in accepted_entries(reader.metadata)):
                continue
            ledger = reader.metadata.ledger
            raise CorruptFormat(
                f"{error}; `gateway ledger recover {ledger} --accept-loss` gives it up"
            ) from error
        except NoSuchEntry as error:
            raise CorruptFormat(f"ledger {reader.metadata.ledger}: {error}") from error
        for at, payload in entries:
            entry = EntryId(at + 1)
            records = parse_entry(_plain(payload))
            while some := list(islice(records, RECORDS_PER_STEP)):
                found += [PlainRecord(each.txid, each.data) for each in some if not each.control]
                await asyncio.sleep(0)
    return found


def _plain(payload: Buffer) -> Buffer:
    """Return an entry with plain records. Raises CorruptFormat."""
    if not is_compressed(payload):
        return payload
    from ledger.streams.compressed_entries import decompressed

    return decompressed(payload)
