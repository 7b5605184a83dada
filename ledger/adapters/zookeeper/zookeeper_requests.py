# kazoo has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""Requests about watches that kazoo lacks, or that it would remember for each path.

kazoo keeps a dictionary entry for each watch. The requests here have no attribute `watcher`, so
kazoo keeps none: the connection reports every watch event, and `Watches` knows the paths.
Source: ZooKeeper, `ZooDefs.java`, `zookeeper.jute`, `FinalRequestProcessor.java`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from kazoo.protocol import serialization as wire

_ANY_WATCHER = 3  # WatcherType.ANY: watches of data and of children
_INT = struct.Struct("!i")
_LONG = struct.Struct("!q")


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


def _strings(texts: Sequence[str]) -> bytes:
    return b"".join((_INT.pack(len(texts)), *map(wire.write_string, texts)))
