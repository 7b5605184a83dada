"""State snapshots: the state that a new owner of a stream needs, as control records in its log.

    payload of one control record = magic · part number · parts · crc of the whole · piece
    whole = version · sections, each i32 length · bytes:
            segment summaries · index of the segment before · index of this segment · owner's state
            · in version 2: epochs

Version 2 is written only for a stream with epochs that no summary shows, because their segments
were merged. Releases that cannot merge segments refuse it, and would misread such a stream.
A snapshot may span several records and entries. It is complete once its last part is stored.
Pure. See docs/formats/snapshot.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from struct import Struct

from ledger.core.epoch_table import EpochStart
from ledger.core.sparse_index import SparseIndex
from ledger.crc32c import crc32c
from ledger.errors import CorruptFormat

MAGIC = b"LSS1"
_PART = Struct(">4sIII")  # magic, part, parts, crc32c of the whole
_LENGTH = Struct(">I")
_NUMBER = Struct(">q")
_SUMMARY = Struct(">qqqqq")
_EPOCH = Struct(">qq")
VERSION = 1
_VERSION_WITH_EPOCHS = 2
PART_BYTES_MAX = 512 * 1024


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """Facts about a segment that its znode does not hold."""

    number: int
    timestamp_max: int
    size_bytes: int
    epoch: int  # of the ownership that wrote the segment: its first segment number, less the base
    start_sequence_id: int


@dataclass(slots=True)
class StateSnapshot:
    """The state of a stream at one place in one of its segments.

    `index` covers the segment that holds the snapshot, up to the snapshot itself.
    """

    summaries: list[SegmentSummary] = field(default_factory=list[SegmentSummary])
    index_before: SparseIndex = field(default_factory=SparseIndex)
    index_before_number: int = 0  # the segment that `index_before` covers; 0 for none
    index: SparseIndex = field(default_factory=SparseIndex)
    owner_state: bytes = b""
    epochs: list[EpochStart] = field(default_factory=list[EpochStart])  # that no summary shows

    def encode(self) -> bytes:
        summaries = b"".join(
            _SUMMARY.pack(s.number, s.timestamp_max, s.size_bytes, s.epoch, s.start_sequence_id)
            for s in self.summaries
        )
        before = _NUMBER.pack(self.index_before_number) + self.index_before.encode()
        sections = [summaries, before, self.index.encode(), self.owner_state]
        if self.epochs:
            sections.append(b"".join(_EPOCH.pack(*each) for each in self.epochs))
        version = _VERSION_WITH_EPOCHS if self.epochs else VERSION
        return bytes([version]) + encode_sections(sections)


def encode_sections(sections: Iterable[bytes]) -> bytes:
    """Return the sections one behind another, each with its length before it."""
    return b"".join(_LENGTH.pack(len(each)) + each for each in sections)


def decode_sections(whole: bytes, at: int, count: int, what: str) -> list[memoryview]:
    """Return the `count` sections that fill `whole` from `at` on.

    Raises CorruptFormat, which names the format `what`.
    """
    sections: list[memoryview] = []
    view = memoryview(whole)
    for _ in range(count):
        if len(view) - at < _LENGTH.size:
            raise CorruptFormat(f"{what} is truncated")
        (length,) = _LENGTH.unpack_from(view, at)
        at += _LENGTH.size
        if length > len(view) - at:
            raise CorruptFormat(f"{what} is truncated")
        sections.append(view[at : at + length])
        at += length
    if at != len(view):
        raise CorruptFormat(f"{what} has {len(view) - at} bytes after its last section")
    return sections


def decode_snapshot(whole: bytes) -> StateSnapshot:
    """Decode a whole snapshot. Raises CorruptFormat for another version or malformed bytes."""
    if not whole or whole[0] not in (VERSION, _VERSION_WITH_EPOCHS):
        raise CorruptFormat(f"state snapshot version {whole[:1].hex() or 'missing'}")
    sections = decode_sections(whole, 1, 4 if whole[0] == VERSION else 5, "state snapshot")
    if len(sections[0]) % _SUMMARY.size or len(sections[1]) < _NUMBER.size:
        raise CorruptFormat("state snapshot: the segment summaries are truncated")
    epochs = sections[4] if len(sections) > 4 else None
    if epochs is not None and (not epochs or len(epochs) % _EPOCH.size):
        raise CorruptFormat("state snapshot: the epochs are truncated")
    return StateSnapshot(
        summaries=[SegmentSummary(*fields) for fields in _SUMMARY.iter_unpack(sections[0])],
        index_before=SparseIndex.decode(sections[1][_NUMBER.size :]),
        index_before_number=_NUMBER.unpack_from(sections[1])[0],
        index=SparseIndex.decode(sections[2]),
        owner_state=bytes(sections[3]),
        epochs=[EpochStart(*each) for each in _EPOCH.iter_unpack(epochs or b"")],
    )


def split(whole: bytes, part_bytes: int = PART_BYTES_MAX, magic: bytes = MAGIC) -> list[bytes]:
    """Return the payloads of the control records that together hold the snapshot.

    `magic` is that of other control records of the same shape.
    """
    crc = crc32c(whole)
    starts = range(0, len(whole), part_bytes)
    return [
        _PART.pack(magic, number, len(starts), crc) + whole[start : start + part_bytes]
        for number, start in enumerate(starts)
    ]


def is_part(payload: memoryview | bytes, magic: bytes = MAGIC) -> bool:
    return bytes(payload[:4]) == magic


def join(payloads: Iterable[memoryview | bytes], magic: bytes = MAGIC) -> bytes | None:
    """Return the whole snapshot if the first payloads are all its parts in order, else None.

    Raises CorruptFormat if no part is missing and the checksum does not match.
    """
    pieces: list[bytes] = []
    parts, crc = 0, 0
    for payload in payloads:
        if len(payload) < _PART.size:
            raise CorruptFormat(f"state snapshot part of {len(payload)} bytes is truncated")
        found, number, parts, crc = _PART.unpack_from(payload)
        if found != magic or number != len(pieces):
            return None
        pieces.append(bytes(payload[_PART.size :]))
        if len(pieces) == parts:
            break
    if not pieces or len(pieces) != parts:
        return None
    whole = b"".join(pieces)
    if crc32c(whole) != crc:
        raise CorruptFormat("state snapshot: the checksum does not match")
    return whole
