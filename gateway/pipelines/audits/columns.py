"""The columns of an audit's intermediate frames, as Spark schemas. Imports nothing."""

from __future__ import annotations

BUCKET = 32_768
"""Positions per bucket.

A bucket is small enough to read again, and large enough to keep rows few.
"""

NARROW = "topic STRING, partition INT, offset BIGINT, ms BIGINT, hash BIGINT"
"""The columns that are counted. `hash` covers the content of the record."""

SUMS = (
    "records", "content_high", "content_low", "placed_high", "placed_low", "print_high",
    "print_low", "disorder", "back",
)  # fmt: skip
"""Columns that add up over the parts of a bucket. A 64-bit sum is split into high * 2^32 + low."""

PARTIALS = (
    "topic STRING, partition INT, bucket BIGINT, first BIGINT, last BIGINT, first_ms BIGINT,"
    " last_ms BIGINT, " + ", ".join(f"{name} BIGINT" for name in SUMS)
)
"""The columns of one part of a bucket. `first` and `last` are positions.

`placed` columns sum over content and position, and `print` columns over positions alone. `disorder`
counts positions not above the previous one, and `back` timestamps below the previous one. Both are
counted only for ordered input.
"""

BUCKETS = f"{PARTIALS}, dense BOOLEAN"
"""The columns of a bucket. `dense` is true if each position from `first` to `last` occurs once."""
