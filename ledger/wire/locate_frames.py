"""The request and the response of LOCATE, a control call that only reads. Pure.

    request     bookie id length u8 · bookie id · ledger i64 · entry i64
    response    status u16 · file id u64 · position u64 · length u32; numbers are 0 unless it is OK

Over TCP only a bookie that announces the feature bit gets it. Over gRPC a bookie of an earlier
release answers UNIMPLEMENTED.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from ledger.ids import BookieId, EntryId, LedgerId
from ledger.ports.bookies import LocateReply, Status
from ledger.wire.bookie_frames import NAME_BYTES_MAX, BadBookieFrame, status_of

_ENTRY: Final = Struct(">qq")
_REPLY: Final = Struct(">HQQI")


class LocateRequest(NamedTuple):
    """The entry whose place is asked for, and the bookie instance that is addressed."""

    bookie: str
    ledger: LedgerId
    entry: EntryId


def encode_locate(bookie: BookieId, ledger: LedgerId, entry: EntryId) -> bytes:
    """Encode a request."""
    name = bookie.encode()
    assert len(name) <= NAME_BYTES_MAX
    return bytes((len(name),)) + name + _ENTRY.pack(ledger, entry)


def decode_locate(request: bytes) -> LocateRequest:
    """Decode a request. Raises BadBookieFrame."""
    name_end = 1 + request[0] if request else 1
    if len(request) != name_end + _ENTRY.size:
        raise BadBookieFrame(f"LOCATE has {len(request)} bytes")
    try:
        bookie = str(request[1:name_end], "utf-8")
    except UnicodeDecodeError as error:
        raise BadBookieFrame("bookie id is not UTF-8") from error
    ledger, entry = _ENTRY.unpack_from(request, name_end)
    if ledger < 0 or entry < 0:
        raise BadBookieFrame(f"LOCATE: ledger {ledger}, entry {entry}")
    return LocateRequest(bookie, ledger, entry)


def encode_locate_reply(reply: LocateReply) -> bytes:
    """Encode a response."""
    return _REPLY.pack(*reply)


def decode_locate_reply(response: bytes) -> LocateReply:
    """Decode a response. Raises BadBookieFrame."""
    if len(response) != _REPLY.size:
        raise BadBookieFrame(f"the place of an entry has {len(response)} bytes")
    code, file_id, position, length = _REPLY.unpack(response)
    status = status_of(code)
    if status is not Status.OK and (file_id or position or length):
        raise BadBookieFrame(f"a place of an entry with the status {status.name}")
    return LocateReply(status, file_id, position, length)
