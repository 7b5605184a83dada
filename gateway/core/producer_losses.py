"""Judges the next batches of producers whose earlier ones may lie in a lost part of the log.

A retry of a batch that lies there would be in the log twice. So the producer is refused with
UNKNOWN_PRODUCER_ID, once for each of its epochs. It then begins again at sequence 0 of a higher
epoch, or with a new id, and what it sends from then on is no retry.

    in doubt ─▶ refused in an epoch ─▶ begins again above that epoch: accepted

Pure. Source: Kafka, TransactionManager.canRetry (KIP-360).
"""

from __future__ import annotations

from collections import OrderedDict
from struct import Struct

from kio.schema.errors import ErrorCode

_LOSS = Struct(">qqq")  # end offset, first certain id, time in ms
REFUSED_MAX = 10_000
"""Refused producers that are remembered. One that is forgotten is refused once more."""


class ProducerLosses:
    """The newest loss that the state of the producers does not cover, if there is any."""

    ENCODED_BYTES = _LOSS.size

    def __init__(self) -> None:
        # One past the last offset that was lost; 0 if nothing was lost. Producers whose newest
        # known batch is below it are in doubt.
        self.end_offset = 0
        # Producers with this id or a higher one began after the loss; -1 if that is unknown.
        self.first_certain_id = -1
        # Wall clock when the loss was passed.
        self.passed_ms = 0
        # The highest refused epoch by producer id, the longest unused first.
        self._refused: OrderedDict[int, int] = OrderedDict()

    def pass_loss(self, last: int, now_ms: int) -> None:
        """Put all producers in doubt that wrote nothing above offset `last`."""
        self.end_offset = max(self.end_offset, last + 1)
        self.first_certain_id = -1
        self.passed_ms = now_ms

    def forget(self) -> None:
        """Trust all producers again."""
        self.end_offset = 0
        self._refused.clear()

    @property
    def needs_certain_id(self) -> bool:
        return self.end_offset > 0 and self.first_certain_id < 0

    def judge_unknown(self, producer_id: int, epoch: int, first_sequence: int) -> ErrorCode:
        """Judge a batch of a producer of which no batch is known."""
        if not self.end_offset or 0 <= self.first_certain_id <= producer_id:
            return ErrorCode.none
        return self.judge(producer_id, epoch, first_sequence)

    def judge(self, producer_id: int, epoch: int, first_sequence: int) -> ErrorCode:
        """Judge a batch of a producer in doubt that is no retry of a known batch."""
        refused = self._refused
        before = refused.pop(producer_id, None)
        if before is not None and epoch > before and first_sequence == 0:
            refused[producer_id] = before
            return ErrorCode.none
        refused[producer_id] = epoch if before is None else max(before, epoch)
        if len(refused) > REFUSED_MAX:
            refused.popitem(last=False)
        return ErrorCode.unknown_producer_id

    def encode(self) -> bytes:
        """Encode the loss, without the refused producers."""
        return _LOSS.pack(self.end_offset, self.first_certain_id, self.passed_ms)

    def load(self, data: bytes, at: int) -> None:
        """Replace the loss by an encoded one. Raises struct.error for too few bytes."""
        self.forget()
        self.end_offset, self.first_certain_id, self.passed_ms = _LOSS.unpack_from(data, at)
