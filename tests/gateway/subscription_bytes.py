"""The subscription of a classic member as its client encodes it."""

from __future__ import annotations

import struct


def subscription(topics, owned=(), generation=-1, version=3, rack=None):
    """Return the metadata of a JoinGroup. `owned` are partitions of the first topic."""

    def text(each):
        return struct.pack(">h", len(each)) + each.encode()

    def partitions(name, numbers):
        return text(name) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)

    parts = [struct.pack(">hi", version, len(topics)), *map(text, topics), struct.pack(">i", -1)]
    if version >= 1:
        parts.append(struct.pack(">i", 1 if owned else 0))
        parts.append(partitions(topics[0], sorted(owned)) if owned else b"")
    if version >= 2:
        parts.append(struct.pack(">i", generation))
    if version >= 3:
        parts.append(struct.pack(">h", -1) if rack is None else text(rack))
    return b"".join(parts)
