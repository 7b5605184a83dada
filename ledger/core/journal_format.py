"""The bytes of a bookie's log: files of groups of records, told apart from torn tails and rot.

A file is one header block, then groups; each group starts on a 4 KiB boundary:

    file header   magic 8s · version u32 · crc u32 · instance 16s · file id u64   (rest zeros)
    group header  magic u32 · crc u32 · file id u64 · own position u64 · payload length u32 ·
                  record count u32 · durable file id u64 · durable position u64
    record        type u8 · 3 zero bytes · body length u32 · ledger i64 · entry i64 · body

All integers are big-endian. A group's CRC-32C starts from a salt made of the instance and covers
the rest of its header and the payload, so bytes of another store, another file or another place
never pass. "Durable" is the place up to which the log was synced when the group was built; as at
most one group is unsynced, a bad group below any such claim is rot, above it a torn tail.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from ledger.errors import CorruptFormat
from ledger.ids import Buffer

BLOCK_BYTES: Final = 4096
FORMAT_VERSION: Final = 1
FILE_MAGIC: Final = b"LEDGRLOG"
GROUP_MAGIC: Final = 0x4C47_5250  # "LGRP"
SCAN_BYTES: Final = 1024 * 1024  # read at once while scanning

_FILE_HEADER = Struct(">8sII16sQ")
_FILE_CRC = Struct(">8sI16sQ")
_GROUP_HEADER = Struct(">IIQQIIQQ")
_GROUP_CRC = Struct(">QQIIQQ")
_GROUP_CRC_AT: Final = 8  # the CRC covers the header from here
RECORD_HEADER = Struct(">B3xIqq")
"""Type, body length, ledger, entry. Public: the bookie packs one for each add."""

GROUP_HEADER_BYTES: Final = _GROUP_HEADER.size
RECORD_HEADER_BYTES: Final = RECORD_HEADER.size
_ZEROS: Final = bytes(BLOCK_BYTES)


class RecordType(IntEnum):
    """What a record says. Numbers are on disk: never reused."""

    ADD = 1  # body: the entry as stored (header, digest, payload)
    FENCE = 2
    EXPLICIT_LAC = 3  # entry: the LAC
    LIMBO = 4  # entry: 1 begins, 0 ends; ledger -1: all below body, 1 anew, 2 still, 3 fenced
    LEDGER_KEY = 5  # body: master key; before the first entry of the ledger
    MARK = 6  # nothing; its group says what is durable
    DELETED = 7  # the ledger is gone from metadata; never again an entry of it


class LogPosition(NamedTuple):
    """A place in the log; tuple order is log order."""

    file_id: int
    position: int


class JournalRecord(NamedTuple):
    """One record and where its body lies in the file."""

    type: int
    ledger: int
    entry: int
    position: int
    body: memoryview


class JournalGroupHeader(NamedTuple):
    """What a group says of itself before its payload is checked."""

    crc: int
    file_id: int
    position: int
    length: int
    records: int
    durable: LogPosition

    @property
    def end(self) -> int:
        """Where the next group may start."""
        return align(self.position + GROUP_HEADER_BYTES + self.length)


class JournalGroup(NamedTuple):
    """One group whose checksum holds."""

    header: JournalGroupHeader
    payload: memoryview


class CorruptRange(NamedTuple):
    """Bytes that were durable once and do not parse now."""

    file_id: int
    first: int
    end: int


class FileEnd(NamedTuple):
    """How a scan ended: where the last good group ends, and what was bad before and after it."""

    position: int
    torn: bool  # bytes other than zeros follow
    corrupt: tuple[CorruptRange, ...]


class FileSpan(NamedTuple):
    """Bytes that the scan wants next."""

    position: int
    size: int


def file_name(file_id: int) -> str:
    """The name of a log file."""
    return f"log-{file_id:016x}"


def parse_file_name(name: str) -> int | None:
    """The file id in a name, or None if it is not the name of a log file."""
    digits = name[4:]
    if not name.startswith("log-") or len(digits) != 16:
        return None
    try:
        file_id = int(digits, 16)
    except ValueError:
        return None
    return file_id if file_name(file_id) == name else None


def align(position: int) -> int:
    """The first group boundary at or after `position`."""
    return (position + BLOCK_BYTES - 1) & -BLOCK_BYTES


def salt_of(instance: bytes) -> int:
    """Where the CRC of every group of this instance starts."""
    return crc32c(instance)


def encode_file_header(instance: bytes, file_id: int) -> bytes:
    """One block."""
    assert len(instance) == 16
    crc = crc32c(_FILE_CRC.pack(FILE_MAGIC, FORMAT_VERSION, instance, file_id))
    header = _FILE_HEADER.pack(FILE_MAGIC, FORMAT_VERSION, crc, instance, file_id)
    return header.ljust(BLOCK_BYTES, b"\0")


def check_file_header(block: Buffer, instance: bytes, file_id: int) -> None:
    """The block is the header of this file of this instance. Raises CorruptFormat."""
    if len(block) < _FILE_HEADER.size:
        raise CorruptFormat(f"{file_name(file_id)}: shorter than its header")
    magic, version, crc, owner, number = _FILE_HEADER.unpack_from(block)
    if magic != FILE_MAGIC:
        raise CorruptFormat(f"{file_name(file_id)}: not a log file")
    if crc != crc32c(_FILE_CRC.pack(magic, version, owner, number)):
        raise CorruptFormat(f"{file_name(file_id)}: header checksum does not match")
    if version != FORMAT_VERSION:
        raise CorruptFormat(f"{file_name(file_id)}: log format {version}, known {FORMAT_VERSION}")
    if owner != instance or number != file_id:
        raise CorruptFormat(f"{file_name(file_id)}: belongs to another store or place")


def encode_record_header(kind: RecordType, ledger: int, entry: int, length: int) -> bytes:
    """The bytes before a record's body."""
    return RECORD_HEADER.pack(kind, length, ledger, entry)


def encode_group_header(
    salt: int,
    start: LogPosition,
    durable: LogPosition,
    records: int,
    length: int,
    payload: Iterable[Buffer],
) -> bytes:
    """The header of a group whose payload is `payload` joined; nothing is joined here."""
    covered = _GROUP_CRC.pack(*start, length, records, *durable)
    crc = crc32c(covered, salt)
    for buffer in payload:
        crc = crc32c(buffer, crc)
    return b"LGRP" + crc.to_bytes(4, "big") + covered


def padding(length: int) -> bytes:
    """Zeros that fill the block after a group with a payload of `length` bytes."""
    return _ZEROS[: -(GROUP_HEADER_BYTES + length) % BLOCK_BYTES]


def decode_group_header(block: Buffer, file_id: int, position: int) -> JournalGroupHeader | None:
    """The header that stands at this very place, else None. Its checksum is not known yet."""
    if len(block) < GROUP_HEADER_BYTES:
        return None
    magic, crc, file_id_read, own, length, records, durable_file, durable_position = (
        _GROUP_HEADER.unpack_from(block)
    )
    if magic != GROUP_MAGIC or file_id_read != file_id or own != position:
        return None
    return JournalGroupHeader(
        crc, file_id, position, length, records, LogPosition(durable_file, durable_position)
    )


def checksum_matches(header: JournalGroupHeader, group: memoryview, salt: int) -> bool:
    """`group` (header and payload) carries the checksum that its header names."""
    assert len(group) == GROUP_HEADER_BYTES + header.length
    return crc32c(group[_GROUP_CRC_AT:], salt) == header.crc


def records_of(group: JournalGroup) -> Iterator[JournalRecord]:
    """The records in order. Raises CorruptFormat (a writer's mistake: the checksum held)."""
    at, count = 0, 0
    payload = group.payload
    base = group.header.position + GROUP_HEADER_BYTES
    while at < len(payload):
        if at + RECORD_HEADER_BYTES > len(payload):
            break
        kind, length, ledger, entry = RECORD_HEADER.unpack_from(payload, at)
        at += RECORD_HEADER_BYTES
        if at + length > len(payload):
            break
        yield JournalRecord(kind, ledger, entry, base + at, payload[at : at + length])
        at += length
        count += 1
    if at != len(payload) or count != group.header.records:
        start = f"{file_name(group.header.file_id)} at {group.header.position}"
        raise CorruptFormat(f"{start}: records do not fill their group")


class _Window:
    """The part of a file that was read last; views into it stay valid."""

    __slots__ = ("data", "first")

    def __init__(self) -> None:
        self.first = 0
        self.data = memoryview(b"")

    def load(self, position: int, size: int) -> Generator[FileSpan, Buffer, memoryview]:
        """Up to `size` bytes from `position`; fewer only at the end of the file."""
        if not (self.first <= position and position + size <= self.first + len(self.data)):
            got = yield FileSpan(position, max(size, SCAN_BYTES))
            self.first, self.data = position, memoryview(got)
        at = position - self.first
        return self.data[at : at + size]


def scan_file(
    file_id: int, start: int, size: int, salt: int, on_group: Callable[[JournalGroup], None]
) -> Generator[FileSpan, Buffer, FileEnd]:
    """Every good group from `start` (a boundary) was handed over; the result says how it ended.

    Yields the bytes wanted, is sent them (fewer only at the end of the file). A bad place with a
    good group after it is rot: the scan goes on there. Whether a bad *end* is rot or a torn tail
    the caller decides by the claims of other files: see `check_end`.
    """
    assert start % BLOCK_BYTES == 0
    window = _Window()
    corrupt: list[CorruptRange] = []
    end = at = start
    torn = False
    while at + GROUP_HEADER_BYTES <= size:
        group = yield from _group_at(window, file_id, at, size, salt)
        if group is not None:
            if at > end:
                corrupt.append(CorruptRange(file_id, end, at))
            on_group(group)
            end = at = group.header.end
            torn = False
            continue
        block = yield from window.load(at, BLOCK_BYTES)
        torn = torn or bytes(block) != _ZEROS[: len(block)]
        at += BLOCK_BYTES
    return FileEnd(end, torn, tuple(corrupt))


def _group_at(
    window: _Window, file_id: int, position: int, size: int, salt: int
) -> Generator[FileSpan, Buffer, JournalGroup | None]:
    """The good group at `position`, else None."""
    start = yield from window.load(position, GROUP_HEADER_BYTES)
    header = decode_group_header(start, file_id, position)
    if header is None or position + GROUP_HEADER_BYTES + header.length > size:
        return None
    whole = yield from window.load(position, GROUP_HEADER_BYTES + header.length)
    if len(whole) < GROUP_HEADER_BYTES + header.length or not checksum_matches(header, whole, salt):
        return None
    return JournalGroup(header, whole[GROUP_HEADER_BYTES:])


def check_end(end: FileEnd, file_id: int, claims: Sequence[LogPosition]) -> CorruptRange | None:
    """What is missing below the highest claim on this file, or None: clean, or a tail to cut.

    `claims`: every "durable up to" read anywhere, and the index's replay mark.
    """
    claimed = max((start.position for start in claims if start.file_id == file_id), default=0)
    return CorruptRange(file_id, end.position, claimed) if claimed > end.position else None
