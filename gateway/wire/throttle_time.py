"""Puts a throttle time into a reply that is encoded already. Such replies have a time of 0."""

from __future__ import annotations

import struct
from typing import Final

from gateway.wire.produce_reply import FLEXIBLE_FROM
from gateway.wire.schema import response_class
from ledger.ids import Buffer

PRODUCE: Final = 0
LIST_OFFSETS: Final = 2
_INT: Final = struct.Struct(">i")
_LIST_OFFSETS_FROM: Final = 2  # v1 has no throttle time


def put_throttle_time(
    key: int, version: int, reply: list[Buffer], throttle_ms: int, nodes_bytes: int = 0
) -> None:
    """Set the throttle time of an encoded reply without its frame size, in place.

    It is the first field of each reply that a handler encodes itself, but for Produce, where it
    is the last one. `nodes_bytes` is the size of the leaders that follow there, if there are some.
    """
    if not reply or (key == LIST_OFFSETS and version < _LIST_OFFSETS_FROM):
        return
    if key == PRODUCE:
        tail = nodes_bytes or (1 if version >= FLEXIBLE_FROM else 0)
        reply[-1] = _set(reply[-1], len(reply[-1]) - tail - _INT.size, throttle_ms)
        return
    schema = response_class(key, version)
    at = _INT.size + bool(schema.__header_schema__.__flexible__)
    reply[0] = _set(reply[0], at, throttle_ms)


def _set(buffer: Buffer, at: int, throttle_ms: int) -> bytes:
    return b"".join((buffer[:at], _INT.pack(throttle_ms), buffer[at + _INT.size :]))
