"""Frames of a TCP connection between a client and a bookie: both streams and control calls on it.

    frame           length i32 · message
    message         version u8 · kind u8 · content          as in `bookie_frames`, and these kinds:

    WELCOME         (bookie)   status u16 · largest entry u32 · features u32 · credit u64
    PING, PONG      (client, bookie)     empty; a client that has heard nothing for a while pings
    ADD_CREDIT      (bookie)   bytes u64 of ADDS messages that the client may have sent in all
    CALL            (client)   number u32 · method u8 · protobuf message of bookie.proto
    CALL_RESPONSE   (bookie)   number u32 · outcome u8 · protobuf message
    PIECES_BEGIN    (both)     size u32 of a message · its first piece
    PIECE           (both)     its next piece

A frame has at most 256 KiB. A longer message travels in pieces, between which other frames may
travel; only one message of a direction is in pieces at a time. The first frame is HELLO, and its
version byte names the protocol: BookKeeper's own clients begin with another one. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from ledger.ids import BookieId, Buffer
from ledger.ports.bookies import Status
from ledger.wire.bookie_frames import (
    VERSION,
    BadBookieFrame,
    FrameKind,
    encode_hello,
    open_message,
    status_of,
)

FRAME_BYTES_MAX: Final = 256 * 1024
"""The longest frame, without its length."""

FIRST_FRAME_BYTES_MAX: Final = 64 * 1024
"""The longest frame until the protocol is known."""

JOIN_BYTES: Final = 16 * 1024
"""Shorter parts of a message are joined; longer ones are sent as they are."""

STAGING_BYTES: Final = 64 * 1024
"""The size of the buffer into which frames are received, unless they are long."""

FENCE_MANY: Final = 1
LOCATE: Final = 2
FEATURES: Final = FENCE_MANY | LOCATE
"""The feature bits of this release, one for each control call that earlier releases lack."""

CALL_METHODS: Final = {
    "Info": 1,
    "ReadLac": 2,
    "WriteLac": 3,
    "ListEntries": 4,
    "EndLimbo": 5,
    "Stats": 6,
    "FenceMany": 7,
    "Locate": 8,
}
"""The number of each control call."""

FEATURE_OF: Final = {"FenceMany": FENCE_MANY, "Locate": LOCATE}
"""The feature bit that a bookie must have announced to get this control call."""

ANSWERED: Final = 0  # outcome of a call: the response follows
NOT_ANSWERED: Final = 1  # outcome of a call: nothing is known, because it took too long

_LENGTH: Final = 4
_HEAD: Final = Struct(">IBB")
_HEAD_BYTES: Final = _HEAD.size
_BEGIN: Final = Struct(">IBBI")
_WELCOME: Final = Struct(">BBHIIQ")
_CREDIT: Final = Struct(">BBQ")
_CALL: Final = Struct(">BBIB")
_IN_PLACE_BYTES: Final = 8 * 1024  # longer frames that are not complete get a buffer of their own
_PEEK_BYTES: Final = 8 * 1024  # received into the staging buffer between two pieces
_STEP_BYTES: Final = FRAME_BYTES_MAX // 2  # of a message in pieces, within the time for a frame
_PIECES: Final = min(FrameKind.PIECE, FrameKind.PIECES_BEGIN).value
_FOREIGN: Final = {0x0A: "BookKeeper's protocol v3", 0x02: "BookKeeper's protocol v2"}
_TLS_RECORD: Final = 0x16

Allocate = Callable[[int], bytearray]
"""Returns a buffer of this size, of any content."""
Deliver = Callable[[Buffer], None]
"""Takes a message that is complete. Raises BadBookieFrame."""
Admit = Callable[[int, int], None]
"""Checks the kind and the size of a message before it is received. Raises BadBookieFrame."""


class ForeignProtocol(BadBookieFrame):
    """The first bytes of a connection belong to a protocol that is not served here."""


class Welcome(NamedTuple):
    """The first message of a bookie over TCP."""

    status: Status
    entry_bytes_max: int
    features: int
    credit: int  # bytes of ADDS messages that the client may send before it receives ADD_CREDIT


class Call(NamedTuple):
    """A control call, or the response to one; then `code` is the outcome."""

    number: int
    code: int
    content: bytes


# -- messages ---------------------------------------------------------------------------------


def encode_tcp_welcome(welcome: Welcome) -> bytes:
    """Encode the first message of a bookie."""
    return _WELCOME.pack(VERSION, FrameKind.WELCOME, *welcome)


def decode_tcp_welcome(message: Buffer) -> Welcome:
    """Decode the first message of a bookie. Raises BadBookieFrame.

    A later release may append fields.
    """
    open_message(message, FrameKind.WELCOME)
    if len(message) < _WELCOME.size:
        raise BadBookieFrame(f"WELCOME has {len(message)} bytes, less than {_WELCOME.size}")
    _, _, status, entry_bytes_max, features, credit = _WELCOME.unpack_from(message)
    return Welcome(status_of(status), entry_bytes_max, features, credit)


def encode_add_credit(limit: int) -> bytes:
    """Encode the bytes of adds that the client may have sent since the connection began."""
    return _CREDIT.pack(VERSION, FrameKind.ADD_CREDIT, limit)


def decode_add_credit(message: Buffer) -> int:
    """Return the bytes of adds that may be sent in all. Raises BadBookieFrame."""
    if len(message) != _CREDIT.size:
        raise BadBookieFrame(f"ADD_CREDIT has {len(message)} bytes instead of {_CREDIT.size}")
    return _CREDIT.unpack(message)[2]


def encode_call(kind: FrameKind, number: int, code: int, content: bytes) -> bytes:
    """Encode a control call with the number of its method, or a response with its outcome."""
    return _CALL.pack(VERSION, kind, number, code) + content


def decode_call(message: Buffer) -> Call:
    """Decode a control call or a response to one. Raises BadBookieFrame."""
    if len(message) < _CALL.size:
        raise BadBookieFrame(f"a control call has only {len(message)} bytes")
    _, _, number, code = _CALL.unpack_from(message)
    return Call(number, code, bytes(memoryview(message)[_CALL.size :]))


# -- frames that are sent ---------------------------------------------------------------------


def frame(message: Buffer) -> bytes:
    """Return a short message as a frame."""
    assert len(message) <= FRAME_BYTES_MAX
    return len(message).to_bytes(_LENGTH, "big") + message


def hello_frame(bookie: BookieId) -> bytes:
    """Return the first frame of a client."""
    return frame(encode_hello(bookie))


PING_FRAME: Final = frame(bytes((VERSION, FrameKind.PING)))
PONG_FRAME: Final = frame(bytes((VERSION, FrameKind.PONG)))


def short_frame(parts: Sequence[Buffer], size: int) -> list[Buffer]:
    """Return a message of `size` bytes as one frame, in parts for one write.

    Long parts are not copied.
    """
    assert size <= FRAME_BYTES_MAX
    whole = [size.to_bytes(_LENGTH, "big"), *parts]
    return [b"".join(whole)] if size < JOIN_BYTES else joined(whole)


def frames(parts: Sequence[Buffer]) -> Iterator[list[Buffer]]:
    """Cut a message into frames, each in parts for one write. Long parts are not copied."""
    size = sum(map(len, parts))
    if size <= FRAME_BYTES_MAX:
        yield short_frame(parts, size)
        return
    views = [memoryview(part) for part in joined(parts)]
    room = FRAME_BYTES_MAX - (_BEGIN.size - _LENGTH)
    head = _BEGIN.pack(FRAME_BYTES_MAX, VERSION, FrameKind.PIECES_BEGIN, size)
    at = 0
    while size:
        piece: list[Buffer] = [head]
        left = min(size, room)
        size -= left
        while left:
            view = views[at]
            piece.append(view[:left])
            if len(view) > left:
                views[at] = view[left:]
            else:
                at += 1
            left -= min(left, len(view))
        yield piece
        room = FRAME_BYTES_MAX - (_HEAD_BYTES - _LENGTH)
        length = _HEAD_BYTES - _LENGTH + min(size, room)
        head = _HEAD.pack(length, VERSION, FrameKind.PIECE)


def joined(parts: Sequence[Buffer]) -> list[Buffer]:
    """Join neighbours that are short, so that a write has few parts."""
    found: list[Buffer] = []
    run: list[Buffer] = []
    for part in parts:
        if len(part) < JOIN_BYTES:
            run.append(part)
            continue
        if run:
            found.append(b"".join(run))
            run = []
        found.append(part)
    if run:
        found.append(b"".join(run))
    return found


# -- frames that are received -----------------------------------------------------------------


class FrameReader:
    """Messages out of the bytes of one connection.

    The connection receives into `buffer()`, then calls `received`, which delivers each message once
    it is complete, before it looks at the next one. A short message is copied out of the staging
    buffer, which all connections of an event loop share. A long one is received into one buffer of
    its size. Lengths are checked before a buffer is allocated.
    """

    __slots__ = (
        "_admit",
        "_allocate",
        "_deliver",
        "_fill",
        "_known",
        "_large",
        "_large_at",
        "_left",
        "_message_bytes_max",
        "_staging",
        "_step_at",
        "_whole",
        "midway",
        "steps",
        "stopped",
    )

    def __init__(
        self,
        staging: bytearray,
        allocate: Allocate,
        admit: Admit,
        deliver: Deliver,
        message_bytes_max: int,
    ) -> None:
        self._staging = memoryview(staging)
        self._allocate = allocate
        self._admit = admit
        self._deliver = deliver
        self._message_bytes_max = message_bytes_max
        # True once the first frame has the version of this protocol.
        self._known = False
        # Bytes of a frame that is not complete, if it is short. They return to the staging buffer
        # before more is received.
        self._left = b""
        # The rest of a frame that is received in place. Empty if none is.
        self._fill = memoryview(b"")
        # The message that `_fill` is the end of. None if `_fill` belongs to a piece of `_large`.
        self._whole: memoryview | None = None
        # The message that travels in pieces, if any, and its bytes in complete or begun pieces.
        self._large: memoryview | None = None
        self._large_at = 0
        # Set by `stop`: nothing more is delivered.
        self.stopped = False
        # Steps forward so far, for timeouts: complete messages, and each half of a frame's bytes
        # of a message in pieces. What comes between its pieces does not count.
        self.steps = 0
        # The bytes of the message in pieces at which the next step is done.
        self._step_at = 0
        # True if a message has arrived in part: in `_left`, `_whole` or `_large`.
        self.midway = False

    @property
    def unfinished(self) -> int:
        """Bytes that have arrived of messages that are not complete."""
        count = len(self._left) + self._large_at
        if self._whole is not None:
            return count + len(self._whole) - len(self._fill)
        return count - len(self._fill)

    def stop(self) -> None:
        """Deliver nothing more, and free what has arrived of messages that are not complete."""
        self.stopped = True
        self._left, self._fill = b"", memoryview(b"")
        self._whole = self._large = None
        self._large_at = 0

    def buffer(self) -> memoryview:
        """Return the buffer to receive into."""
        if not self.midway:
            return self._staging
        if self._fill:
            return self._fill
        left = self._left
        size = len(left)
        if size:
            self._staging[:size] = left
        if self._large is not None:
            return self._staging[size : size + _PEEK_BYTES]
        return self._staging[size:]

    def received(self, count: int) -> None:
        """Deliver the messages that are complete with `count` more bytes. Raises BadBookieFrame.

        After BadBookieFrame the reader is of no more use.
        """
        if not self.midway and self._known and count > _HEAD_BYTES:
            length, version, kind = _HEAD.unpack_from(self._staging)
            if count == _LENGTH + length and version == VERSION and kind < _PIECES:
                # Most often, one short frame came alone.
                self._admit(kind, length)
                self.steps += 1
                self._deliver(bytes(self._staging[_LENGTH:count]))
                return
        self._receive(count)
        self.midway = bool(self._fill or self._left or self._large is not None)

    def _receive(self, count: int) -> None:
        if self._fill:
            self._fill = self._fill[count:]
            if not self._fill:
                self._filled()
            return
        end = len(self._left) + count
        self._left = b""
        at = 0
        while not self.stopped:
            used = self._take(self._staging[at:end])
            if not used:
                break
            at += used
        if at < end:
            self._left = bytes(self._staging[at:end])

    def _take(self, view: memoryview) -> int:
        """Take one frame, or the beginning of a long one. Returns 0 if more bytes are needed."""
        size = len(view)
        if size < _HEAD_BYTES:
            if size > _LENGTH and not self._known:
                self._check_first(int.from_bytes(view[:_LENGTH], "big"), view[0], view[_LENGTH])
            return 0
        length, version, kind = _HEAD.unpack_from(view)
        if not self._known:
            self._check_first(length, view[0], version)
            self._known = True
        if version != VERSION or not 2 <= length <= FRAME_BYTES_MAX:
            raise BadBookieFrame(f"frame of {length} bytes with version {version}")
        if kind == FrameKind.PIECE:
            return self._take_piece(view, _HEAD_BYTES, length)
        if kind == FrameKind.PIECES_BEGIN:
            if size < _BEGIN.size + 2:
                return 0
            self._begin_pieces(view, length)
            return self._take_piece(view, _BEGIN.size, length)
        end = _LENGTH + length
        if size >= end:
            self._admit(kind, length)
            self.steps += self._large is None
            self._deliver(bytes(view[_LENGTH:end]))
            return end
        if length < _IN_PLACE_BYTES:
            return 0
        self._admit(kind, length)
        whole = memoryview(self._allocate(length))
        have = size - _LENGTH
        whole[:have] = view[_LENGTH:]
        self._whole, self._fill = whole, whole[have:]
        return size

    def _begin_pieces(self, view: memoryview, length: int) -> None:
        """Allocate a message that travels in pieces. Raises BadBookieFrame."""
        total = _BEGIN.unpack_from(view)[3]
        version, kind = view[_BEGIN.size], view[_BEGIN.size + 1]
        if self._large is not None:
            raise BadBookieFrame("a message in pieces begins inside of another one")
        if length < _BEGIN.size - _LENGTH + 2 or version != VERSION:
            raise BadBookieFrame(f"first piece of {length} bytes with version {version}")
        if kind in (FrameKind.PIECE, FrameKind.PIECES_BEGIN):
            raise BadBookieFrame("pieces inside of pieces")
        if not FRAME_BYTES_MAX < total <= self._message_bytes_max:
            raise BadBookieFrame(f"message of {total} bytes in pieces")
        self._admit(kind, total)
        self._large = memoryview(self._allocate(total))
        self._large_at, self._step_at = 0, _STEP_BYTES

    def _take_piece(self, view: memoryview, head_bytes: int, length: int) -> int:
        large = self._large
        if large is None:
            raise BadBookieFrame("a piece without a beginning")
        size = _LENGTH + length - head_bytes
        if not 0 < size <= len(large) - self._large_at:
            raise BadBookieFrame(
                f"piece of {size} bytes with {len(large) - self._large_at} bytes left"
            )
        have = min(len(view) - head_bytes, size)
        begin, self._large_at = self._large_at, self._large_at + size
        large[begin : begin + have] = view[head_bytes : head_bytes + have]
        self._fill = large[begin + have : self._large_at]
        if not self._fill:
            self._filled()
        return head_bytes + have

    def _filled(self) -> None:
        """Note the end of a frame that was received in place."""
        if self._whole is not None:
            whole, self._whole = self._whole, None
            self.steps += self._large is None
            self._deliver(whole.toreadonly())
        elif self._large is not None and self._large_at == len(self._large):
            large, self._large, self._large_at = self._large, None, 0
            self.steps += 1
            self._deliver(large.toreadonly())
        elif self._large_at >= self._step_at:
            self.steps += 1
            self._step_at = self._large_at + _STEP_BYTES

    def _check_first(self, length: int, first: int, version: int) -> None:
        """Raise ForeignProtocol unless the first frame is one of this protocol."""
        if first == _TLS_RECORD:
            raise ForeignProtocol("TLS, which this port does not have")
        if length > FIRST_FRAME_BYTES_MAX or length < 2:
            raise ForeignProtocol(f"an unknown protocol (first frame of {length} bytes)")
        if version != VERSION:
            raise ForeignProtocol(_FOREIGN.get(version, f"an unknown protocol ({version:#04x})"))
