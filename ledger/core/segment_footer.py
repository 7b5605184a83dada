"""The footer of a cleaned segment: its sparse index and the facts that a head snapshot would have.

    payload of one control record = as in a state snapshot, with `LSF1`
    whole = version · epoch · greatest timestamp · sections, each i32 length · bytes:
            sparse index · aborted transactions, opaque to streams · (version 2) further epochs

Version 2 is written where a merged segment has records of several owners.

The footer fills the last entries of the ledger. Each of them has the distance to the first one in
its envelope. It holds no owner's state, and its magic differs from that of a snapshot, so that no
owner takes it for one. Pure. See docs/formats/segment.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct

from ledger.core import snapshot_format
from ledger.core.epoch_table import EpochStart
from ledger.core.records import LogRecord
from ledger.core.sparse_index import SparseIndex
from ledger.errors import CorruptFormat

MAGIC = b"LSF1"
VERSION = 1
_VERSION_WITH_EPOCHS = 2
_EPOCH = Struct(">qq")
_HEAD = Struct(">Bqq")  # version, epoch, greatest timestamp


@dataclass(frozen=True, slots=True)
class SegmentFooter:
    """The facts about a cleaned segment beside its records."""

    index: SparseIndex
    timestamp_max: int  # of all its records, NO_TIMESTAMP if there are none
    epoch: int  # of the first ownership that wrote in it
    aborted: bytes  # the aborted transactions that end in it, in the owner's format; b"" for none
    epochs: tuple[EpochStart, ...] = ()  # of the later ownerships that wrote in it

    def encode(self) -> bytes:
        sections = [self.index.encode(), self.aborted]
        if self.epochs:
            sections.append(b"".join(_EPOCH.pack(*each) for each in self.epochs))
        version = _VERSION_WITH_EPOCHS if self.epochs else VERSION
        head = _HEAD.pack(version, self.epoch, self.timestamp_max)
        return head + snapshot_format.encode_sections(sections)


def decode_footer(whole: bytes) -> SegmentFooter:
    """Decode a whole footer. Raises CorruptFormat for another version or malformed bytes."""
    if len(whole) < _HEAD.size or whole[0] not in (VERSION, _VERSION_WITH_EPOCHS):
        raise CorruptFormat(f"segment footer version {whole[:1].hex() or 'missing'}")
    _, epoch, timestamp_max = _HEAD.unpack_from(whole)
    count = 2 if whole[0] == VERSION else 3
    index, aborted, *further = snapshot_format.decode_sections(
        whole, _HEAD.size, count, "segment footer"
    )
    epochs = further[0] if further else b""
    if further and (not epochs or len(epochs) % _EPOCH.size):
        raise CorruptFormat("segment footer: the epochs are truncated")
    return SegmentFooter(
        SparseIndex.decode(index),
        timestamp_max,
        epoch,
        bytes(aborted),
        tuple(EpochStart(*each) for each in _EPOCH.iter_unpack(epochs)),
    )


def split(whole: bytes) -> list[bytes]:
    """Return the payloads of the control records that together hold the footer."""
    return snapshot_format.split(whole, magic=MAGIC)


def is_part(record: LogRecord) -> bool:
    """Return whether the record holds a part of a footer. A user record may begin alike."""
    return record.control and snapshot_format.is_part(record.data, MAGIC)


def join(payloads: Iterable[memoryview | bytes]) -> bytes | None:
    """Return the whole footer if the first payloads are all its parts in order, else None.

    Raises CorruptFormat if no part is missing and the checksum does not match.
    """
    return snapshot_format.join(payloads, MAGIC)
