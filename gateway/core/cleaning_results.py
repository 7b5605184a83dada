"""What `Cleaning` returns, without the codecs that it loads: a gateway has no use for them."""

from __future__ import annotations

from typing import NamedTuple

from gateway.core.partition_transactions import AbortedTransaction

COUNT_MAX = 2**31 - 1
"""The offsets that one stored record can cover: its count has 32 bits, with a sign."""

NOT_FULL = -1


class PoisonedBatch(Exception):
    """A batch that cannot be read. No later attempt can succeed, so the log is not cleaned."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"the batch at offset {offset} cannot be cleaned: {reason}")
        self.offset, self.reason = offset, reason


def unexpected(offset: int, error: Exception) -> PoisonedBatch:
    """Return the error of a batch for which nothing was planned."""
    return PoisonedBatch(offset, f"{type(error).__name__}: {error}")


_NOT_OF_THE_BATCH = (PoisonedBatch, MemoryError)  # a later attempt may have the memory


class Poisoning:
    """Names the batch at `offset` in any error: a later attempt would fail too, as in Kafka."""

    __slots__ = ("_offset",)

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, _trace: object) -> None:
        """Raises PoisonedBatch in place of an error that is none."""
        if isinstance(error, Exception) and not isinstance(error, _NOT_OF_THE_BATCH):
            raise unexpected(self._offset, error) from error


class CleanedBatch(NamedTuple):
    """A batch that stays. It covers `offsets`: its own and those that are missing before it."""

    offsets: int
    timestamp_max: int
    data: bytes


class SegmentEnd(NamedTuple):
    """The end of a rewritten segment."""

    batches: list[CleanedBatch]  # cover the offsets that are missing at the end
    aborted: list[AbortedTransaction]  # those of which records were removed
    changed: bool  # False if every batch stayed as it was
    records_read: int
    records_kept: int
