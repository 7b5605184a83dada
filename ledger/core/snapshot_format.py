"""State snapshots: what a new owner of a stream must know, as control records in the log itself.

    payload of one control record = magic · part number · parts · crc of the whole · piece
    whole = version · sections, each i32 length · bytes:
            segment summaries · index of the segment before · index of this segment · owner's state

A snapshot may span several records and entries; it counts only when its last part is there.
Pure. See docs/formats/snapshot.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from struct import Struct

from crc32c import crc32c

from ledger.core.sparse_index import SparseIndex
from ledger.errors import CorruptFormat

MAGIC = b"LSS1"
_PART = Struct(">4sIII")  # magic, part, parts, crc32c of the whole
_LENGTH = Struct(">I")
_NUMBER = Struct(">q")
_SUMMARY = Struct(">qqqqq")
VERSION = 1
PART_BYTES_MAX = 512 * 1024


@dataclass(frozen=True, slots=True)
class Summary:
    """What later readers need of a segment and its znode does not say."""

    number: int
    timestamp_max: int
    size_bytes: int
    epoch: int  # first segment number of the ownership that wrote it
    start_sequence_id: int


@dataclass(slots=True)
class Snapshot:
    """`index` is of the segment that holds the snapshot, up to the snapshot itself."""

    summaries: list[Summary] = field(default_factory=list[Summary])
    index_before: SparseIndex = field(default_factory=SparseIndex)
    index_before_number: int = 0  # the segment that `index_before` is of; 0: none
    index: SparseIndex = field(default_factory=SparseIndex)
    owner_state: bytes = b""

    def encode(self) -> bytes:
        summaries = b"".join(
            _SUMMARY.pack(s.number, s.timestamp_max, s.size_bytes, s.epoch, s.start_sequence_id)
            for s in self.summaries
        )
        before = _NUMBER.pack(self.index_before_number) + self.index_before.encode()
        sections = (summaries, before, self.index.encode(), self.owner_state)
        return bytes([VERSION]) + b"".join(_LENGTH.pack(len(s)) + s for s in sections)


def decode_snapshot(whole: bytes) -> Snapshot:
    """Raises CorruptFormat for another version or bytes that do not parse."""
    if not whole or whole[0] != VERSION:
        raise CorruptFormat(f"state snapshot version {whole[:1].hex() or 'missing'}")
    sections: list[memoryview] = []
    at, view = 1, memoryview(whole)
    for _ in range(4):
        if len(view) - at < _LENGTH.size:
            raise CorruptFormat("state snapshot is cut")
        (length,) = _LENGTH.unpack_from(view, at)
        at += _LENGTH.size
        if length > len(view) - at:
            raise CorruptFormat("state snapshot is cut")
        sections.append(view[at : at + length])
        at += length
    if at != len(view):
        raise CorruptFormat(f"state snapshot: {len(view) - at} bytes too many")
    if len(sections[0]) % _SUMMARY.size or len(sections[1]) < _NUMBER.size:
        raise CorruptFormat("state snapshot: segment summaries are cut")
    return Snapshot(
        summaries=[Summary(*fields) for fields in _SUMMARY.iter_unpack(sections[0])],
        index_before=SparseIndex.decode(sections[1][_NUMBER.size :]),
        index_before_number=_NUMBER.unpack_from(sections[1])[0],
        index=SparseIndex.decode(sections[2]),
        owner_state=bytes(sections[3]),
    )


def split(whole: bytes, part_bytes: int = PART_BYTES_MAX) -> list[bytes]:
    """Payloads of the control records that together hold the snapshot."""
    crc = crc32c(whole)
    starts = range(0, len(whole), part_bytes)
    return [
        _PART.pack(MAGIC, number, len(starts), crc) + whole[start : start + part_bytes]
        for number, start in enumerate(starts)
    ]


def is_part(payload: memoryview | bytes) -> bool:
    return bytes(payload[:4]) == MAGIC


def join(payloads: Iterable[memoryview | bytes]) -> bytes | None:
    """The whole, when the first payloads are all its parts in order; None when some are missing.

    Raises CorruptFormat when all are there and do not add up.
    """
    pieces: list[bytes] = []
    parts, crc = 0, 0
    for payload in payloads:
        if len(payload) < _PART.size:
            raise CorruptFormat("state snapshot part is cut")
        magic, number, parts, crc = _PART.unpack_from(payload)
        if magic != MAGIC or number != len(pieces):
            return None
        pieces.append(bytes(payload[_PART.size :]))
        if len(pieces) == parts:
            break
    if not pieces or len(pieces) != parts:
        return None
    whole = b"".join(pieces)
    if crc32c(whole) != crc:
        raise CorruptFormat("state snapshot: checksum does not match")
    return whole
