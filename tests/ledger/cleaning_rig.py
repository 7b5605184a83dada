"""A cleaner of streams whose records are `r<number> <timestamp>`, as `follow_rig` writes them."""

from contextlib import aclosing

from ledger.streams.segment_rewriter import CleanedRecord, SegmentRewriter, read_segment
from tests.ledger.follow_rig import timestamp_of

FILLER = b"filler 0 "
"""The data of a record that covers a gap at the end of a segment, as an empty batch does."""


async def records_of(stream, segment):
    """Return (first sequence id, count, data) of each stored record of the segment."""
    found = []
    async with aclosing(read_segment(stream, segment)) as chunks:
        async for chunk in chunks:
            found += [(first, count, bytes(data)) for first, count, data in chunk]
    return found


def cleaned(segment, records, kept):
    """Return the cleaned records of a segment. `kept` receives the last sequence id of each."""
    found, covered = [], segment.start_sequence_id
    for first, count, data in records:
        end = first + count
        if kept(end - 1):
            found.append(CleanedRecord(end - covered, timestamp_of(data), data))
            covered = end
    if covered < segment.end_sequence_id:
        found.append(CleanedRecord(segment.end_sequence_id - covered, -1, FILLER))
    return found


async def rewrite(stream, segment, kept, aborted=b""):
    """Write the kept records of a segment into a new ledger."""
    records = cleaned(segment, await records_of(stream, segment), kept)
    rewriter = await SegmentRewriter.begin(stream, segment)
    await rewriter.add(records)
    return await rewriter.finish(aborted)


async def clean(stream, number, kept, aborted=b""):
    """Clean one segment of the stream."""
    segment = next(each for each in stream.cleanable_segments() if each.number == number)
    rewritten = await rewrite(stream, segment, kept, aborted)
    await stream.replace(rewritten)
    return rewritten


async def copied(stream, *segments):
    """Write the records of cleaned segments into a new ledger, to merge them."""
    rewriter = await SegmentRewriter.begin(stream, *segments)
    for segment in segments:
        for _, count, data in await records_of(stream, segment):
            await rewriter.add([CleanedRecord(count, timestamp_of(data), data)])
    return await rewriter.finish(b"")


async def merge(stream, first, last):
    """Merge the cleaned segments from number `first` to `last`."""
    every = stream.cleanable_segments()
    segments = [each for each in every if first <= each.first_number and each.number <= last]
    merged = await copied(stream, *segments)
    await stream.replace(merged)
    return merged
