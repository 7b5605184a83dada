"""The frames between a gateway and its cleaner process, over the pipes of the child.

    frame = length of the payload u32 · kind u8 · slot u8 [· payload, if the slot is NO_SLOT]

Otherwise the payload lies in that slot of the [memory](slots.py) that both ends share.
Up to three requests may be under way, and replies come in their order. Numbers are big-endian.
Batches lie one behind another, because each has its length. Both ends are of one release, so frames
have no version.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import chain
from struct import Struct, pack

from gateway.core.cleaning_results import CleanedBatch, SegmentEnd
from gateway.core.partition_transactions import AbortedTransaction
from ledger.ids import Buffer

HEAD = Struct(">IBB")
FRAME_BYTES_MAX = 64 * 1024 * 1024
"""Above four of the largest batches. A longer frame is damaged."""

MAP = Struct(">qqq")  # bytes of the map, first offset, the one behind the last
RANGE = Struct(">qq")  # of a segment: start, end
FILTER = Struct(">qq")  # now in ms, delete.retention.ms
OFFSET = Struct(">q")
_ABORTED = Struct(">qqqq")
_BATCH = Struct(">iqi")  # count, greatest timestamp, length
_END = Struct(">?qqI")  # changed, records read and kept, number of aborted transactions


class Kind(IntEnum):
    """The kinds of frames."""

    BEGIN_MAP = 1
    BEGIN_SEGMENT = 2
    MAP_BATCHES = 3  # the reply is an offset
    BEGIN_MARKS = 4
    MARK_BATCHES = 5
    DROP_MARKS = 6
    BEGIN_FILTER = 7
    FILTER_BATCHES = 8  # the reply has cleaned batches
    END_SEGMENT = 9
    DONE = 100
    POISONED = 101  # the offset of a batch that cannot be read, and the reason
    UNABLE = 102  # why the child cannot answer any request; it ends


def encode_segment(start: int, end: int, aborted: Sequence[AbortedTransaction]) -> bytes:
    numbers = chain.from_iterable(aborted)  # one call, because there may be 64 Ki of them
    return RANGE.pack(start, end) + pack(f">{4 * len(aborted)}q", *numbers)


def decode_segment(payload: Buffer) -> tuple[int, int, list[AbortedTransaction]]:
    start, end = RANGE.unpack_from(payload)
    aborted = _ABORTED.iter_unpack(payload[RANGE.size :])
    return start, end, [AbortedTransaction(*one) for one in aborted]


def encode_batches(found: Sequence[CleanedBatch]) -> bytes:
    parts: list[bytes] = []
    for one in found:
        parts += (_BATCH.pack(one.offsets, one.timestamp_max, len(one.data)), one.data)
    return b"".join(parts)


def decode_batches(payload: Buffer) -> list[CleanedBatch]:
    return list(iter_batches(payload))


def iter_batches(payload: Buffer) -> Iterator[CleanedBatch]:
    """Yield the batches of a reply: all at once would hold up the event loop."""
    view, at = memoryview(payload), 0
    while at < len(payload):
        count, timestamp_max, size = _BATCH.unpack_from(payload, at)
        at += _BATCH.size
        yield CleanedBatch(count, timestamp_max, bytes(view[at : at + size]))
        at += size


def encode_end(end: SegmentEnd) -> bytes:
    head = _END.pack(end.changed, end.records_read, end.records_kept, len(end.aborted))
    aborted = b"".join(_ABORTED.pack(*one) for one in end.aborted)
    return head + aborted + encode_batches(end.batches)


def decode_end(payload: Buffer) -> SegmentEnd:
    changed, read, kept, count = _END.unpack_from(payload)
    behind = _END.size + count * _ABORTED.size
    listed = _ABORTED.iter_unpack(payload[_END.size : behind])
    aborted = [AbortedTransaction(*one) for one in listed]
    return SegmentEnd(decode_batches(payload[behind:]), aborted, changed, read, kept)
