"""Names for positions. Value types: compare, sort, print; no behaviour beyond order."""

from __future__ import annotations

from typing import NamedTuple, NewType

LedgerId = NewType("LedgerId", int)
EntryId = NewType("EntryId", int)
BookieId = NewType("BookieId", str)

NO_ENTRY = EntryId(-1)

Buffer = bytes | bytearray | memoryview
"""Bytes that may be written or sent as they are; never changed after they were handed over."""


class Dlsn(NamedTuple):
    """Position of one record in a stream; tuple order is stream order.

    Source: DistributedLog, "DLSN" (seed 000).
    """

    segment: int  # log segment sequence number, from 1
    entry: EntryId  # entry within the segment's ledger, from 0
    slot: int  # record within the entry, from 0


INVALID_DLSN = Dlsn(0, EntryId(-1), -1)
INITIAL_DLSN = Dlsn(1, EntryId(0), 0)
