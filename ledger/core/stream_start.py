"""The node `start` of a stream: the first readable sequence id, and the base of its epochs. Pure.

    <start>                                    decimal; the epoch base is 0
    1 <crc32c> {"epoch_base":1,"start":0}      sealed; for any other epoch base

The epoch of an ownership is the number of its first segment, less the base. A release without bases
would compute other epochs. It refuses the second form, because that is not a number.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ledger.errors import CorruptFormat
from ledger.sealed import seal, unseal

FIRST_EPOCH_0: Final = 1
"""The base with which the first epoch of a stream is 0: its first segment has number 1."""


class StreamStart(NamedTuple):
    """The content of the node. The base never changes; the sequence id never decreases."""

    sequence_id: int = 0
    epoch_base: int = 0

    def encode(self) -> bytes:
        if not self.epoch_base:
            return b"%d" % self.sequence_id
        return seal({"start": self.sequence_id, "epoch_base": self.epoch_base})


def decode_start(data: bytes, where: str) -> StreamStart:
    """Decode both forms. Raises CorruptFormat, naming `where`."""
    if b" " not in data:
        try:
            return StreamStart(int(data))
        except ValueError as error:
            raise CorruptFormat(f"{where}: not a number: {data[:40]!r}") from error
    fields = unseal(data, where)
    start, base = fields.get("start"), fields.get("epoch_base")
    # An unknown field would be lost when the start moves.
    known = len(fields) == len(StreamStart._fields)
    if not (known and type(start) is int and type(base) is int and start >= 0 < base):
        raise CorruptFormat(f"{where}: not the start of a stream: {data[:80]!r}")
    return StreamStart(start, base)
