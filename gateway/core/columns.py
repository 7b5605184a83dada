"""Columns of numbers about many records, of which the log cleaner reads and changes all at once.

Only the cleaner process loads numpy: a gateway does without its memory and the time of its import.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Words = NDArray[np.uint64]
Flags = NDArray[np.bool_]
Bytes = NDArray[np.uint8]
