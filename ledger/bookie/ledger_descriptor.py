"""The in-memory state of one ledger on a bookie, and of records queued in the journal."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from ledger.core.extents import EntryLocation
from ledger.core.fencing import FenceState, has_crc32c
from ledger.core.journal_format import RECORD_HEADER, RECORD_HEADER_BYTES, RecordType
from ledger.ids import Buffer
from ledger.ports.bookies import OnAdded

_STATE = Struct(">Bq")
_FENCED: Final = 1
_LIMBO: Final = 2
_LIMBO_ENDED: Final = 4
_DELETED: Final = 8
# Absent from values that older versions wrote: fence and key are then logged once more
_FENCE_LOGGED: Final = 16
_KEY_LOGGED: Final = 32
# Adds in a row after which the digest type is certain: one may match, or be damaged, by chance
_CERTAIN: Final = 2


class QueuedRecord:
    """One record in the journal's queue or in flight. Immutable; `on_done` is called once."""

    __slots__ = ("body", "entry", "header", "kind", "lac", "ledger", "on_done", "size")

    def __init__(
        self,
        kind: RecordType,
        ledger: LedgerDescriptor,
        entry: int,
        lac: int,
        body: Sequence[Buffer],
        length: int,
        on_done: OnAdded,
    ) -> None:
        self.kind = kind
        self.ledger = ledger
        self.entry = entry
        self.lac = lac
        self.body = body
        self.header = RECORD_HEADER.pack(kind, length, ledger.ledger, entry)
        self.size = RECORD_HEADER_BYTES + length
        self.on_done = on_done


class LedgerDescriptor(FenceState):
    """One ledger on this bookie: access state, LAC, and entries that are not in the index yet.

    Source: BookKeeper LedgerDescriptor.
    """

    __slots__ = (
        "busy",
        "counted",
        "digests",
        "fence_logged",
        "key_logged",
        "key_queued",
        "lac",
        "last_entry",
        "ledger",
        "limbo",
        "limbo_ended",
        "limbo_ends_queued",
        "recent",
        "stored",
        "stored_last",
    )

    def __init__(self, ledger: int, master_key: bytes | None = None) -> None:
        super().__init__(master_key)
        self.ledger = ledger
        # The highest LAC received with a durable entry or explicitly. Never falls. It is a hint
        # for readers only: a recovery believes nothing but a LAC inside an entry that it verifies.
        self.lac = -1
        # Adds in a row with a valid CRC32C digest, or without one if negative; at most `_CERTAIN`
        # of either. 0 when the ledger is loaded. See `check_digest`.
        self.digests = 0
        # The highest accepted entry. After a failed add, the highest entry that remains.
        self.last_entry = -1
        # The highest entry in the index's table, or -1. Set when the ledger is loaded and by each
        # index batch.
        self.stored_last = -1
        # True while entries may be missing, so that the bookie cannot report an entry as absent.
        # Set when a loss is detected, reset by the end of the limbo.
        self.limbo = False
        # True once this ledger's limbo ended, even if the bookie-wide limbo goes on. Reset by a new
        # loss.
        self.limbo_ended = False
        # The number of records in the journal that end the limbo. Above 0 the ledger counts as out
        # of limbo for whatever is logged behind them.
        self.limbo_ends_queued = 0
        # True while the master key is in the journal's queue, and once it is durable. The key
        # precedes every entry.
        self.key_queued = False
        # True once the log durably holds the master key, or a fence. Set by durable records only,
        # never by a request: an index batch may be written while the record is still queued.
        self.key_logged = False
        self.fence_logged = False
        # The number of records other than adds in the journal, plus entries being moved. While it
        # is above 0, the descriptor stays in memory.
        self.busy = 0
        # Entries that the index does not have: a QueuedRecord until durable, then an EntryLocation
        # until the next index batch.
        self.recent: dict[int, EntryLocation | QueuedRecord] = {}
        # True if the index counts it among its ledgers: until it is deleted. Set by the index.
        self.counted = True
        # True once the index's table has its state. Set by the index.
        self.stored = False

    def check_digest(self, body: Sequence[Buffer]) -> bool:
        """Return False if the ledger's digests are CRC32C, and the one of this entry is wrong.

        Requests do not name the digest type, so two valid adds in a row show it. With any other
        type a bookie has no key, or no reason, to verify; then this is always True.
        """
        if has_crc32c(body):
            if self.digests != _CERTAIN:
                self.digests = max(self.digests, 0) + 1
        elif self.digests == _CERTAIN:
            return False
        else:
            self.digests = max(min(self.digests, 0) - 1, -_CERTAIN)
        return True

    @property
    def lac_counts(self) -> bool:
        """True if the LAC of the entry that `check_digest` just accepted may be passed on.

        False for an entry without a valid CRC32C digest that may have been damaged.
        """
        return self.digests != -1

    def encode(self) -> bytes:
        """Return the value stored in the index."""
        flags = (
            (_FENCED if self.fenced else 0)
            | (_LIMBO if self.limbo else 0)
            | (_LIMBO_ENDED if self.limbo_ended else 0)
            | (_DELETED if self.deleted else 0)
            | (_FENCE_LOGGED if self.fence_logged else 0)
            | (_KEY_LOGGED if self.key_logged else 0)
        )
        return _STATE.pack(flags, self.lac) + (self.master_key or b"")

    @classmethod
    def decode(cls, ledger: int, value: bytes) -> LedgerDescriptor:
        """Parse a value of the index. The caller sets `last_entry`."""
        flags, lac = _STATE.unpack_from(value)
        state = cls(ledger, value[_STATE.size :] or None)
        state.fenced = bool(flags & _FENCED)
        state.fence_logged = bool(flags & _FENCE_LOGGED)
        state.deleted = bool(flags & _DELETED)
        state.limbo = bool(flags & _LIMBO)
        state.limbo_ended = bool(flags & _LIMBO_ENDED)
        state.lac = lac
        state.key_queued = state.key_logged = bool(flags & _KEY_LOGGED)
        state.counted, state.stored = not state.deleted, True
        return state
