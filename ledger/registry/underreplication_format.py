"""Paths and bytes of the under-replication nodes: marks, locks and the auditor's election.

The formats are Apache BookKeeper's, so that auditors and workers of either project use the same
marks and locks. All data is protobuf text. Source: BookKeeper,
`meta/ZkLedgerUnderreplicationManager.java`, `ZkLedgerAuditorManager.java`.
"""

from __future__ import annotations

import re
from typing import TypeVar

from google.protobuf import text_format
from google.protobuf.message import Message

from ledger.errors import CorruptFormat
from ledger.ids import BookieId, LedgerId
from ledger.registry.layout import UNDERREPLICATION
from ledger.wire.bookie_formats_pb2 import (
    AuditorVoteFormat,
    LedgerRereplicationLayoutFormat,
    LockDataFormat,
    UnderreplicatedLedgerFormat,
)

LAYOUT = f"{UNDERREPLICATION}/LAYOUT"
MISSING = f"{UNDERREPLICATION}/ledgers"
LOCKS = f"{UNDERREPLICATION}/locks"
ELECTION = f"{UNDERREPLICATION}/auditorelection"
VOTE = f"{ELECTION}/V_"  # prefix of a vote, before the sequence number
DISABLED = f"{UNDERREPLICATION}/disable"  # while this node exists, nothing is repaired
# The delay in seconds, as decimal text
LOST_BOOKIE_DELAY = f"{UNDERREPLICATION}/lostBookieRecoveryDelay"

_LAYOUT_TYPE, _LAYOUT_VERSION = "BASIC", 1
_NODE = re.compile(r"urL(\d{10,19})")

M = TypeVar("M", bound=Message)


def ledger_path_of(ledger: LedgerId) -> str:
    """Return the path of the ledger's mark: its id in hex, 4-4-4-4, then in decimal."""
    groups = (f"{ledger >> shift & 0xFFFF:04x}" for shift in (48, 32, 16, 0))
    return f"{MISSING}/{'/'.join(groups)}/{_name(ledger)}"


def ledger_of_node(path_or_name: str) -> LedgerId | None:
    """Return the ledger of a mark or lock, or None for other nodes."""
    match = _NODE.fullmatch(path_or_name.rpartition("/")[2])
    return LedgerId(int(match[1])) if match else None


def lock_path(ledger: LedgerId) -> str:
    """Return the path of the ledger's lock, an ephemeral node."""
    return f"{LOCKS}/{_name(ledger)}"


def _name(ledger: LedgerId) -> str:
    assert ledger >= 0
    return f"urL{ledger:010d}"


def encode_missing(replicas: tuple[str, ...], ctime_ms: int | None = None) -> bytes:
    """Encode a mark. `replicas` are the bookies whose copies are lost."""
    return _encode(UnderreplicatedLedgerFormat(replica=replicas, ctime=ctime_ms))


def decode_missing(data: bytes) -> tuple[tuple[str, ...], int | None]:
    """Decode a mark: the lost bookies and its creation time in ms. Raises CorruptFormat."""
    message = _decode(data, UnderreplicatedLedgerFormat, "mark of a ledger")
    return tuple(message.replica), message.ctime if message.HasField("ctime") else None


def encode_lock(owner: BookieId) -> bytes:
    """Encode a lock's data, which is informational."""
    return _encode(LockDataFormat(bookieId=owner))


def decode_lock(data: bytes) -> BookieId:
    """Decode the lock's owner, or "" if the lock names none. Raises CorruptFormat."""
    return BookieId(_decode(data, LockDataFormat, "lock of a ledger").bookieId)


def encode_vote(voter: BookieId) -> bytes:
    """Encode a vote. The owner of the oldest vote is the auditor."""
    return _encode(AuditorVoteFormat(bookieId=voter))


def decode_vote(data: bytes) -> BookieId:
    """Decode a vote's owner. Raises CorruptFormat."""
    return BookieId(_decode(data, AuditorVoteFormat, "auditor's vote").bookieId)


def encode_layout() -> bytes:
    """Encode the data of `LAYOUT`."""
    return _encode(LedgerRereplicationLayoutFormat(type=_LAYOUT_TYPE, version=_LAYOUT_VERSION))


def is_our_layout(data: bytes) -> bool:
    """True if `LAYOUT` describes the format of this module. Raises CorruptFormat."""
    message = _decode(data, LedgerRereplicationLayoutFormat, LAYOUT)
    return (message.type, message.version) == (_LAYOUT_TYPE, _LAYOUT_VERSION)


def _encode(message: Message) -> bytes:
    return text_format.MessageToString(message, as_utf8=False).encode()


def _decode(data: bytes, kind: type[M], what: str) -> M:
    try:
        message = text_format.Parse(data.decode(), kind())
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise CorruptFormat(f"{what}: {error}") from error
    if not message.IsInitialized():
        raise CorruptFormat(f"{what}: a field is missing")
    return message
