"""The cleaner process: reads requests from its standard input, and answers on its standard output.

Its argument is the descriptor of the shared memory that holds requests and replies (see `Slots`).
It decompresses batches, keeps the map of keys, and rewrites batches. It touches no ledger and no
file. It runs at low priority, and ends with its input, so also if the gateway is killed.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO

from gateway.cleaning import frames
from gateway.cleaning.frames import HEAD, Kind
from gateway.cleaning.slots import NO_SLOT, Slots
from gateway.core.cleaning_results import PoisonedBatch
from ledger.ids import Buffer

if TYPE_CHECKING:
    from gateway.core.cleaning import Cleaning

_NICE = 10


def answer(cleaning: Cleaning, kind: int, payload: Buffer) -> bytes:
    """Carry out one request, and return the payload of its reply. Raises PoisonedBatch."""
    match kind:
        case Kind.BEGIN_MAP:
            cleaning.begin_map(*frames.MAP.unpack(payload))
        case Kind.BEGIN_SEGMENT:
            cleaning.begin_segment(*frames.decode_segment(payload))
        case Kind.MAP_BATCHES:
            return frames.OFFSET.pack(cleaning.map_batches(payload))
        case Kind.BEGIN_MARKS:
            cleaning.begin_marks(*frames.RANGE.unpack(payload))
        case Kind.MARK_BATCHES:
            cleaning.mark_batches(payload)
        case Kind.DROP_MARKS:
            cleaning.drop_marks()
        case Kind.BEGIN_FILTER:
            cleaning.begin_filter(*frames.FILTER.unpack(payload))
        case Kind.FILTER_BATCHES:
            return frames.encode_batches(cleaning.filter_batches(payload))
        case Kind.END_SEGMENT:
            return frames.encode_end(cleaning.end_segment())
        case _:
            raise AssertionError(f"request {kind} is unknown")
    return b""


def _cleaning() -> Cleaning:
    """Raises ImportError if a package is not installed."""
    from gateway.core.cleaning import Cleaning  # numpy and the codecs

    return Cleaning(hash(b"places of keys"))  # Python draws its hashes anew for each process


def serve(requests: BinaryIO, replies: BinaryIO, slots: Slots) -> None:
    """Answer requests until they end. If a package is missing, the first answer says so."""
    try:
        cleaning = _cleaning()
    except ImportError as error:
        requests.read(HEAD.size)  # otherwise a request would find a closed pipe, and no reply
        _reply(replies, Kind.UNABLE, f"cannot work: {error}".encode(), NO_SLOT, slots)
        return
    while len(head := requests.read(HEAD.size)) == HEAD.size:
        size, kind, slot = HEAD.unpack(head)
        payload = requests.read(size) if slot == NO_SLOT else slots.get(slot, size)
        if len(payload) < size:
            return
        reply = Kind.DONE
        try:
            answered = answer(cleaning, kind, payload)
        except PoisonedBatch as poisoned:
            reply = Kind.POISONED
            answered = frames.OFFSET.pack(poisoned.offset) + poisoned.reason.encode()
        _reply(replies, reply, answered, slot, slots)


def _reply(replies: BinaryIO, kind: Kind, payload: bytes, slot: int, slots: Slots) -> None:
    """Send a reply, in the slot of its request if it fits there."""
    if slot != NO_SLOT:
        slot = slots.put(slot, [payload])
    replies.write(HEAD.pack(len(payload), kind, slot))
    if slot == NO_SLOT:
        replies.write(payload)
    replies.flush()


def _give_way() -> None:
    """Let clients of the gateway come first, also when a request wakes this process."""
    os.nice(_NICE)
    if sys.platform == "linux":
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def main() -> None:
    _give_way()
    slots = Slots(int(sys.argv[1]))
    try:
        serve(sys.stdin.buffer, sys.stdout.buffer, slots)
    except BrokenPipeError:
        os._exit(0)  # the gateway has ended


if __name__ == "__main__":
    main()
