"""The newest offset of each key in a part of a log, within a bound of memory. Pure.

Keys of up to 15 bytes are kept as they are, longer ones by 127 bits of a hash, as Kafka keeps all
keys by their MD5. Two keys never share an entry unless that hash collides. All keys of a block are
looked up together: each step takes the next place of all keys that were not found yet.
Source: Kafka, SkimpyOffsetMap.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from gateway.core.columns import Flags, Numbers, Words

SHORT_BYTES_MAX = 15
_DIGEST_BYTES = 16
_ROW_BYTES = 24  # of a place: the key in two words, and one more than its offset, or 0
KEY_BYTES = 32
"""The memory of one key: its place, and a free one for every third key, so that steps are few."""

_DIGEST_BIT = 0x80  # of the last byte, which is the length of a short key otherwise
_FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)
_WORD_MASK = (1 << 64) - 1
_HALF = np.uint64(32)


def key_words(keys: Sequence[bytes]) -> Words:
    """Return two words for each key, which differ if the keys do."""
    return np.frombuffer(b"".join(map(_packed, keys)), np.uint64).reshape(-1, 2)


def _packed(key: bytes) -> bytes:
    if len(key) <= SHORT_BYTES_MAX:
        return key.ljust(SHORT_BYTES_MAX, b"\0") + bytes([len(key)])
    digest = blake2b(key, digest_size=_DIGEST_BYTES).digest()
    return digest[:SHORT_BYTES_MAX] + bytes([digest[-1] | _DIGEST_BIT])


class KeyMap:
    """The newest offset of each key that was put. It never has more than `keys_max` keys."""

    __slots__ = ("_count", "_factors", "_places", "keys_max")

    def __init__(self, bytes_max: int, records_max: int | None = None, seed: int = 0) -> None:
        """`records_max` is the number of records that will be put, if it is known.

        The places of keys depend on `seed`, which no client should know.
        """
        # At least one key fits, so that each round makes some progress.
        self.keys_max = max(1, bytes_max // KEY_BYTES)
        room = self.keys_max if records_max is None else min(self.keys_max, max(1, records_max))
        # A third of the places stays free. Fresh zeros take no memory before they are written.
        places = -(-room * KEY_BYTES // _ROW_BYTES) + 1
        self._places: Words = np.zeros((places, 3), np.uint64)
        self._count = 0
        self._factors = [np.uint64((each ^ seed << 1) & _WORD_MASK) for each in _FACTORS]

    def __len__(self) -> int:
        return self._count

    def put(self, words: Words, offsets: Numbers) -> int:
        """Note that keys are at `offsets`, which rise also from call to call.

        Returns how many were noted: those before the first one that is new to a full map.
        """
        noted = len(offsets)
        if self._count + noted > self.keys_max:
            noted = self._fitting(words, offsets)
        self._put(words[:noted], offsets[:noted])
        return noted

    def newest(self, words: Words) -> Numbers:
        """Return the newest offset of each key, or -1 for a key that was not put."""
        found = np.full(len(words), -1, np.int64)
        left = np.arange(len(words))
        at = self._first_places(words)
        while left.size:
            rows = self._places.take(at, axis=0)
            same = _same(rows, words)
            found[left[same]] = rows[same, 2].astype(np.int64) - 1
            on = ~same & (rows[:, 2] != 0)
            left, words, at = left[on], words[on], self._next_places(at[on])
        return found

    def _fitting(self, words: Words, offsets: Numbers) -> int:
        """Return how many of the keys can be noted before one of them finds no room."""
        new = np.flatnonzero(self.newest(words) < 0)
        _, first = np.unique(words[new], axis=0, return_index=True)
        firsts = np.sort(new[first])
        room = self.keys_max - self._count
        return len(offsets) if len(firsts) <= room else int(firsts[room])

    def _put(self, words: Words, offsets: Numbers) -> None:
        rows = np.empty((len(words), 3), np.uint64)
        rows[:, :2] = words
        rows[:, 2] = offsets + 1
        at = self._first_places(words)
        while len(rows):
            present = self._places.take(at, axis=0)
            done = _same(present, rows)
            # Of several rows for one place the last one is written, which is the newest of its key.
            self._places[at[done], 2] = rows[done, 2]
            free = np.flatnonzero(present[:, 2] == 0)
            if free.size:
                claimed, wanted = at[free], rows[free]
                self._places[claimed] = wanted
                written = self._places.take(claimed, axis=0)
                self._count += int(np.count_nonzero(written[:, 2] == wanted[:, 2]))
                done[free] = _same(written, wanted)
            on = ~done
            rows, at = rows[on], self._next_places(at[on])

    def _first_places(self, words: Words) -> Numbers:
        first, second, third = self._factors
        mixed = (words[:, 0] * (first | np.uint64(1))) ^ (words[:, 1] * (second | np.uint64(1)))
        mixed ^= mixed >> _HALF
        mixed *= third | np.uint64(1)
        mixed ^= mixed >> np.uint64(29)
        mixed *= first | np.uint64(1)
        return ((mixed >> _HALF) * np.uint64(len(self._places)) >> _HALF).astype(np.int64)

    def _next_places(self, at: Numbers) -> Numbers:
        at = at + 1
        at[at == len(self._places)] = 0
        return at


def _same(rows: Words, others: Words) -> Flags:
    """Return which rows are taken and have the same key as their other."""
    return (rows[:, 0] == others[:, 0]) & (rows[:, 1] == others[:, 1]) & (rows[:, 2] != 0)
