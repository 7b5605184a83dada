"""Arrow columns of bytes scattered over one buffer, gathered without an object per element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gateway.pipelines.direct.walk import Positions


def gather_bytes(data: bytes, starts: Positions, lengths: Positions) -> pa.Array:
    """Make a binary column of the bytes of `data` at `starts`. Negative lengths become null.

    The positions must rise, and elements must not overlap. The elements and the gaps between them
    form one binary array, of which every other element is taken.
    """
    count = len(starts)
    nulls = lengths < 0
    if nulls.all():
        return pa.nulls(count, pa.binary())
    edges = np.empty(2 * count, np.int32)
    edges[0::2] = starts
    edges[1::2] = starts + np.maximum(lengths, 0)
    elements = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(edges), pa.py_buffer(data)]
    )
    wanted = np.arange(0, 2 * count, 2, dtype=np.int32)
    return elements.take(pa.array(wanted, mask=nulls if nulls.any() else None))


def validity_buffer(nulls: NDArray[Any]) -> pa.Buffer | None:
    """Return the validity buffer of a column with these nulls, or None if no element is null."""
    return pa.py_buffer(np.packbits(~nulls, bitorder="little")) if nulls.any() else None
