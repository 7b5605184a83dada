"""Gathers the records of batches into blocks, whose columns are computed at once. Pure.

A block has the records of many small batches, or a portion of a large one: a batch of a megabyte
can have millions of records. So the memory of a block is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from gateway.core.cleaning_results import PoisonedBatch, Poisoning
from gateway.core.columns import Flags, Numbers
from gateway.core.record_columns import (
    Columns,
    Portion,
    columns_by_record,
    columns_of,
    portions_of,
)
from gateway.wire.batches import BatchHeader
from ledger.ids import Buffer

RECORDS_MAX = 16_384  # of a block; more gain little
_BYTES = 4 * 1024 * 1024  # a block with more bytes takes no further batch


class LiveBatch:
    """A batch whose records are not aborted, and what stays of it."""

    __slots__ = ("count", "data", "greatest", "header", "kept", "kept_up_to", "read", "tombstones")

    def __init__(self, header: BatchHeader, data: Buffer) -> None:
        self.header, self.data = header, data
        self.read = 0  # the records that were decided about
        self.count = 0  # those of them that stay
        self.greatest = -(2**63)  # the greatest timestamp of those that stay
        self.tombstones = False  # True if one of them is a tombstone
        # The bytes of those that stay, behind the first `kept_up_to` bytes of `data`, which all
        # stay.
        self.kept: list[Buffer] = []
        self.kept_up_to = 0

    def records(self) -> bytes:
        """Return the bytes of the records that stay."""
        return b"".join((memoryview(self.data)[: self.kept_up_to], *self.kept))


class Block(NamedTuple):
    """Records of one or more batches, in order."""

    batches: list[LiveBatch]
    portions: list[Portion]
    columns: Columns
    owners: Numbers  # the place in `batches` of the batch of each record
    offsets: Numbers

    @property
    def first_offset(self) -> int:
        """Return the base offset of the first batch."""
        return self.batches[0].header.base_offset


def blocks(live: Iterable[LiveBatch]) -> Iterator[Block]:
    """Yield the records of batches. Raises PoisonedBatch behind the records before the damage.

    So does an error of `live`.
    """
    batches: list[LiveBatch] = []
    portions: list[Portion] = []
    count = size = 0
    error = None
    try:
        for batch, portion in _portions(live):
            full = count + portion.records > RECORDS_MAX or size > _BYTES
            if portions and full:
                yield from _block(batches, portions)
                batches, portions, count, size = [], [], 0, 0
            batches.append(batch)
            portions.append(portion)
            count += portion.records
            size += portion.end - portion.start
    except PoisonedBatch as poisoned:
        error = poisoned
    if portions:
        yield from _block(batches, portions)
    if error is not None:
        raise error


def _portions(live: Iterable[LiveBatch]) -> Iterator[tuple[LiveBatch, Portion]]:
    for batch in live:
        portions = portions_of(batch.data, batch.header.records, RECORDS_MAX)
        while True:
            with Poisoning(batch.header.base_offset):
                portion = next(portions, None)
            if portion is None:
                break
            yield batch, portion


def _block(batches: list[LiveBatch], portions: list[Portion]) -> Iterator[Block]:
    with Poisoning(batches[0].header.base_offset):
        columns, damage = columns_of(portions), None
        if columns is None:
            columns, damage = columns_by_record(portions)
        bases = np.array([batch.header.base_offset for batch in batches], np.int64)
        counts = [max(one.records, 0) for one in portions]
        owners = np.repeat(np.arange(len(batches)), counts)[: len(columns.starts)]
        block = Block(batches, portions, columns, owners, bases[owners] + columns.offsets)
    if len(columns.starts):
        yield block
    if damage is not None:
        at, error = damage
        raise PoisonedBatch(batches[at].header.base_offset, str(error))


def keep(block: Block, kept: Flags) -> None:
    """Note in each batch of a block which of its records stay."""
    columns = block.columns
    firsts = np.flatnonzero(np.diff(block.owners, prepend=-1))
    owners: list[int] = block.owners[firsts].tolist()
    counts = np.add.reduceat(kept, firsts, dtype=np.int64).tolist()
    tombstones = np.logical_or.reduceat(kept & columns.tombstones, firsts).tolist()
    bases = np.array([batch.header.base_timestamp for batch in block.batches], np.int64)
    times = np.where(kept, bases[block.owners] + columns.timestamps, -(2**63))
    greatest = np.maximum.reduceat(times, firsts).tolist()
    runs = _Runs(block, kept)
    sizes = np.diff(np.append(firsts, len(kept))).tolist()
    for at, owner in enumerate(owners):
        batch, portion = block.batches[owner], block.portions[owner]
        count = counts[at]
        if count == sizes[at] and batch.count == batch.read and not batch.kept:
            batch.kept_up_to = portion.end
        elif count:
            batch.kept += runs.of(owner)
        batch.read += sizes[at]
        batch.count += count
        batch.tombstones |= tombstones[at]
        batch.greatest = max(batch.greatest, greatest[at])


class _Runs:
    """The bytes of records that stay and follow each other."""

    def __init__(self, block: Block, kept: Flags) -> None:
        self._block = block
        places = np.flatnonzero(kept)
        owners = block.owners[places]
        breaks = np.ones(len(places) + 1, np.bool_)
        breaks[1:-1] = (np.diff(places) != 1) | (np.diff(owners) != 0)
        sizes = [one.end - one.start for one in block.portions]
        shifts = np.array([one.start for one in block.portions], np.int64)
        shifts -= np.cumsum([0, *sizes[:-1]])
        first = breaks[:-1]
        moved = shifts[owners[first]]
        self._starts: list[int] = (block.columns.starts[places[first]] + moved).tolist()
        self._ends: list[int] = (block.columns.ends[places[breaks[1:]]] + moved).tolist()
        self._bounds: list[int] = np.searchsorted(
            owners[first], np.arange(len(block.portions) + 1)
        ).tolist()

    def of(self, owner: int) -> list[Buffer]:
        data = self._block.portions[owner].data
        view = memoryview(data)
        run = slice(self._bounds[owner], self._bounds[owner + 1])
        return [view[a:b] for a, b in zip(self._starts[run], self._ends[run], strict=True)]
