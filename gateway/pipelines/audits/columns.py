"""The columns of an audit's intermediate frames, as Spark schemas. Imports nothing."""

from __future__ import annotations

BUCKET = 32_768
"""Positions per bucket: few enough to compare a bucket again, many enough to keep buckets few."""

NARROW = "topic STRING, partition INT, offset BIGINT, ms BIGINT, hash BIGINT"
"""The input of counting. `hash` covers the content of the record."""

SUMS = (
    "records", "content_high", "content_low", "placed_high", "placed_low", "print_high",
    "print_low", "disorder", "back",
)  # fmt: skip
"""Columns that add up over the parts of a bucket. A 64-bit sum is split: high * 2^32 + low."""

PARTIALS = (
    "topic STRING, partition INT, bucket BIGINT, first BIGINT, last BIGINT, first_ms BIGINT,"
    " last_ms BIGINT, " + ", ".join(f"{name} BIGINT" for name in SUMS)
)
"""The output of counting. `first` and `last` are positions.

`placed`: sums over content and position; `print`: sums over positions alone. `disorder`: positions
not above the previous one; `back`: timestamps below the previous one. The last two are counted only
for ordered input.
"""

BUCKETS = f"{PARTIALS}, dense BOOLEAN"
"""Merged parts. `dense` is true if each position from `first` to `last` occurs exactly once."""
