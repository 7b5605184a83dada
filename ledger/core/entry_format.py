"""The bytes of an entry, in the format of Apache BookKeeper.

    0 ledger i64 │ 8 entry i64 │ 16 LAC i64 │ 24 length i64 │ 32 digest │ payload

LAC is the last add confirmed when the entry was sent. Length is the sum of the payloads of
entries 0 up to this one. The digest covers bytes 0..31 and the payload. All integers are
big-endian.
Source: BookKeeper, `proto/checksum/*DigestManager.java`.
"""

from __future__ import annotations

import hashlib
import hmac
import zlib
from collections.abc import Callable, Sequence
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from ledger.crc32c import crc32c
from ledger.errors import CorruptFormat
from ledger.ids import NO_ENTRY, Buffer, EntryId, LedgerId

_HEADER = Struct(">qqqq")
HEADER_BYTES = _HEADER.size


class DigestType(IntEnum):
    """The digest that protects entries, with the numbers of the ledger metadata."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4


class EntryHeader(NamedTuple):
    """The first 32 bytes of an entry."""

    ledger: LedgerId
    entry: EntryId
    lac: EntryId
    length: int  # payload bytes of entries 0..entry


class DigestedBody(tuple[Buffer, ...]):
    """The buffers of an entry whose CRC32C digest the sender computed from them in this call.

    A bookie in the same process does not compute it again. Send such a body at once, and a plain
    tuple in every later call, because the buffers could have changed. No transport keeps the mark.
    """

    __slots__ = ()


DigestFunction = Callable[[bytes | memoryview, Sequence[Buffer]], bytes]


def master_key(password: bytes) -> bytes:
    """Return the 20 bytes that authorize adding to and fencing a ledger at a bookie."""
    return hashlib.sha1(b"ledger" + password).digest()


def read_header(body: Buffer) -> EntryHeader:
    """Return the fields of the header, not verified. Raises CorruptFormat if it is incomplete."""
    if len(body) < HEADER_BYTES:
        raise CorruptFormat(f"an entry of {len(body)} bytes has no header")
    ledger, entry, lac, length = _HEADER.unpack_from(body)
    return EntryHeader(LedgerId(ledger), EntryId(entry), EntryId(lac), length)


class EntryFormat:
    """Packs and unpacks the entries of ledgers with one digest type and password."""

    __slots__ = ("_digest", "_payload_at", "body")

    def __init__(self, digest_type: DigestType, password: bytes = b"") -> None:
        # What a body just packed in this format is sent as.
        self.body: Callable[[tuple[Buffer, ...]], tuple[Buffer, ...]]
        self.body = DigestedBody if digest_type is DigestType.CRC32C else tuple
        self._digest: DigestFunction = _digest_function(digest_type, password)
        self._payload_at = HEADER_BYTES + _DIGEST_BYTES[digest_type]

    def pack(
        self,
        ledger: LedgerId,
        entry: EntryId,
        lac: EntryId,
        length: int,
        payload: Sequence[Buffer],
    ) -> bytes:
        """Return header and digest. With the payload appended, they are the whole entry."""
        header = _HEADER.pack(ledger, entry, lac, length)
        return header + self._digest(header, payload)

    def unpack(self, body: Buffer, ledger: LedgerId, entry: EntryId) -> memoryview:
        """Verify the digest and ids of `body`, and return a view of its payload.

        Entry -1 accepts any entry id. Raises CorruptFormat.
        """
        view = memoryview(body)
        start = self._payload_at
        if len(view) < start:
            raise CorruptFormat(f"ledger {ledger} entry {entry}: only {len(view)} bytes")
        payload = view[start:]
        if self._digest(view[:HEADER_BYTES], (payload,)) != view[HEADER_BYTES:start].tobytes():
            raise CorruptFormat(f"ledger {ledger} entry {entry}: the digest does not match")
        stored_ledger, stored_entry, _, _ = _HEADER.unpack_from(view)
        if stored_ledger != ledger or (entry != NO_ENTRY and stored_entry != entry):
            raise CorruptFormat(
                f"expected ledger {ledger} entry {entry}, got {stored_ledger} {stored_entry}"
            )
        return payload


_DIGEST_BYTES = {
    DigestType.CRC32: 8,
    DigestType.HMAC: 20,
    DigestType.CRC32C: 4,
    DigestType.DUMMY: 0,
}


def _crc32c_digest(header: bytes | memoryview, payload: Sequence[Buffer]) -> bytes:
    value = crc32c(header)
    for buffer in payload:
        value = crc32c(buffer, value)
    return value.to_bytes(4, "big")


def _crc32_digest(header: bytes | memoryview, payload: Sequence[Buffer]) -> bytes:
    value = zlib.crc32(header)
    for buffer in payload:
        value = zlib.crc32(buffer, value)
    return value.to_bytes(8, "big")


def _no_digest(header: bytes | memoryview, payload: Sequence[Buffer]) -> bytes:
    return b""


def _digest_function(digest_type: DigestType, password: bytes) -> DigestFunction:
    if digest_type is DigestType.CRC32C:
        return _crc32c_digest
    if digest_type is DigestType.CRC32:
        return _crc32_digest
    if digest_type is DigestType.DUMMY:
        return _no_digest
    key = hashlib.sha1(b"mac" + password).digest()

    def hmac_digest(header: bytes | memoryview, payload: Sequence[Buffer]) -> bytes:
        mac = hmac.new(key, header, hashlib.sha1)
        for buffer in payload:
            mac.update(buffer)
        return mac.digest()

    return hmac_digest
