"""Ids and positions of the ledger tier: values that compare, sort and print."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, NewType

LedgerId = NewType("LedgerId", int)
EntryId = NewType("EntryId", int)
BookieId = NewType("BookieId", str)

NO_ENTRY = EntryId(-1)

STREAM_KEY: Final = "stream"
"""Key in the custom metadata of a ledger. The value is the name of its stream."""

Buffer = bytes | bytearray | memoryview
"""Bytes to write or send without a copy. They never change after they were passed on."""


def pinned_bytes(parts: Iterable[Buffer]) -> int:
    """Return the bytes that these buffers keep in memory: a view keeps all that it is a part of."""
    wholes = [part.obj if isinstance(part, memoryview) else part for part in parts]
    return sum(memoryview(whole).nbytes for whole in {id(one): one for one in wholes}.values())


class Dlsn(NamedTuple):
    """Position of one record in a stream; tuple order is stream order.

    Source: DistributedLog, "DLSN" (seed 000).
    """

    segment: int  # log segment sequence number, from 1
    entry: EntryId  # entry within the segment's ledger, from 0
    slot: int  # record within the entry, from 0


INVALID_DLSN = Dlsn(0, EntryId(-1), -1)
INITIAL_DLSN = Dlsn(1, EntryId(0), 0)
