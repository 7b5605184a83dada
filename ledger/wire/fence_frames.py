"""The request and the response of FENCE_MANY, a control call over TCP. Pure.

    request     bookie id length u8 · bookie id · {ledger i64 · key length u8 · key}…
    response    {status u16 · lac i64 · body length u32 · body}…, in the order of the request

Only a bookie that announces the feature bit gets it.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from ledger.ids import BookieId, EntryId, LedgerId
from ledger.ports.bookies import FENCED_MAX, ReadReply
from ledger.wire.bookie_frames import KEY_BYTES_MAX, NAME_BYTES_MAX, BadBookieFrame, status_of

BODIES_BYTES_MAX: Final = 1024 * 1024
"""Most bytes of the entries in one response. The bookie answers OVERLOADED for the rest."""

_LEDGER = Struct(">qB")
_REPLY = Struct(">HqI")


def encode_fences(bookie: BookieId, ledgers: Sequence[tuple[LedgerId, bytes]]) -> bytes:
    """Encode a request for at most `FENCED_MAX` ledgers."""
    name = bookie.encode()
    assert len(name) <= NAME_BYTES_MAX
    assert len(ledgers) <= FENCED_MAX
    parts = [bytes((len(name),)), name]
    for ledger, key in ledgers:
        assert len(key) <= KEY_BYTES_MAX
        parts += (_LEDGER.pack(ledger, len(key)), key)
    return b"".join(parts)


def decode_fences(request: bytes) -> tuple[str, list[tuple[LedgerId, bytes]]]:
    """Return the bookie that is addressed, and the ledgers with keys. Raises BadBookieFrame."""
    name_end = 1 + request[0] if request else 1
    if name_end > len(request):
        raise BadBookieFrame("FENCE_MANY has no bookie id")
    try:
        bookie = str(request[1:name_end], "utf-8")
    except UnicodeDecodeError as error:
        raise BadBookieFrame("bookie id is not UTF-8") from error
    at, found = name_end, list[tuple[LedgerId, bytes]]()
    while at < len(request):
        if len(request) - at < _LEDGER.size or len(found) == FENCED_MAX:
            raise BadBookieFrame(f"FENCE_MANY is cut or has more than {FENCED_MAX} ledgers")
        ledger, key_length = _LEDGER.unpack_from(request, at)
        at += _LEDGER.size + key_length
        if at > len(request) or ledger < 0:
            raise BadBookieFrame(f"FENCE_MANY: ledger {ledger}, key of {key_length} bytes")
        found.append((ledger, request[at - key_length : at]))
    return bookie, found


def encode_fence_replies(replies: Sequence[ReadReply]) -> bytes:
    """Encode the replies of all ledgers."""
    parts: list[bytes] = []
    for status, body, lac in replies:
        parts += (_REPLY.pack(status, lac, len(body)), body)
    return b"".join(parts)


def decode_fence_replies(response: bytes, count: int) -> list[ReadReply]:
    """Decode `count` replies. Raises BadBookieFrame."""
    at, found = 0, list[ReadReply]()
    while at < len(response) and len(found) < count:
        if len(response) - at < _REPLY.size:
            break
        status, lac, length = _REPLY.unpack_from(response, at)
        at += _REPLY.size + length
        if at > len(response):
            break
        found.append(ReadReply(status_of(status), response[at - length : at], EntryId(lac)))
    if len(found) != count or at != len(response):
        raise BadBookieFrame(f"{len(response)} bytes are not the replies of {count} fences")
    return found
