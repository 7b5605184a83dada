"""The index: (ledger, entry) -> location in the log, and other state of the bookie.

Keys: `e` ledger, first entry -> extent (`ledger.core.extents`) · `l` ledger -> state · `f` file
ledger -> live bytes of the ledger in that file · `m` -> replay mark · `b` -> every ledger below is
in limbo · `d` -> every ledger below is fenced. The extents of a ledger never overlap. Each batch
covers one range of the log and ends with the replay mark. After a crash the table therefore matches
a prefix of the log, and replay continues at the mark. Source: BookKeeper EntryLocationIndex.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final

from ledger.bookie.config import READ_ENTRIES_MAX, BookieConfig
from ledger.bookie.ledger_descriptor import LedgerDescriptor, QueuedRecord
from ledger.core.extents import (
    EntryLocation,
    Extent,
    count_entries,
    decode_extent,
    encode_extent,
    extents_of,
)
from ledger.core.journal_format import LogPosition, RecordType
from ledger.errors import CorruptFormat
from ledger.ids import Buffer
from ledger.ports.table import Table

_ENTRY_KEY = Struct(">cQQ")
_LEDGER_KEY = Struct(">cQ")
_FILE_KEY = Struct(">cQQ")
_MARK = Struct(">QQ")
_I64 = Struct(">q")
_MARK_KEY: Final = b"m"
_LIMBO_KEY: Final = b"b"
_FENCED_KEY: Final = b"d"
_SCAN_LIMIT: Final = 4096
_EXTENTS_FIRST: Final = 4  # rows of the first look-up; a read seldom needs more extents
_FOUND_MAX: Final = 16  # rows kept as they were parsed, up to about 100 KiB each
_ENTRY_MAX: Final = 2**63 - 1


class EntryIndex:
    """The index of one bookie: a table, and recent changes in memory. Only `flush` waits."""

    def __init__(self, table: Table, config: BookieConfig) -> None:
        self._table = table
        self._config = config
        # Ledgers in use, by id. Loaded or created on demand; evicted by `_evict_idle`.
        self._states: dict[int, LedgerDescriptor] = {}
        # Entries that are durable and not in the table, in log order. Emptied by `write_batch`.
        self._unindexed: list[tuple[LedgerDescriptor, int, EntryLocation]] = []
        # Ledgers whose state in the table is outdated. Emptied by `write_batch`.
        self._changed: set[LedgerDescriptor] = set()
        # Live bytes as file -> ledger -> bytes. The item of a file is removed with the file.
        self._usage: dict[int, dict[int, int]] = {}
        # (file, ledger) pairs whose usage in the table is outdated. Emptied by `write_batch`.
        self._usage_changed: set[tuple[int, int]] = set()
        # Every ledger below this id is in limbo, unless its own limbo ended. Never falls.
        self.limbo_below = 0
        # Every ledger below this id is fenced. Never falls.
        self.fenced_below = 0
        # The durable replay mark, where the next replay starts. Never falls.
        self.flushed = LogPosition(0, 0)
        # The replay mark of the last batch, durable or not. Never before `flushed`.
        self._written = LogPosition(0, 0)
        # Entries written to the table since the last flush began.
        self.entries_since_flush = 0
        # The extents that readers looked up last, one for a ledger, at most `_FOUND_MAX`, least
        # recently used first. Emptied by changes of the table.
        self._found: OrderedDict[int, Extent] = OrderedDict()
        # The number of ledgers that `ledgers` would list. None before it is first asked for.
        self._ledger_count: int | None = None
        # The number of files that were dropped. Only grows.
        self.files_dropped = 0

    @property
    def batch_due(self) -> bool:
        """True if enough entries wait for a batch."""
        return len(self._unindexed) >= self._config.index_batch_entries

    def load(self) -> LogPosition | None:
        """Load the table. Returns its replay mark, or None if the table is new."""
        limbo = self._table.get(_LIMBO_KEY)
        self.limbo_below = _I64.unpack(limbo)[0] if limbo is not None else 0
        fenced = self._table.get(_FENCED_KEY)
        self.fenced_below = _I64.unpack(fenced)[0] if fenced is not None else 0
        for key, value in self._scan(_LEDGER_KEY.pack(b"f", 0), _FILE_END):
            _, file_id, ledger = _FILE_KEY.unpack(key)
            self._usage.setdefault(file_id, {})[ledger] = _I64.unpack(value)[0]
        mark = self._table.get(_MARK_KEY)
        if mark is None:
            return None
        self.flushed = self._written = LogPosition(*_MARK.unpack(mark))
        return self.flushed

    def state(self, ledger: int) -> LedgerDescriptor | None:
        """Return the ledger's state, or None if it is unknown. Raises OSError."""
        state = self._states.get(ledger)
        return state if state is not None else self._load_state(ledger)

    def create(self, ledger: int, master_key: bytes | None) -> LedgerDescriptor:
        """Create a ledger. It starts fenced or in limbo if its id is below the bound for that."""
        assert ledger not in self._states
        state = LedgerDescriptor(ledger, master_key)
        state.limbo = ledger < self.limbo_below
        state.fenced = state.limbo or ledger < self.fenced_below
        self._states[ledger] = state
        self._count(1)
        return state

    def _count(self, more: int) -> None:
        if self._ledger_count is not None:
            self._ledger_count += more

    def put(self, state: LedgerDescriptor, entry: int, location: EntryLocation) -> None:
        """Record that the entry is durable at `location`."""
        state.recent[entry] = location
        self._unindexed.append((state, entry, location))

    def apply(self, kind: int, state: LedgerDescriptor, entry: int, body: Buffer) -> None:
        """Apply a durable record of one ledger that is neither ADD nor DELETED."""
        if kind == RecordType.FENCE:
            state.fenced = state.fence_logged = True
        elif kind == RecordType.EXPLICIT_LAC:
            state.lac = max(state.lac, entry)
        elif kind == RecordType.LEDGER_KEY:
            state.master_key = bytes(body)
            state.key_queued = state.key_logged = True
        elif kind == RecordType.LIMBO:
            state.limbo, state.limbo_ended = bool(entry), not entry
            state.fenced = state.fenced or state.limbo
        self._changed.add(state)

    def add_usage(self, file_id: int, ledger: int, size: int) -> None:
        """Record that `size` more bytes of the file belong to the ledger."""
        ledgers = self._usage.setdefault(file_id, {})
        ledgers[ledger] = ledgers.get(ledger, 0) + size
        self._usage_changed.add((file_id, ledger))

    def find(self, state: LedgerDescriptor, entry: int) -> EntryLocation | QueuedRecord | None:
        """Return the entry's location, or its QueuedRecord while not durable. Raises OSError."""
        found = state.recent.get(entry)
        if found is not None or not 0 <= entry <= state.stored_last:
            return found
        for extent in self._looked_up(state.ledger, entry, entry):
            return extent.locate(entry)
        return None

    def extents(
        self, state: LedgerDescriptor, first: int, last: int, bytes_max: int
    ) -> list[Extent]:
        """Return the places of consecutive durable entries, up to a gap, `last` or `bytes_max`.

        At most `READ_ENTRIES_MAX` entries. If `first` is durable, it is returned even if it is
        longer. Raises OSError.
        """
        found: list[Extent] = []
        last = min(last, first + READ_ENTRIES_MAX - 1)
        entry, left = first, bytes_max
        stored = self._looked_up(state.ledger, first, min(last, state.stored_last))
        held = next(stored, None)
        while entry <= last and (left > 0 or not found):
            fresh = _recent_run(state.recent, entry, last, max(left, 1))
            while not fresh and held is not None and held.last < entry:
                held = next(stored, None)
            if not fresh and held is not None and held.first <= entry:
                fresh = [held.part(entry, _last_unchanged(state.recent, entry, held.last))]
            for extent in fresh:
                count = max(extent.within(left, min(last, extent.last)), 0 if found else 1)
                if count == 0:
                    return found
                found.append(extent.part(extent.first, extent.first + count - 1))
                left -= found[-1].length
                if count < len(extent.lengths):
                    return found
            if not fresh:
                return found
            entry = found[-1].last + 1
        return found

    def rows(self, ledger: int, first: int, limit: int) -> list[tuple[int, EntryLocation]]:
        """Return the table's entries from `first` on, with their locations."""
        found: list[tuple[int, EntryLocation]] = []
        for extent in self._stored(ledger, first, _ENTRY_MAX):
            begin = max(first, extent.first)
            last = min(extent.last, begin + limit - len(found) - 1)
            found += extent.part(begin, last).locations()
            if len(found) >= limit:
                return found
        return found

    def spans(self, ledger: int, first: int, rows_max: int) -> list[tuple[int, int]]:
        """Return the first and last entry of each of the table's extents, from `first` on.

        Takes a few steps for each of up to `rows_max` rows. Returns an empty list if no entry is
        left. Raises OSError.
        """
        assert rows_max >= 2  # the first row may end before `first`
        low, end = _entry_range(ledger)
        rows = self._table.scan_from(low, _ENTRY_KEY.pack(b"e", ledger, first), end, rows_max)
        spans = [_span_of(row) for row in rows]
        return spans[1:] if spans and spans[0][1] < first else spans

    def find_last_entry(self, state: LedgerDescriptor) -> int:
        """Return the highest entry that is stored or on its way, or -1."""
        return max(state.stored_last, max(state.recent, default=-1))

    def write_batch(self, mark: LogPosition | None) -> None:
        """Write all changes logged durably before `mark` to the table. Raises OSError.

        With None the replay mark stays as it is, and a new index stays without one.
        """
        puts: list[tuple[bytes, bytes]] = []
        deletes: list[bytes] = []
        current: dict[LedgerDescriptor, dict[int, EntryLocation]] = {}
        for state, entry, location in self._unindexed:
            # Otherwise the entry was deleted or moved meanwhile
            if state.recent.get(entry) is location:
                current.setdefault(state, {})[entry] = location
        for state, entries in current.items():
            self._put_entries(state, entries, puts, deletes)
            self._changed.add(state)
        for state in self._changed:
            assert self._states.get(state.ledger) is state  # each ledger has only one descriptor
            state.stored = True
            puts.append((_LEDGER_KEY.pack(b"l", state.ledger), state.encode()))
        puts.extend(self._usage_rows())
        if mark is not None:
            puts.append((_MARK_KEY, _MARK.pack(*mark)))
        self._found.clear()
        self._table.write(puts, deletes)
        for state, entries in current.items():
            for entry in entries:
                del state.recent[entry]
            state.stored_last = max(state.stored_last, max(entries))
        self.entries_since_flush += len(self._unindexed)
        self._unindexed.clear()
        self._changed.clear()
        self._usage_changed.clear()
        self._written = mark if mark is not None else self._written
        self._evict_idle()

    def _put_entries(
        self,
        state: LedgerDescriptor,
        entries: dict[int, EntryLocation],
        puts: list[tuple[bytes, bytes]],
        deletes: list[bytes],
    ) -> None:
        """Add the rows of these entries of one ledger, and cut them out of existing extents."""
        ledger = state.ledger
        fresh = extents_of(sorted(entries.items()))
        old: dict[int, Extent] = {}
        for extent in fresh:
            self.add_usage(extent.file_id, ledger, extent.length)
            if extent.first <= state.stored_last:
                found = self._stored(ledger, extent.first, extent.last)
                old |= {each.first: each for each in found if each.last >= extent.first}
        for extent in old.values():
            deletes.append(_ENTRY_KEY.pack(b"e", ledger, extent.first))
            fresh += extent.without(entries)
        for extent in fresh:
            puts.append((_ENTRY_KEY.pack(b"e", ledger, extent.first), encode_extent(extent)))

    async def flush(self) -> None:
        """Make all batches durable and advance `flushed`. Raises OSError."""
        written = self._written
        self.entries_since_flush = 0
        await self._table.flush()
        self.flushed = max(self.flushed, written)

    def delete(self, ledgers: Iterable[int]) -> None:
        """Delete all data of these ledgers, leaving a tombstone for each. Raises OSError."""
        gone = set(ledgers)
        puts: list[tuple[bytes, bytes]] = []
        for ledger in gone:
            state = self.state(ledger) or self.create(ledger, None)
            state.deleted = state.fenced = state.stored = True
            self._count(-state.counted)
            state.counted = False
            state.stored_last = -1
            state.recent = {
                entry: it for entry, it in state.recent.items() if type(it) is not EntryLocation
            }
            puts.append((_LEDGER_KEY.pack(b"l", ledger), state.encode()))
        unused: list[bytes] = []
        for file_id, ledgers_of_file in self._usage.items():
            for ledger in gone & ledgers_of_file.keys():
                del ledgers_of_file[ledger]
                self._usage_changed.discard((file_id, ledger))
                unused.append(_FILE_KEY.pack(b"f", file_id, ledger))
        self._found.clear()
        self._table.write(puts, unused, [_entry_range(ledger) for ledger in gone])

    def begin_limbo(self, below: int, *, again: bool) -> None:
        """Fence every ledger below this id and put it into limbo until it is repaired.

        `again` is True after a new loss: ledgers whose limbo had ended enter it again. Raises
        OSError.
        """
        self.limbo_below = max(below, self.limbo_below)
        puts = [(_LIMBO_KEY, _I64.pack(self.limbo_below))]
        for ledger in self.ledgers():
            state = self.state(ledger)
            if state is not None and ledger < below and (again or not state.limbo_ended):
                state.fenced = state.limbo = state.stored = True
                state.limbo_ended = False
                puts.append((_LEDGER_KEY.pack(b"l", ledger), state.encode()))
        self._table.write(puts)

    def fence_below(self, below: int) -> None:
        """Fence every ledger below this id, including unknown ones. Raises OSError."""
        if below <= self.fenced_below:
            return
        self.fenced_below = below
        puts = [(_FENCED_KEY, _I64.pack(below))]
        for ledger in self.ledgers():
            state = self.state(ledger)
            if state is not None and ledger < below and not state.fenced:
                state.fenced = state.stored = True
                puts.append((_LEDGER_KEY.pack(b"l", ledger), state.encode()))
        self._table.write(puts)

    def ledgers(self) -> list[int]:
        """List every known ledger except deleted ones, ascending."""
        known = {ledger for ledger, state in self._states.items() if not state.deleted}
        for key, value in self._scan(_LEDGER_KEY.pack(b"l", 0), _LEDGER_END):
            ledger = _LEDGER_KEY.unpack(key)[1]
            if ledger not in self._states and not LedgerDescriptor.decode(ledger, value).deleted:
                known.add(ledger)
        return sorted(known)

    def ledger_count(self) -> int:
        """Return the length of `ledgers`. Only the first call looks at all. Raises OSError."""
        if self._ledger_count is None:
            self._ledger_count = len(self.ledgers())
        return self._ledger_count

    def newest_ledger(self) -> int:
        """Return the highest ledger id that was ever known here, also if deleted; -1 if none."""
        row = self._table.last(_LEDGER_KEY.pack(b"l", 0), _LEDGER_END)
        stored = _LEDGER_KEY.unpack(row[0])[1] if row is not None else -1
        return max(stored, max(self._states, default=-1))

    def used_bytes(self, file_id: int) -> int:
        """Return the live bytes of the file."""
        return sum(self._usage.get(file_id, {}).values())

    def ledgers_in(self, file_id: int) -> list[int]:
        """List the ledgers with live bytes in the file."""
        return sorted(self._usage.get(file_id, {}))

    def drop_file(self, file_id: int) -> None:
        """Remove the usage of a file that no location refers to any more. Raises OSError."""
        self.files_dropped += 1
        ledgers = self._usage.pop(file_id, {})
        self._usage_changed -= {(file_id, ledger) for ledger in ledgers}
        if ledgers:
            self._table.write([], [_FILE_KEY.pack(b"f", file_id, ledger) for ledger in ledgers])

    def _load_state(self, ledger: int) -> LedgerDescriptor | None:
        value = self._table.get(_LEDGER_KEY.pack(b"l", ledger))
        if value is None:
            return None
        state = LedgerDescriptor.decode(ledger, value)
        if (row := self._table.last(*_entry_range(ledger))) is not None:
            state.stored_last = _span_of(row)[1]
        state.last_entry = state.stored_last
        self._states[ledger] = state
        return state

    def _stored(self, ledger: int, first: int, last: int) -> Iterator[Extent]:
        """Yield the table's extents that hold entries from `first` to `last`. Raises OSError."""
        low, end = _LEDGER_KEY.pack(b"e", ledger), _ENTRY_KEY.pack(b"e", ledger, last + 1)
        key, limit = _ENTRY_KEY.pack(b"e", ledger, max(first, 0)), _EXTENTS_FIRST
        if last < first:
            return
        rows = self._table.scan_from(low, key, end, limit)
        while rows:
            # Only the first one, which begins before `first`, may end before it too
            yield from (extent for extent in map(_extent_of, rows) if extent.last >= first)
            if len(rows) < limit:
                return
            limit = min(limit * 4, _SCAN_LIMIT)
            rows = self._table.scan(rows[-1][0] + b"\0", end, limit)

    def _looked_up(self, ledger: int, first: int, last: int) -> Iterator[Extent]:
        """Yield the same extents as `_stored`. A row that is read in parts is parsed once."""
        held = self._found.get(ledger)
        if held is not None and held.first <= first <= held.last:
            self._found.move_to_end(ledger)
            yield held
            first = held.last + 1
        for extent in self._stored(ledger, first, last):
            self._found[ledger] = extent
            self._found.move_to_end(ledger)
            if len(self._found) > _FOUND_MAX:
                self._found.popitem(last=False)
            yield extent

    def _usage_rows(self) -> Iterator[tuple[bytes, bytes]]:
        for file_id, ledger in self._usage_changed:
            size = self._usage.get(file_id, {}).get(ledger)
            if size is not None:
                yield _FILE_KEY.pack(b"f", file_id, ledger), _I64.pack(size)

    def _evict_idle(self) -> None:
        """Evict ledgers without pending records. Call only when all entries and states
        are written.
        """
        if len(self._states) > self._config.ledgers_in_memory_max:
            kept = {
                ledger: state
                for ledger, state in self._states.items()
                if state.recent or state.busy
            }
            if self._ledger_count is not None:
                # A ledger of which nothing was logged is in no table, and unknown from now on.
                every = self._states.items()
                gone = (state for ledger, state in every if not state.stored and ledger not in kept)
                self._ledger_count -= sum(state.counted for state in gone)
            self._states = kept

    def _scan(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        while rows := self._table.scan(first, end, _SCAN_LIMIT):
            yield from rows
            first = rows[-1][0] + b"\0"


_FILE_END: Final = b"g"
_LEDGER_END: Final = b"m"


def _extent_of(row: tuple[bytes, bytes]) -> Extent:
    """Return the extent of a row. Raises OSError if the row is damaged."""
    try:
        return decode_extent(int.from_bytes(row[0][9:], "big"), row[1])
    except CorruptFormat as error:
        raise OSError(errno.EIO, str(error)) from error


def _span_of(row: tuple[bytes, bytes]) -> tuple[int, int]:
    """Return the first and last entry of a row. Raises OSError if the row is damaged."""
    first = int.from_bytes(row[0][9:], "big")
    try:
        return first, first + count_entries(first, row[1]) - 1
    except CorruptFormat as error:
        raise OSError(errno.EIO, str(error)) from error


def _recent_run(
    recent: dict[int, EntryLocation | QueuedRecord], entry: int, last: int, bytes_max: int
) -> list[Extent]:
    """Return the places of durable entries from `entry` on that the table does not have yet."""
    run: list[tuple[int, EntryLocation]] = []
    while entry <= last and bytes_max > 0:
        location = recent.get(entry)
        if not isinstance(location, EntryLocation):
            break
        run.append((entry, location))
        bytes_max -= location.length
        entry += 1
    return extents_of(run)


def _last_unchanged(recent: dict[int, EntryLocation | QueuedRecord], first: int, last: int) -> int:
    """Return the last entry before the first one that a repair or compaction has put elsewhere."""
    if not recent or min(recent) > last:
        return last
    moved = [e for e, it in recent.items() if first < e <= last and isinstance(it, EntryLocation)]
    return min(moved, default=last + 1) - 1


def _entry_range(ledger: int) -> tuple[bytes, bytes]:
    return _LEDGER_KEY.pack(b"e", ledger), _LEDGER_KEY.pack(b"e", ledger + 1)
