"""One ledger as a log of small records: appended in order, read back by whoever takes it over.

Entries are DistributedLog's (see docs/formats/segment.md): an envelope around plain records. A
record's transaction id is the wall time it was appended at, which never falls within a log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ledger.client.client import LedgerClient
from ledger.client.reader import LedgerReader
from ledger.client.writer import LedgerWriter
from ledger.core.records import RECORD, RECORD_BYTES, control_record, envelope, parse_entry
from ledger.errors import CorruptFormat, LedgerError, NoSuchEntry, NoSuchLedger
from ledger.ids import EntryId, LedgerId

ENTRY_BYTES = 1024 * 1024  # what one append should have at most; a single larger record may go
_READ_BYTES = 1024 * 1024

OnDurable = Callable[[LedgerError | None], None]


class LogQuorum(NamedTuple):
    """How many bookies a new log is on, how many copies it has, how many acknowledge."""

    ensemble: int = 1
    write: int = 1
    ack: int = 1

    @classmethod
    def majority_of(cls, copies: int) -> LogQuorum:
        """So many copies, one on each bookie, of which most must be there."""
        return cls(copies, copies, copies // 2 + 1)


class PlainRecord(NamedTuple):
    """One stored record; `time_ms` is when it was appended."""

    time_ms: int
    data: memoryview


class PlainLog:
    """The one writer of a log. Whatever it raises or tells as an error ends it."""

    __slots__ = ("_writer", "ledger", "records", "size_bytes", "time_ms")

    def __init__(self, writer: LedgerWriter) -> None:
        self._writer = writer
        self.ledger = writer.ledger
        self.records = 0  # appended, control records not counted
        self.size_bytes = 0
        self.time_ms = 0  # of the last record

    def append(self, records: Sequence[bytes], now_ms: int, on_durable: OnDurable) -> None:
        """Accepted as one entry, all or nothing; on Qa bookies when `on_durable(None)` runs.

        `on_durable` runs once, in order, never inside `append`. Every record before the failed
        one, and none after it, may turn out to be durable. Raises Fenced, LedgerClosed,
        AddFailed, EntryTooLarge. The caller keeps few entries under way.
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
        self._writer.add((b"".join(parts),), on_durable)
        self.records = position
        self.size_bytes += size

    def announce(self) -> None:
        """Readers that do not fence see soon all that is durable now. At most a courtesy.

        Source: DistributedLog, control records (seed 000).
        """
        record = control_record(self.records, self.time_ms, b"")
        try:
            self._writer.add((envelope(len(record), 0), record), _ignore)
        except LedgerError:
            pass  # whoever appends next hears of it

    async def close(self) -> None:
        """All that was acknowledged is in a closed ledger, which needs no recovery.

        Waits for what is under way. Raises what ended the log, and MetadataUnavailable.
        """
        await self._writer.close()


def _ignore(_: LedgerError | None) -> None:
    pass


class PlainLogs:
    """Makes, reads and deletes logs. `quorum` is asked for each new one."""

    def __init__(self, client: LedgerClient, quorum: Callable[[], LogQuorum] = LogQuorum) -> None:
        self._client = client
        self._quorum = quorum

    async def create(self, custom: Mapping[str, bytes]) -> PlainLog:
        """A new log; `custom` in its ledger's metadata tells whose it is.

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
        """All that was ever acknowledged; its writer, if it lives, can add nothing any more.

        Raises NoSuchLedger, CorruptFormat; EntryUnknown, AddFailed, MetadataUnavailable: try
        again.
        """
        return await _read_all(await self._client.recover(ledger))

    async def read(self, ledger: LedgerId) -> list[PlainRecord]:
        """What is known to be acknowledged: all of a closed log, else perhaps not the last.

        Raises as `recover`; disturbs nobody.
        """
        return await _read_all(await self._client.open(ledger))

    async def delete(self, ledger: LedgerId) -> None:
        """The log is gone; also when it was before. Raises what recovery raises."""
        try:
            await self._client.delete(ledger)
        except NoSuchLedger:
            pass


async def _read_all(reader: LedgerReader) -> list[PlainRecord]:
    found: list[PlainRecord] = []
    entry, last = EntryId(0), reader.last_add_confirmed
    while entry <= last:
        try:
            entries = await reader.read(entry, last, _READ_BYTES)
        except NoSuchEntry as error:
            raise CorruptFormat(f"ledger {reader.metadata.ledger}: {error}") from error
        for at, payload in entries:
            entry = EntryId(at + 1)
            records = parse_entry(payload)
            found += [PlainRecord(each.txid, each.data) for each in records if not each.control]
    return found
