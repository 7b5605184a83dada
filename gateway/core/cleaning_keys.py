"""The newest offset of each key in a part of a log, within a bound of memory. Pure.

Short keys are kept as they are, longer ones by 16 bytes of a hash, as Kafka keeps all keys by their
MD5. Two keys never share an entry unless that hash collides. Source: Kafka, SkimpyOffsetMap.
"""

from __future__ import annotations

from hashlib import blake2b

_DIGEST_BYTES = 16
KEY_BYTES = 200
"""The memory of one key, at most: its bytes (64), its offset (32) and its place in the map (104).

The place counts the moment at which a growing map exists twice.
"""


class KeyMap:
    """The newest offset of each key that was put. It never has more than `keys_max` keys."""

    __slots__ = ("_offsets", "keys_max")

    def __init__(self, bytes_max: int) -> None:
        # At least one key fits, so that each round makes some progress.
        self.keys_max = max(1, bytes_max // KEY_BYTES)
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def put(self, key: bytes, offset: int) -> bool:
        """Note that `key` is at `offset`, which rises from call to call.

        Returns False, and notes nothing, if the key is new and the map is full.
        """
        if len(key) >= _DIGEST_BYTES:
            key = _digest(key)
        if key not in self._offsets and len(self._offsets) >= self.keys_max:
            return False
        self._offsets[key] = offset
        return True

    def newest(self, key: bytes) -> int:
        """Return the newest offset of the key, or -1 if it was not put."""
        if len(key) >= _DIGEST_BYTES:
            key = _digest(key)
        return self._offsets.get(key, -1)


def _digest(key: bytes) -> bytes:
    """Return 16 bytes: no key that is kept as it is has this length."""
    return blake2b(key, digest_size=_DIGEST_BYTES).digest()
