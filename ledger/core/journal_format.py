"""The on-disk format of a bookie's log, and the scan that separates torn tails from corruption.

A file is one header block, then groups; each group starts on a 4 KiB boundary:

    file header   magic 8s · version u32 · crc u32 · instance 16s · file id u64   (rest zeros)
    group header  magic u32 · crc u32 · file id u64 · own position u64 · payload length u32 ·
                  record count u32 · durable file id u64 · durable position u64
    record        type u8 · 3 zero bytes · body length u32 · ledger i64 · entry i64 · body

All integers are big-endian. A group's CRC-32C covers the rest of its header and the
payload, and starts from a salt made of the instance. So bytes of another store, file or place
never pass.
"Durable" is the position up to which the log was synced when the group was built. At most one
group is unsynced at a time. A bad group below any durable position is therefore corruption, and
one above it is a torn tail.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from ledger.crc32c import crc32c
from ledger.errors import CorruptFormat
from ledger.ids import Buffer

BLOCK_BYTES: Final = 4096
FORMAT_VERSION: Final = 1
FILE_MAGIC: Final = b"LEDGRLOG"
GROUP_MAGIC: Final = 0x4C47_5250  # "LGRP"
SCAN_BYTES: Final = 1024 * 1024  # size of one read while scanning

_FILE_HEADER = Struct(">8sII16sQ")
_FILE_CRC = Struct(">8sI16sQ")
_GROUP_HEADER = Struct(">IIQQIIQQ")
_GROUP_CRC = Struct(">QQIIQQ")
_GROUP_CRC_AT: Final = 8  # the CRC covers the header from this byte on
RECORD_HEADER = Struct(">B3xIqq")
"""Type, body length, ledger, entry. Public because the bookie packs one for each add."""

GROUP_HEADER_BYTES: Final = _GROUP_HEADER.size
RECORD_HEADER_BYTES: Final = RECORD_HEADER.size
_ZEROS: Final = bytes(BLOCK_BYTES)


class RecordType(IntEnum):
    """The type of a record. The numbers are on disk and never reused."""

    ADD = 1  # the body is the entry as stored: header, digest, payload
    FENCE = 2
    EXPLICIT_LAC = 3  # the entry field holds the LAC
    # Limbo of a ledger begins (entry 1) or ends (entry 0). Ledger -1 means every ledger below the
    # id in the body. Entry 1 is then new limbo, 2 is limbo found earlier, 3 is only a fence.
    LIMBO = 4
    LEDGER_KEY = 5  # the body is the master key; precedes the first entry of the ledger
    MARK = 6  # an empty record, because the group header has the durable position
    DELETED = 7  # the ledger was deleted; the bookie accepts no entry of it again


class LogPosition(NamedTuple):
    """A position in the log. Tuple order is log order."""

    file_id: int
    position: int


class JournalRecord(NamedTuple):
    """One record, and the position of its body in the file."""

    type: int
    ledger: int
    entry: int
    position: int
    body: memoryview


class JournalGroupHeader(NamedTuple):
    """A group's header, before the payload has been verified."""

    crc: int
    file_id: int
    position: int
    length: int
    records: int
    durable: LogPosition

    @property
    def end(self) -> int:
        """The first block boundary after this group."""
        return align(self.position + GROUP_HEADER_BYTES + self.length)


class JournalGroup(NamedTuple):
    """One group with a valid checksum."""

    header: JournalGroupHeader
    payload: memoryview


class CorruptRange(NamedTuple):
    """A range of a log file that was durable once and no longer parses."""

    file_id: int
    first: int
    end: int


class FileEnd(NamedTuple):
    """The result of a scan: the end of the last valid group, and the corrupt ranges."""

    position: int
    torn: bool  # True if non-zero bytes follow `position`
    corrupt: tuple[CorruptRange, ...]


class FileSpan(NamedTuple):
    """The next range that a scan needs."""

    position: int
    size: int


def file_name(file_id: int) -> str:
    """Return the name of a log file."""
    return f"log-{file_id:016x}"


def parse_file_name(name: str) -> int | None:
    """Return the file id in a name, or None if it is not the name of a log file."""
    digits = name[4:]
    if not name.startswith("log-") or len(digits) != 16:
        return None
    try:
        file_id = int(digits, 16)
    except ValueError:
        return None
    return file_id if file_name(file_id) == name else None


def align(position: int) -> int:
    """Return the first group boundary at or after `position`."""
    return (position + BLOCK_BYTES - 1) & -BLOCK_BYTES


def salt_of(instance: bytes) -> int:
    """Return the start value for the CRC of every group of this instance."""
    return crc32c(instance)


def encode_file_header(instance: bytes, file_id: int) -> bytes:
    """Return the header of a log file, one block."""
    assert len(instance) == 16
    crc = crc32c(_FILE_CRC.pack(FILE_MAGIC, FORMAT_VERSION, instance, file_id))
    header = _FILE_HEADER.pack(FILE_MAGIC, FORMAT_VERSION, crc, instance, file_id)
    return header.ljust(BLOCK_BYTES, b"\0")


def check_file_header(block: Buffer, instance: bytes, file_id: int) -> None:
    """Verify that the block is the header of this file of this instance. Raises CorruptFormat."""
    if len(block) < _FILE_HEADER.size:
        raise CorruptFormat(f"{file_name(file_id)}: shorter than its header")
    magic, version, crc, owner, number = _FILE_HEADER.unpack_from(block)
    if magic != FILE_MAGIC:
        raise CorruptFormat(f"{file_name(file_id)}: not a log file")
    if crc != crc32c(_FILE_CRC.pack(magic, version, owner, number)):
        raise CorruptFormat(f"{file_name(file_id)}: header checksum does not match")
    if version != FORMAT_VERSION:
        raise CorruptFormat(f"{file_name(file_id)}: log format {version} is not {FORMAT_VERSION}")
    if owner != instance or number != file_id:
        raise CorruptFormat(f"{file_name(file_id)}: belongs to another bookie or file id")


def encode_record_header(kind: RecordType, ledger: int, entry: int, length: int) -> bytes:
    """Return the header of a record."""
    return RECORD_HEADER.pack(kind, length, ledger, entry)


def encode_group_header(
    salt: int,
    start: LogPosition,
    durable: LogPosition,
    records: int,
    length: int,
    payload: Iterable[Buffer],
) -> bytes:
    """Return the header of a group with the concatenation of `payload`, without copying it."""
    covered = _GROUP_CRC.pack(*start, length, records, *durable)
    crc = crc32c(covered, salt)
    for buffer in payload:
        crc = crc32c(buffer, crc)
    return b"LGRP" + crc.to_bytes(4, "big") + covered


def padding(length: int) -> bytes:
    """Return the zeros that fill the last block of a group with a payload of `length` bytes."""
    return _ZEROS[: -(GROUP_HEADER_BYTES + length) % BLOCK_BYTES]


def decode_group_header(block: Buffer, file_id: int, position: int) -> JournalGroupHeader | None:
    """Parse the group header at `position`, CRC unverified. Returns None if there is none."""
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
    """True if `group` (header and payload) matches the checksum in its header."""
    assert len(group) == GROUP_HEADER_BYTES + header.length
    return crc32c(group[_GROUP_CRC_AT:], salt) == header.crc


def records_of(group: JournalGroup) -> Iterator[JournalRecord]:
    """Yield the records in order.

    CorruptFormat here is a bug of the writer, because the checksum matched.
    """
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
    """The part of a file that was read last. Views of earlier parts stay valid."""

    __slots__ = ("data", "first")

    def __init__(self) -> None:
        self.first = 0
        self.data = memoryview(b"")

    def load(self, position: int, size: int) -> Generator[FileSpan, Buffer, memoryview]:
        """Return up to `size` bytes from `position`; fewer only at the end of the file."""
        if not (self.first <= position and position + size <= self.first + len(self.data)):
            got = yield FileSpan(position, max(size, SCAN_BYTES))
            self.first, self.data = position, memoryview(got)
        at = position - self.first
        return self.data[at : at + size]


def scan_file(
    file_id: int, start: int, size: int, salt: int, on_group: Callable[[JournalGroup], None]
) -> Generator[FileSpan, Buffer, FileEnd]:
    """Pass every valid group from `start` (a boundary) to `on_group`, and return the file's end.

    This generator yields the range that it needs, and the caller sends the bytes, fewer only at the
    end of the file. A bad range before a valid group is corrupt, and the scan continues after it.
    Whether a bad *end* is corrupt or a torn tail depends on other files: see `check_end`.
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
    """Return the valid group at `position`, or None."""
    start = yield from window.load(position, GROUP_HEADER_BYTES)
    header = decode_group_header(start, file_id, position)
    if header is None or position + GROUP_HEADER_BYTES + header.length > size:
        return None
    whole = yield from window.load(position, GROUP_HEADER_BYTES + header.length)
    if len(whole) < GROUP_HEADER_BYTES + header.length or not checksum_matches(header, whole, salt):
        return None
    return JournalGroup(header, whole[GROUP_HEADER_BYTES:])


def check_end(end: FileEnd, file_id: int, claims: Sequence[LogPosition]) -> CorruptRange | None:
    """Return the range missing below the highest claim on this file, or None if none is missing.

    None also means that bytes after the end are a torn tail, to be cut off. `claims` are all
    durable positions read from any group, and the index's replay mark.
    """
    claimed = max((start.position for start in claims if start.file_id == file_id), default=0)
    return CorruptRange(file_id, end.position, claimed) if claimed > end.position else None
