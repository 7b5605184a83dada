"""One pass that counts records in Arrow batches, per partition and bucket of 32,768 positions.

The input is numeric (no keys, no values), and the output has about one row per batch, so memory
does not grow with the topic. The sums of two buckets show whether both contain the same records at
the same positions. They also show whether a bucket contains each offset once, without storing a set
of offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gateway.pipelines.audits.columns import BUCKET, BUCKETS, PARTIALS

if TYPE_CHECKING:
    import pyarrow as pa

Bases = Mapping[tuple[str, int], int]
Batches = Iterable["pa.RecordBatch"]
_LOW = (1 << 32) - 1


def _mixed(numbers: Any) -> Any:
    """Map 64-bit numbers one-to-one to pseudo-random unsigned numbers. Source: splitmix64."""
    mixed = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _halves(numbers: Any) -> tuple[Any, Any]:
    """Split signed numbers so that number == high * 2^32 + low.

    The sum of a half cannot overflow.
    """
    signed = numbers.astype(np.int64)
    return signed >> 32, signed & _LOW


_PRINT_HIGH, _PRINT_LOW = _halves(_mixed(np.arange(BUCKET)))
_UP_TO_HIGH = np.concatenate(([0], np.cumsum(_PRINT_HIGH)))
_UP_TO_LOW = np.concatenate(([0], np.cumsum(_PRINT_LOW)))


class _LastSeen:
    """The last position and timestamp of each partition, for checking the order across batches."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], tuple[int, int]] = {}

    def steps(self, keys: list[tuple[str, int]], starts: Any, position: Any, ms: Any) -> Any:
        """Flag positions not above the previous one, and timestamps below the previous one."""
        disorder = np.empty(len(position), np.int64)
        back = np.empty(len(position), np.int64)
        disorder[1:] = position[1:] <= position[:-1]
        back[1:] = ms[1:] < ms[:-1]
        ends = [*starts[1:].tolist(), len(position)]
        for key, start, end in zip(keys, starts.tolist(), ends, strict=True):
            known = self._last.get(key)
            disorder[start] = known is not None and int(position[start]) <= known[0]
            back[start] = known is not None and int(ms[start]) < known[1]
            self._last[key] = (int(position[end - 1]), int(ms[end - 1]))
        return disorder, back


def count_partials(bases: Bases, ordered: bool) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Make a function for mapInArrow: NARROW in, PARTIALS out, one row per run of a bucket.

    A position is the offset minus the base of its partition (default 0). `ordered` means that the
    records arrive in log order, so backward steps are counted.
    """

    def count(batches: Batches) -> Iterator[pa.RecordBatch]:
        before = _LastSeen() if ordered else None
        for batch in batches:
            if batch.num_rows:
                yield _counted(batch, bases, before)

    return count


def _starts(changes: Any) -> Any:
    """Return the indexes where runs begin. `changes` has a flag for each record but the first."""
    return np.concatenate(([0], np.flatnonzero(changes) + 1))


def _counted(batch: pa.RecordBatch, bases: Bases, before: _LastSeen | None) -> pa.RecordBatch:
    import pyarrow as pa

    names = batch.column(0).dictionary_encode()
    topics = names.indices.to_numpy(zero_copy_only=False)
    partition, offset, ms, content = (
        batch.column(at).to_numpy(zero_copy_only=False) for at in range(1, 5)
    )
    moves = (topics[1:] != topics[:-1]) | (partition[1:] != partition[:-1])
    begins = _starts(moves)
    dictionary = names.dictionary.to_pylist()
    keys = [(dictionary[topics[at]], int(partition[at])) for at in begins.tolist()]
    lengths = np.diff(np.append(begins, len(offset)))
    position = offset - np.repeat([bases.get(key, 0) for key in keys], lengths)
    bucket = position // BUCKET
    starts = _starts(moves | (bucket[1:] != bucket[:-1]))
    disorder, back = (0, 0) if before is None else before.steps(keys, begins, position, ms)
    inside = position % BUCKET
    sums = [
        np.ones(len(offset), np.int64),
        *_halves(content),
        *_halves(_mixed(content.astype(np.uint64) ^ _mixed(position))),
        _PRINT_HIGH[inside],
        _PRINT_LOW[inside],
        np.broadcast_to(disorder, offset.shape),
        np.broadcast_to(back, offset.shape),
    ]
    columns = [
        names.dictionary.take(pa.array(topics[starts])),
        pa.array(partition[starts], pa.int32()),
        pa.array(bucket[starts]),
        pa.array(np.minimum.reduceat(position, starts)),
        pa.array(np.maximum.reduceat(position, starts)),
        pa.array(np.minimum.reduceat(ms, starts)),
        pa.array(np.maximum.reduceat(ms, starts)),
        *(pa.array(np.add.reduceat(each, starts)) for each in sums),
    ]
    return pa.RecordBatch.from_arrays(columns, names=_names(PARTIALS))


def add_density(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Merge PARTIALS into BUCKETS, one row per bucket. This is a function for mapInArrow."""
    import pyarrow as pa

    for batch in batches:
        number = {
            name: batch.column(name).to_numpy(zero_copy_only=False)
            for name in ("bucket", "first", "last", "records", "print_high", "print_low")
        }
        first = number["first"] - number["bucket"] * BUCKET
        end = number["last"] - number["bucket"] * BUCKET + 1
        dense = (
            (number["records"] == end - first)
            & (number["print_high"] == _UP_TO_HIGH[end] - _UP_TO_HIGH[first])
            & (number["print_low"] == _UP_TO_LOW[end] - _UP_TO_LOW[first])
        )
        columns = [*batch.columns, pa.array(dense)]
        yield pa.RecordBatch.from_arrays(columns, names=_names(BUCKETS))


def _names(schema: str) -> list[str]:
    return [column.split()[0] for column in schema.split(",")]
