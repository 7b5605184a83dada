"""The headers of records as an Arrow column, decoded only if includeHeaders is set.

Step k finds the k-th header of every record that has at least k headers, so numpy does all the
work. A record without headers gets null, as in Spark's Kafka source. Source: Kafka, DefaultRecord.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from gateway.pipelines.direct.gather import gather_bytes, validity_buffer
from gateway.pipelines.direct.walk import Bytes, Positions, varints

HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])


class _HeaderBounds(NamedTuple):
    """The positions of all headers in the order of their records, one element per header."""

    keys: Positions
    key_lengths: Positions
    values: Positions
    value_lengths: Positions


def header_counts(array: Bytes, at: Positions, ends: Positions) -> tuple[Positions, Positions]:
    """Decode the header counts at `at`. Returns the counts and the positions of the first headers.

    Raises ValueError or IndexError for damaged data, such as a count too large for the record.
    """
    counts, at = varints(array, at)
    # A header has two lengths, so at least two bytes.
    if (counts < 0).any() or (counts > (ends - at) >> 1).any():
        raise ValueError("headers that do not fit into their record")
    return counts, at


def headers_column(
    data: bytes, array: Bytes, counts: Positions, at: Positions, ends: Positions
) -> pa.Array:
    """Build the headers column of records that have `counts` headers at `at`.

    Raises ValueError or IndexError for damaged data.
    """
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
    indexes: Positions,
    found: _HeaderBounds,
) -> None:
    """Fill `found` with the bounds of all headers. Each record must end with its last header."""
    step = 0
    while True:
        over = counts <= step
        if not np.array_equal(at[over], ends[over]):
            raise ValueError("a record has bytes after its last header")
        more = ~over
        if not more.any():
            return
        at, ends, counts, indexes = at[more], ends[more], counts[more], indexes[more]
        key_lengths, keys = varints(array, at)
        value_lengths, values = varints(array, keys + key_lengths)
        at = values + np.maximum(value_lengths, 0)
        if (key_lengths < 0).any() or (at > ends).any():
            raise ValueError("a header is longer than its record")
        for column, values_of in zip(
            found, (keys, key_lengths, values, value_lengths), strict=True
        ):
            column[indexes + step] = values_of
        step += 1


def _texts(keys: Any) -> pa.Array:
    """Return the keys as strings with the same bytes, even if those are not UTF-8.

    Spark keeps such bytes in its strings, and in the files that it writes: `CAST(key AS BINARY)`
    returns them. Only Python and Java replace them with U+FFFD.
    """
    return keys.view(pa.string())
