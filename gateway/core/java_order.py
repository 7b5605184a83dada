"""Orders strings as Java's HashMap does, so that lists of few keys come in Kafka's order."""

from __future__ import annotations

from collections.abc import Iterable

_BUCKETS = 8  # of a HashMap with three to six keys


def java_hash(text: str) -> int:
    """Return `String.hashCode` as an unsigned number, computed over UTF-16 units."""
    value = 0
    raw = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(raw), 2):
        value = (31 * value + (raw[at] << 8 | raw[at + 1])) & 0xFFFFFFFF
    return value


def in_hash_order(keys: Iterable[str]) -> list[str]:
    """Return the keys by their bucket in a small HashMap. Keys of one bucket keep their order."""
    return sorted(keys, key=_bucket)


def _bucket(key: str) -> int:
    hashed = java_hash(key)
    return (hashed ^ hashed >> 16) & (_BUCKETS - 1)
