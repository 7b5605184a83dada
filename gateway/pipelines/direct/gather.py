"""Arrow columns of bytes that lie apart in one buffer, gathered without an object for each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gateway.pipelines.direct.walk import Positions


def gather_bytes(data: bytes, starts: Positions, lengths: Positions) -> pa.Array:
    """A binary column of the bytes of `data` at `starts`; null where the length is below 0.

    Positions rise, and no two stretches overlap. What lies between them counts as elements of a
    binary array too, of which every other one is taken.
    """
    count = len(starts)
    nulls = lengths < 0
    if nulls.all():
        return pa.nulls(count, pa.binary())
    edges = np.empty(2 * count, np.int32)
    edges[0::2] = starts
    edges[1::2] = starts + np.maximum(lengths, 0)
    pieces = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(edges), pa.py_buffer(data)]
    )
    wanted = np.arange(0, 2 * count, 2, dtype=np.int32)
    return pieces.take(pa.array(wanted, mask=nulls if nulls.any() else None))


def validity_buffer(nulls: NDArray[Any]) -> pa.Buffer | None:
    """The validity buffer of a column that is null there; None when it is null nowhere."""
    return pa.py_buffer(np.packbits(~nulls, bitorder="little")) if nulls.any() else None
