"""The headers of records as an Arrow column; decoded only where somebody asked for them.

The k-th headers of all records that have as many are found in the k-th step, as numpy does the
rest. Source: Kafka, DefaultRecord; a record without headers has null, as in Spark's Kafka source.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from gateway.pipelines.direct.gather import gather_bytes, validity_buffer
from gateway.pipelines.direct.walk import Bytes, Positions, varints

HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])


class _HeaderBounds(NamedTuple):
    """One element per header, in order of records."""

    keys: Positions
    key_lengths: Positions
    values: Positions
    value_lengths: Positions


def header_counts(array: Bytes, at: Positions, ends: Positions) -> tuple[Positions, Positions]:
    """Of records whose header counts lie `at`; and where their first headers lie.

    Raises ValueError, IndexError on damaged data: none claims more than it has bytes for.
    """
    counts, at = varints(array, at)
    if (counts < 0).any() or (counts > (ends - at) >> 1).any():  # each has two lengths
        raise ValueError("headers that do not fit into their record")
    return counts, at


def headers_column(
    data: bytes, array: Bytes, counts: Positions, at: Positions, ends: Positions
) -> pa.Array:
    """Of records with `counts` headers `at` there. Raises as `header_counts` does."""
    edges = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=edges[1:])
    total = int(edges[-1])
    found = _HeaderBounds(*(np.empty(total, np.int64) for _ in _HeaderBounds._fields))
    _walk(array, at, ends, counts, edges[:-1], found)
    keys = _texts(gather_bytes(data, found.keys, found.key_lengths))
    values = gather_bytes(data, found.values, found.value_lengths)
    structs = pa.StructArray.from_arrays([keys, values], fields=list(HEADER))
    lists = pa.ListArray.from_arrays(pa.array(edges.astype(np.int32)), structs)
    return pa.Array.from_buffers(
        lists.type,
        len(counts),
        [validity_buffer(counts == 0), lists.buffers()[1]],
        children=[structs],
    )


def _walk(
    array: Bytes,
    at: Positions,
    ends: Positions,
    counts: Positions,
    places: Positions,
    found: _HeaderBounds,
) -> None:
    """`found` is filled. Records must end where their last header does."""
    step = 0
    while True:
        over = counts <= step
        if not np.array_equal(at[over], ends[over]):
            raise ValueError("a record has bytes behind its last header")
        more = ~over
        if not more.any():
            return
        at, ends, counts, places = at[more], ends[more], counts[more], places[more]
        key_lengths, keys = varints(array, at)
        value_lengths, values = varints(array, keys + key_lengths)
        at = values + np.maximum(value_lengths, 0)
        if (key_lengths < 0).any() or (at > ends).any():
            raise ValueError("a header is longer than its record")
        for column, values_of in zip(
            found, (keys, key_lengths, values, value_lengths), strict=True
        ):
            column[places + step] = values_of
        step += 1


def _texts(keys: Any) -> pa.Array:
    """As UTF-8; what is none becomes U+FFFD, as in Java."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        said = [key.decode("utf-8", "replace") for key in keys.to_pylist()]
        return pa.array(said, pa.string())
