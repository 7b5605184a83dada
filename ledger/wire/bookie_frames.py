"""The binary messages of the two streams between a client and a bookie.

Each message starts with version u8 and kind u8; all integers are big-endian.

    HELLO           (first, client)   bookie id, UTF-8: the instance that is addressed
    WELCOME         (first, bookie)   status u16 · largest entry it accepts u32
    ADDS            (client)          first number u64 · adds u32 · keys u16 · {length u8 · key}… ·
                                      {flags u8 · key index u16 · ledger i64 · entry i64 ·
                                      length u32}… · bodies, one after the other
    ADD_STATUSES    (bookie)          {first number u64 · adds u32 · status u16}…
    READ_REQUESTS   (client)          {op u8 · number u64 · ledger i64 · first i64 · last i64 ·
                                      bound u32 · key length u8 · key}…
    READ_RESPONSES  (bookie)          {number u64 · status u16 · lac i64 · bodies u32 ·
                                      length u32… · bodies}…

The client numbers adds and read requests from 0 on each stream. Responses name the numbers, so
they may come in any order, and adds with one status share one range. Lengths are checked against
the message size before anything is allocated. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from struct import Struct, pack
from typing import Final, NamedTuple

from ledger.ids import BookieId, Buffer, EntryId, LedgerId
from ledger.ports.bookies import Status

VERSION: Final = 1
NAME_BYTES_MAX: Final = 255
KEY_BYTES_MAX: Final = 255
KEYS_MAX: Final = 2**16 - 1
FRAME_BYTES_MAX: Final = 64 * 1024
"""Most bytes that a message with one entry needs beside the entry."""

ADDS_MAX: Final = 4096
"""Most adds in one message: what a client sends at once holds the bookie's event loop briefly."""

REQUESTS_MAX: Final = 4096
"""Most read requests in one message."""

FROM_DISK: Final = b"\x01"
"""The key of a READ_MANY that must read the disk. A bookie without caches ignores the key."""

RECOVERY: Final = 1  # flag of an add by a recovery

_HEAD = Struct(">BB")
_WELCOME = Struct(">HI")
_ADDS = Struct(">BBQIH")
_ADD = Struct(">BHqqI")
_ADD_STATUS_RANGE = Struct(">QIH")
_ONE_ADD_STATUS_RANGE = Struct(">BBQIH")
_READ_REQUEST = Struct(">BQqqqIB")
_READ_RESPONSE = Struct(">QHqI")
_LENGTHS: Final = 4
_ADDS_AT: Final = _ADDS.size
ADD_HEADER_BYTES: Final = _ADD.size


class BadBookieFrame(ValueError):
    """A violation of the protocol by the peer; its stream ends."""


class FrameKind(IntEnum):
    """The kind of a message, its second byte."""

    HELLO = 1
    WELCOME = 2
    ADDS = 3
    ADD_STATUSES = 4
    READ_REQUESTS = 5
    READ_RESPONSES = 6
    # Only over TCP, where both streams and the control calls share a connection: tcp_frames.py.
    PING = 7
    PONG = 8
    ADD_CREDIT = 9
    CALL = 10
    CALL_RESPONSE = 11
    PIECES_BEGIN = 12
    PIECE = 13


class ReadOp(IntEnum):
    """The operation of a read request."""

    READ = 1
    FENCE_AND_READ = 2
    READ_MANY = 3
    WAIT_LAC = 4
    CANCEL = 5  # cancels the request with this number; has no response


class AddRequest(NamedTuple):
    """One decoded add; `body` is a view of the message."""

    recovery: bool
    master_key: bytes
    ledger: LedgerId
    entry: EntryId
    body: memoryview


class AddBatch(NamedTuple):
    """Adds numbered consecutively from `first`."""

    first: int
    adds: list[AddRequest]


class AddStatusRange(NamedTuple):
    """The status of the adds numbered first to first + length - 1."""

    first: int
    length: int
    status: Status


class ReadRequest(NamedTuple):
    """One request of the read stream.

    `first` is the entry, or the known LAC for WAIT_LAC. `bound` is in bytes, or in milliseconds for
    WAIT_LAC.
    """

    op: ReadOp
    number: int
    ledger: LedgerId = LedgerId(0)
    first: EntryId = EntryId(0)
    last: EntryId = EntryId(0)
    bound: int = 0
    key: bytes = b""


class ReadResponse(NamedTuple):
    """The response to the request with this number. Decoded bodies are views of the message."""

    number: int
    status: Status
    lac: EntryId = EntryId(-1)
    bodies: Sequence[Buffer] = ()


# -- the first messages of a stream -----------------------------------------------------------


def encode_hello(bookie: BookieId) -> bytes:
    """Encode the first message of a client."""
    name = bookie.encode()
    assert len(name) <= NAME_BYTES_MAX
    return _HEAD.pack(VERSION, FrameKind.HELLO) + name


def decode_hello(message: Buffer) -> BookieId:
    """Return the bookie instance that is addressed. Raises BadBookieFrame."""
    name = open_message(message, FrameKind.HELLO)
    if len(name) > NAME_BYTES_MAX:
        raise BadBookieFrame(
            f"bookie id has {len(name)} bytes, at most {NAME_BYTES_MAX} are allowed"
        )
    try:
        return BookieId(str(name, "utf-8"))
    except UnicodeDecodeError as error:
        raise BadBookieFrame("bookie id is not UTF-8") from error


def encode_welcome(status: Status, entry_bytes_max: int) -> bytes:
    """Encode the first message of a bookie."""
    return _HEAD.pack(VERSION, FrameKind.WELCOME) + _WELCOME.pack(status, entry_bytes_max)


def decode_welcome(message: Buffer) -> tuple[Status, int]:
    """Return the status and the largest entry that the bookie accepts. Raises BadBookieFrame."""
    rest = open_message(message, FrameKind.WELCOME)
    if len(rest) != _WELCOME.size:
        raise BadBookieFrame(f"WELCOME has {len(rest)} bytes instead of {_WELCOME.size}")
    status, entry_bytes_max = _WELCOME.unpack(rest)
    return status_of(status), entry_bytes_max


# -- adds -------------------------------------------------------------------------------------


class AddBatchWriter:
    """One ADDS message being built. Bodies are copied once, in `encode`."""

    __slots__ = ("_bodies", "_heads", "_keys", "body_bytes", "count", "first", "size")

    def __init__(self, first: int) -> None:
        # The number of the first add, and the number of adds so far.
        self.first = first
        self.count = 0
        # Size of the message so far, with headers and keys.
        self.size = _ADDS_AT
        # Sum of the bodies' lengths.
        self.body_bytes = 0
        # One packed header per add, in order, and the buffers of all bodies in the same order.
        self._heads: list[bytes] = []
        self._bodies: list[Buffer] = []
        # Master keys with their index in the message. Each key is sent once.
        self._keys: dict[bytes, int] = {}

    def add(
        self,
        ledger: LedgerId,
        entry: EntryId,
        master_key: bytes,
        body: Sequence[Buffer],
        length: int,
        recovery: bool,
    ) -> None:
        """Add the next entry, `length` bytes in all. Keep its buffers unchanged until `encode`."""
        keys = self._keys
        key = keys.get(master_key)
        if key is None:
            assert len(master_key) <= KEY_BYTES_MAX
            assert len(keys) < KEYS_MAX
            key = keys[master_key] = len(keys)
            self.size += 1 + len(master_key)
        self._heads.append(_ADD.pack(recovery, key, ledger, entry, length))
        self._bodies += body
        self.count += 1
        self.size += ADD_HEADER_BYTES + length
        self.body_bytes += length

    def encode(self) -> bytes:
        """Return the message, copying the bodies once."""
        return b"".join(self.parts())

    def parts(self) -> list[Buffer]:
        """Return the message in parts, without a copy. The parts are unchanged bodies and heads."""
        parts: list[Buffer] = [
            _ADDS.pack(VERSION, FrameKind.ADDS, self.first, self.count, len(self._keys))
        ]
        for key in self._keys:
            parts.append(bytes((len(key),)))
            parts.append(key)
        parts += self._heads
        parts += self._bodies
        return parts


def decode_add_batch(message: Buffer, adds_max: int = ADDS_MAX) -> AddBatch:
    """Decode an ADDS message. Raises BadBookieFrame; no add of that message is then valid."""
    if len(message) < _ADDS.size:
        raise BadBookieFrame("ADDS has no count")
    view = memoryview(message)
    version, kind, first, count, key_count = _ADDS.unpack_from(view)
    if version != VERSION or kind != FrameKind.ADDS:
        raise _unexpected(version, kind, FrameKind.ADDS)
    if count > adds_max or key_count > count:
        raise BadBookieFrame(f"{count} adds with {key_count} keys, at most {adds_max} are allowed")
    keys, heads_at = _decode_keys(view, _ADDS.size, key_count)
    at = heads_at + count * ADD_HEADER_BYTES
    size = len(view)
    if at > size:
        raise BadBookieFrame(f"{count} adds do not fit into {size} bytes")
    adds: list[AddRequest] = []
    for flags, key, ledger, entry, length in _ADD.iter_unpack(view[heads_at:at]):
        end = at + length
        if end > size or key >= key_count or ledger < 0 or entry < 0 or flags > RECOVERY:
            raise BadBookieFrame(
                f"bad add: {length} bytes with {size - at} left, ledger {ledger} entry {entry}, "
                f"key {key} of {key_count}, flags {flags}"
            )
        adds.append(AddRequest(flags == RECOVERY, keys[key], ledger, entry, view[at:end]))
        at = end
    if at != size:
        raise BadBookieFrame(f"{size - at} bytes after the last add")
    return AddBatch(first, adds)


def _decode_keys(view: memoryview, at: int, count: int) -> tuple[list[bytes], int]:
    """Return the keys and the index of the next byte. Raises BadBookieFrame."""
    if count > len(view) - at:
        raise BadBookieFrame(f"{count} keys do not fit into {len(view) - at} bytes")
    keys: list[bytes] = []
    for _ in range(count):
        if at >= len(view) or at + 1 + view[at] > len(view):
            raise BadBookieFrame("key exceeds the message")
        end = at + 1 + view[at]
        keys.append(bytes(view[at + 1 : end]))
        at = end
    return keys, at


def encode_add_statuses(runs: Sequence[Sequence[int]]) -> bytes:
    """Encode ranges of (first number, count, status)."""
    if len(runs) == 1:
        return _ONE_ADD_STATUS_RANGE.pack(VERSION, FrameKind.ADD_STATUSES, *runs[0])
    return _HEAD.pack(VERSION, FrameKind.ADD_STATUSES) + b"".join(
        [_ADD_STATUS_RANGE.pack(*run) for run in runs]
    )


def decode_add_statuses(message: Buffer) -> list[AddStatusRange]:
    """Decode the status ranges of a message. Raises BadBookieFrame."""
    if len(message) == _ONE_ADD_STATUS_RANGE.size:
        version, kind, first, count, code = _ONE_ADD_STATUS_RANGE.unpack(message)
        if version != VERSION or kind != FrameKind.ADD_STATUSES:
            raise _unexpected(version, kind, FrameKind.ADD_STATUSES)
        return [AddStatusRange(first, count, status_of(code))]
    view = open_message(message, FrameKind.ADD_STATUSES)
    if len(view) % _ADD_STATUS_RANGE.size:
        raise BadBookieFrame(
            f"ADD_STATUSES has {len(view)} bytes, not a multiple of {_ADD_STATUS_RANGE.size}"
        )
    return [
        AddStatusRange(first, count, status_of(code))
        for first, count, code in _ADD_STATUS_RANGE.iter_unpack(view)
    ]


# -- reads ------------------------------------------------------------------------------------


def encode_read_requests(requests: Iterable[ReadRequest]) -> bytes:
    """Encode read requests."""
    parts = [_HEAD.pack(VERSION, FrameKind.READ_REQUESTS)]
    for op, number, ledger, first, last, bound, key in requests:
        parts.append(_READ_REQUEST.pack(op, number, ledger, first, last, bound, len(key)))
        parts.append(key)
    return b"".join(parts)


def decode_read_requests(
    message: Buffer, requests_max: int | None = REQUESTS_MAX
) -> list[ReadRequest]:
    """Decode the read requests of a message. Raises BadBookieFrame, even if only one is invalid."""
    view = open_message(message, FrameKind.READ_REQUESTS)
    at, size = 0, len(view)
    requests: list[ReadRequest] = []
    while at < size:
        if len(requests) == requests_max:
            raise BadBookieFrame(f"more than {requests_max} read requests in one message")
        if size - at < _READ_REQUEST.size:
            raise BadBookieFrame("read request exceeds the message")
        op, number, ledger, first, last, bound, key_length = _READ_REQUEST.unpack_from(view, at)
        at += _READ_REQUEST.size
        if key_length > size - at or ledger < 0 or first < -1 or last < -1:
            raise BadBookieFrame(f"invalid read request: ledger {ledger} entries {first} to {last}")
        key = bytes(view[at : at + key_length])
        at += key_length
        try:
            kind = ReadOp(op)
        except ValueError as error:
            raise BadBookieFrame(f"unknown read operation {op}") from error
        requests.append(ReadRequest(kind, number, ledger, first, last, bound, key))
    return requests


def response_bytes(response: ReadResponse) -> int:
    """Return the size of a response in a message."""
    bodies = response.bodies
    return _READ_RESPONSE.size + _LENGTHS * len(bodies) + sum(map(len, bodies))


def encode_read_responses(responses: Iterable[ReadResponse]) -> bytes:
    """Encode read responses, copying the bodies once."""
    return b"".join(read_response_parts(responses))


def read_response_parts(responses: Iterable[ReadResponse]) -> list[Buffer]:
    """Return the message with these responses in parts, without a copy of the bodies."""
    parts: list[Buffer] = [_HEAD.pack(VERSION, FrameKind.READ_RESPONSES)]
    for number, status, lac, bodies in responses:
        parts.append(_READ_RESPONSE.pack(number, status, lac, len(bodies)))
        if bodies:
            parts.append(pack(f">{len(bodies)}I", *map(len, bodies)))
            parts += bodies
    return parts


def decode_read_responses(message: Buffer) -> list[ReadResponse]:
    """Decode the read responses of a message. Raises BadBookieFrame."""
    view = open_message(message, FrameKind.READ_RESPONSES)
    at, size = 0, len(view)
    responses: list[ReadResponse] = []
    while at < size:
        if size - at < _READ_RESPONSE.size:
            raise BadBookieFrame("read response exceeds the message")
        number, status, lac, count = _READ_RESPONSE.unpack_from(view, at)
        at += _READ_RESPONSE.size
        bodies, at = _decode_bodies(view, at, count)
        responses.append(ReadResponse(number, status_of(status), lac, bodies))
    return responses


def _decode_bodies(view: memoryview, at: int, count: int) -> tuple[list[memoryview], int]:
    """Return views of the bodies and the index of the next byte. Raises BadBookieFrame."""
    if count == 0:
        return [], at
    lengths_end = at + count * _LENGTHS
    size = len(view)
    if lengths_end > size:
        raise BadBookieFrame(f"{count} bodies do not fit into {size - at} bytes")
    lengths = Struct(f">{count}I").unpack_from(view, at)
    at = lengths_end
    bodies: list[memoryview] = []
    for length in lengths:
        end = at + length
        if end > size:
            raise BadBookieFrame(f"body of {length} bytes exceeds the {size - at} bytes left")
        bodies.append(view[at:end])
        at = end
    return bodies, at


# -- both -------------------------------------------------------------------------------------


def open_message(message: Buffer, kind: FrameKind) -> memoryview:
    """Return the content after the first two bytes. Raises BadBookieFrame for another kind."""
    if len(message) < _HEAD.size:
        raise BadBookieFrame(f"message has only {len(message)} bytes")
    version, found = message[0], message[1]
    if version != VERSION or found != kind:
        raise _unexpected(version, found, kind)
    return memoryview(message)[_HEAD.size :]


def _unexpected(version: int, kind: int, wanted: FrameKind) -> BadBookieFrame:
    return BadBookieFrame(
        f"version {version} kind {kind} instead of version {VERSION} kind {wanted}"
    )


_STATUSES: Final = {int(status): status for status in Status}


def status_of(code: int) -> Status:
    """Return the status. Raises BadBookieFrame for an unknown code."""
    status = _STATUSES.get(code)
    if status is None:
        raise BadBookieFrame(f"unknown status {code}")
    return status
