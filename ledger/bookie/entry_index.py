"""The index: (ledger, entry) -> location in the log, and other state of the bookie.

Keys: `e` ledger entry -> location · `l` ledger -> state · `f` file ledger -> live bytes of the
ledger in that file · `m` -> replay mark · `b` -> every ledger below is in limbo · `d` -> every
ledger below is fenced. Each batch covers one range of the log and ends with the replay mark. After
a crash the table therefore matches a prefix of the log, and replay continues at the mark. Source:
BookKeeper EntryLocationIndex.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final

from ledger.bookie.config import BookieConfig
from ledger.bookie.ledger_descriptor import EntryLocation, LedgerDescriptor, QueuedRecord
from ledger.core.journal_format import LogPosition, RecordType
from ledger.ids import Buffer
from ledger.ports.table import Table

_ENTRY_KEY = Struct(">cQQ")
_LEDGER_KEY = Struct(">cQ")
_FILE_KEY = Struct(">cQQ")
_LOCATION = Struct(">QII")
_MARK = Struct(">QQ")
_I64 = Struct(">q")
_MARK_KEY: Final = b"m"
_LIMBO_KEY: Final = b"b"
_FENCED_KEY: Final = b"d"
_SCAN_LIMIT: Final = 4096


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
        return state

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
        if found is not None or entry < 0:
            return found
        value = self._table.get(_ENTRY_KEY.pack(b"e", state.ledger, entry))
        return EntryLocation(*_LOCATION.unpack(value)) if value is not None else None

    def locations(
        self, state: LedgerDescriptor, first: int, last: int, limit: int
    ) -> list[EntryLocation]:
        """Return locations of consecutive durable entries, up to a gap, `last` or `limit`."""
        found: list[EntryLocation] = []
        wanted = min(limit, last - first + 1)
        rows = self._table.scan(
            _ENTRY_KEY.pack(b"e", state.ledger, first),
            _ENTRY_KEY.pack(b"e", state.ledger, first + wanted),
            wanted,
        )
        recent, entry = state.recent, first
        for key, value in rows:
            while int.from_bytes(key[9:], "big") > entry:
                location = recent.get(entry)
                if not isinstance(location, EntryLocation):
                    return found
                found.append(location)
                entry += 1
            # A repair or compaction may have put the entry elsewhere since the last batch.
            location = recent.get(entry)
            if not isinstance(location, EntryLocation):
                location = EntryLocation(*_LOCATION.unpack(value))
            found.append(location)
            entry += 1
        while len(found) < wanted and isinstance(location := recent.get(entry), EntryLocation):
            found.append(location)
            entry += 1
        return found

    def rows(self, ledger: int, first: int, limit: int) -> list[tuple[int, EntryLocation]]:
        """Return the table's entries from `first` on, with their locations."""
        found = self._table.scan(
            _ENTRY_KEY.pack(b"e", ledger, first), _entry_range(ledger)[1], limit
        )
        return [
            (int.from_bytes(key[9:], "big"), EntryLocation(*_LOCATION.unpack(value)))
            for key, value in found
        ]

    def find_last_entry(self, state: LedgerDescriptor) -> int:
        """Return the highest entry that is stored or on its way, or -1."""
        row = self._table.last(*_entry_range(state.ledger))
        stored = int.from_bytes(row[0][9:], "big") if row is not None else -1
        return max(stored, max(state.recent, default=-1))

    def write_batch(self, mark: LogPosition) -> None:
        """Write all changes logged durably before `mark` to the table. Raises OSError."""
        puts: list[tuple[bytes, bytes]] = []
        current: list[tuple[LedgerDescriptor, int, EntryLocation]] = []
        used: dict[tuple[int, int], int] = {}
        for fresh in self._unindexed:
            state, entry, location = fresh
            if state.recent.get(entry) is not location:
                continue  # the entry was deleted or moved meanwhile
            current.append(fresh)
            ledger = state.ledger
            puts.append((_ENTRY_KEY.pack(b"e", ledger, entry), _LOCATION.pack(*location)))
            key = (location.file_id, ledger)
            used[key] = used.get(key, 0) + location.length
            self._changed.add(state)
        for (file_id, ledger), size in used.items():
            self.add_usage(file_id, ledger, size)
        for state in self._changed:
            assert self._states.get(state.ledger) is state  # each ledger has only one descriptor
            puts.append((_LEDGER_KEY.pack(b"l", state.ledger), state.encode()))
        puts.extend(self._usage_rows())
        puts.append((_MARK_KEY, _MARK.pack(*mark)))
        self._table.write(puts)
        for state, entry, _ in current:
            del state.recent[entry]
        self.entries_since_flush += len(self._unindexed)
        self._unindexed.clear()
        self._changed.clear()
        self._usage_changed.clear()
        self._written = mark
        self._evict_idle()

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
            state.deleted = state.fenced = True
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
                state.fenced = state.limbo = True
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
                state.fenced = True
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
        ledgers = self._usage.pop(file_id, {})
        self._usage_changed -= {(file_id, ledger) for ledger in ledgers}
        if ledgers:
            self._table.write([], [_FILE_KEY.pack(b"f", file_id, ledger) for ledger in ledgers])

    def _load_state(self, ledger: int) -> LedgerDescriptor | None:
        value = self._table.get(_LEDGER_KEY.pack(b"l", ledger))
        if value is None:
            return None
        state = LedgerDescriptor.decode(ledger, value)
        state.last_entry = self.find_last_entry(state)
        self._states[ledger] = state
        return state

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
            self._states = {
                ledger: state
                for ledger, state in self._states.items()
                if state.recent or state.busy
            }

    def _scan(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        while rows := self._table.scan(first, end, _SCAN_LIMIT):
            yield from rows
            first = rows[-1][0] + b"\0"


_FILE_END: Final = b"g"
_LEDGER_END: Final = b"m"


def _entry_range(ledger: int) -> tuple[bytes, bytes]:
    return _LEDGER_KEY.pack(b"e", ledger), _LEDGER_KEY.pack(b"e", ledger + 1)
