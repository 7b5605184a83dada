"""Columns of the frames that an audit counts in, as Spark's schemas. Nothing is loaded for them."""

from __future__ import annotations

BUCKET = 32_768
"""Positions in a bucket: fine enough to compare little again, coarse enough to be few."""

NARROW = "topic STRING, partition INT, offset BIGINT, ms BIGINT, hash BIGINT"
"""What comes in: `hash` is of the record's content."""

SUMS = (
    "records", "content_high", "content_low", "placed_high", "placed_low", "print_high",
    "print_low", "disorder", "back",
)  # fmt: skip
"""Columns that add up over the parts of a bucket. A sum of 64 bits comes as high * 2^32 + low."""

PARTIALS = (
    "topic STRING, partition INT, bucket BIGINT, first BIGINT, last BIGINT, first_ms BIGINT,"
    " last_ms BIGINT, " + ", ".join(f"{name} BIGINT" for name in SUMS)
)
"""What goes out. `first` and `last` are positions; `placed`: sums over content and position;
`print`: over positions alone; `disorder`: positions not above the one before; `back`: timestamps
below the one before; both only of what comes in order."""

BUCKETS = f"{PARTIALS}, dense BOOLEAN"
"""Parts put together; `dense`: each position from `first` to `last` is there exactly once."""
