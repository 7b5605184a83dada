# kazoo has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""Requests that kazoo lacks, or about watches that it would remember for each path.

kazoo keeps a dictionary entry for each watch. The requests here have no attribute `watcher`, so
kazoo keeps none: the connection reports every watch event, and `Watches` knows the paths.
Source: ZooKeeper, `ZooDefs.java`, `zookeeper.jute`, `FinalRequestProcessor.java`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from kazoo.exceptions import EXCEPTIONS
from kazoo.protocol import serialization as wire

REQUEST_BYTES_MAX: Final = 0xFFFFF
"""The default of ZooKeeper's jute.maxbuffer. A server closes the connection of a larger request."""

HEADER_BYTES: Final = 8  # each request: its number and type
MULTI_OP_BYTES: Final = 9  # the header of each operation of a multi, and of its end
FIELDS_BYTES_MAX: Final = 64  # all fields of one request but path and data, with its header

_ANY_WATCHER = 3  # WatcherType.ANY: watches of data and of children
_INT = struct.Struct("!i")
_LONG = struct.Struct("!q")
_MULTI_HEADER = struct.Struct("!iBi")


class WatchNode(NamedTuple):
    """`exists` with a watch: the answer is the node's stat, or None for a missing node."""

    path: str

    @property
    def type(self) -> int:
        return wire.Exists.type

    def serialize(self) -> bytes:
        return wire.write_string(self.path) + b"\x01"

    def deserialize(self, data: bytes, offset: int) -> Any:
        return wire.Exists.deserialize(data, offset)


class WatchChildren(NamedTuple):
    """`getChildren2` with a watch: the answer is (names, stat)."""

    path: str

    @property
    def type(self) -> int:
        return wire.GetChildren2.type

    def serialize(self) -> bytes:
        return wire.write_string(self.path) + b"\x01"

    def deserialize(self, data: bytes, offset: int) -> Any:
        return wire.GetChildren2.deserialize(data, offset)


class SetWatches(NamedTuple):
    """Set the watches of an earlier connection again.

    A watch whose node has changed since the transaction `since_zxid` fires at once instead. The
    paths of `present` had a node and those of `missing` had none.
    """

    since_zxid: int
    present: Sequence[str]
    missing: Sequence[str]

    @property
    def type(self) -> int:
        return 101

    def serialize(self) -> bytes:
        present = _strings(self.present)
        return b"".join((_LONG.pack(self.since_zxid), present, _strings(self.missing), present))

    def deserialize(self, data: bytes, offset: int) -> bool:
        return True


class RemoveWatches(NamedTuple):
    """Remove all watches of this session on one path."""

    path: str

    @property
    def type(self) -> int:
        return 18

    def serialize(self) -> bytes:
        return wire.write_string(self.path) + _INT.pack(_ANY_WATCHER)

    def deserialize(self, data: bytes, offset: int) -> bool:
        return True


class MultiRead(NamedTuple):
    """Reads of several nodes (`GetData`, `GetChildren`) in one request. Servers from 3.6 on.

    Each answer is the one of the single read, or its exception. Not a transaction.
    """

    reads: Sequence[Any]

    @property
    def type(self) -> int:
        return 22

    def serialize(self) -> bytes:
        parts: list[bytes] = []
        for read in self.reads:
            parts += (_MULTI_HEADER.pack(read.type, 0, -1), read.serialize())
        parts.append(_MULTI_HEADER.pack(-1, 1, -1))
        return b"".join(parts)

    def deserialize(self, data: bytes, offset: int) -> list[Any]:
        found: list[Any] = []
        kind, done, _ = _MULTI_HEADER.unpack_from(data, offset)
        offset += _MULTI_HEADER.size
        while not done:
            if kind == wire.GetData.type:
                value, offset = _data_at(data, offset)
            elif kind == wire.GetChildren.type:
                value, offset = _names_at(data, offset)
            else:
                value = EXCEPTIONS[_INT.unpack_from(data, offset)[0]]()
                offset += _INT.size
            found.append(value)
            kind, done, _ = _MULTI_HEADER.unpack_from(data, offset)
            offset += _MULTI_HEADER.size
        if len(found) != len(self.reads):
            raise ValueError(f"{len(found)} answers to {len(self.reads)} reads")
        return found


def read_bytes(path: str) -> int:
    """Return the size of one read in a `MultiRead`."""
    return MULTI_OP_BYTES + _INT.size + len(path.encode()) + 1


def _data_at(data: bytes, offset: int) -> tuple[Any, int]:
    answer = wire.GetData.deserialize(data, offset)
    return answer, offset + _INT.size + len(answer[0] or b"") + wire.stat_struct.size


def _names_at(data: bytes, offset: int) -> tuple[list[str], int]:
    count = _INT.unpack_from(data, offset)[0]
    offset += _INT.size
    names: list[str] = []
    for _ in range(count):
        name, offset = wire.read_string(data, offset)
        names.append(name or "")
    return names, offset


def _strings(texts: Sequence[str]) -> bytes:
    return b"".join((_INT.pack(len(texts)), *map(wire.write_string, texts)))
