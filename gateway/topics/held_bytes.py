"""The bytes of a partition from the memory of its leader, without a request.

They are those that DescribeLogDirs returns: the payload of all ledgers, times the copies. A ledger
whose size its leader does not know makes the sum unknown.
"""

from __future__ import annotations

from typing import NamedTuple

from ledger.streams.stream import Stream


class Written(NamedTuple):
    """How far the newest segment of a stream is written: its number, and its bytes."""

    number: int
    size_bytes: int


NOTHING_WRITTEN = Written(0, 0)


def held_bytes(stream: Stream, copies: int) -> int | None:
    """Return the bytes of all copies of all listed segments, None if a size is unknown."""
    held = 0
    for segment in stream.segments:
        if not segment.completed:
            held += stream.services.client.written_bytes(segment.ledger)
            continue
        size = stream.segment_bytes(segment)
        if not size and segment.record_count:
            return None
        held += size
    return held * copies


def newest_written(stream: Stream) -> Written:
    """Return how far the newest segment is written."""
    if not stream.segments:
        return NOTHING_WRITTEN
    newest = stream.segments[-1]
    if newest.completed:
        return Written(newest.number, stream.segment_bytes(newest))
    return Written(newest.number, stream.services.client.written_bytes(newest.ledger))


def written_since(stream: Stream, before: Written) -> int | None:
    """Return the bytes of one copy that were written since `before`, None if it is unknown."""
    now = newest_written(stream)
    if now.number == before.number:
        grown = now.size_bytes - before.size_bytes
        return grown if grown >= 0 else None
    grown = now.size_bytes
    for segment in reversed(stream.segments[:-1]):
        if segment.number < before.number:
            break
        grown += stream.segment_bytes(segment)
        if segment.number == before.number:
            grown -= before.size_bytes
    return grown if grown >= 0 else None
