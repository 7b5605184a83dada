"""What a bookie knows of one ledger while it is in use."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from ledger.core.fencing import FenceState
from ledger.core.journal_format import RECORD_HEADER, RECORD_HEADER_BYTES, RecordType
from ledger.ids import Buffer
from ledger.ports.bookies import OnAdded

_STATE = Struct(">Bq")
_FENCED: Final = 1
_LIMBO: Final = 2
_LIMBO_ENDED: Final = 4
_DELETED: Final = 8


class EntryLocation(NamedTuple):
    """Where an entry lies: `length` bytes from `position` of a log file."""

    file_id: int
    position: int
    length: int


class LogRecord:
    """One record on its way into the log; nothing here changes until `on_done` runs."""

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
    """One ledger: its guard, its LAC, and the entries that the table does not hold yet."""

    __slots__ = (
        "busy",
        "fence_logged",
        "key_logged",
        "lac",
        "last_entry",
        "ledger",
        "limbo",
        "limbo_ended",
        "recent",
    )

    def __init__(self, ledger: int, master_key: bytes | None = None) -> None:
        super().__init__(master_key)
        self.ledger = ledger
        self.lac = -1  # highest that came with a durable entry or explicitly; never falls
        self.last_entry = -1  # highest accepted
        self.limbo = False  # entries may be missing: a negative answer would be a guess
        self.limbo_ended = False  # repaired after all: outlives the bookie-wide limbo
        self.key_logged = False  # the log holds the master key, before any entry
        self.fence_logged = False  # the fence is durable
        self.busy = 0  # records other than adds that are on their way into the log
        self.recent: dict[int, EntryLocation | LogRecord] = {}  # a LogRecord: not durable yet

    def encode(self) -> bytes:
        """The value that the table keeps."""
        flags = (
            (_FENCED if self.fenced else 0)
            | (_LIMBO if self.limbo else 0)
            | (_LIMBO_ENDED if self.limbo_ended else 0)
            | (_DELETED if self.deleted else 0)
        )
        return _STATE.pack(flags, self.lac) + (self.master_key or b"")

    @classmethod
    def decode(cls, ledger: int, value: bytes) -> LedgerDescriptor:
        """From the table; `last_entry` is the caller's to find."""
        flags, lac = _STATE.unpack_from(value)
        state = cls(ledger, value[_STATE.size :] or None)
        state.fenced = state.fence_logged = bool(flags & _FENCED)
        state.deleted = bool(flags & _DELETED)
        state.limbo = bool(flags & _LIMBO)
        state.limbo_ended = bool(flags & _LIMBO_ENDED)
        state.lac = lac
        state.key_logged = state.master_key is not None
        return state
