"""The answer to one produced batch, and the objects that give it exactly once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from gateway.errors import partition_code
from gateway.wire.batches import BatchRefused
from ledger.errors import LedgerError, NotOwner


class Produced(NamedTuple):
    """The result of one batch, for the response to its Produce."""

    error: ErrorCode
    base_offset: int = -1
    append_time_ms: int = -1
    message: str | None = None
    # The index of each offending record, with the reason.
    record_errors: Sequence[tuple[int, str]] = ()
    # True for a batch that failed its verification, whose answer has no start of the log.
    unverified: bool = False


_LEASE_OVER = NotOwner("another broker may own the partition by now")

OUTCOME_UNKNOWN = Produced(ErrorCode.not_leader_or_follower)

OnProduced = Callable[[Produced], None]


class ProducedBatch:
    """One batch of a Produce: waiting, then accepted, and answered once.

    Once accepted it is the `OnDurable` of the stream. Once ownership is lost or in doubt, nothing
    is acknowledged, even if it is durable.
    """

    allowed = 0
    """The attributes of the batch that others may not have."""

    __slots__ = (
        "_append_time_ms",
        "_base_offset",
        "_may_acknowledge",
        "_on_produced",
        "batch",
        "recompressed",
        "takes_long",
        "version",
    )

    def __init__(self, batch: memoryview, version: int, on_produced: OnProduced) -> None:
        self.batch = batch
        self.version = version
        # The callback for the answer. `_ignore` once `take` returned it.
        self._on_produced = on_produced
        # True once a first check left the records to a check in parts.
        self.takes_long = False
        # True once `batch` is one that this broker compressed again.
        self.recompressed = False

    def take(self) -> OnProduced:
        """Return the callback. The caller answers the batch from now on."""
        on_produced, self._on_produced = self._on_produced, _ignore
        return on_produced

    def replace(self, batch: bytes, give_back: Callable[[int], None]) -> None:
        """Use the batch with another codec. `give_back` gets its growth with the answer."""
        growth = len(batch) - len(self.batch)
        self.batch, self.recompressed = memoryview(batch), True
        on_produced = self._on_produced
        if on_produced is _ignore:  # answered meanwhile
            give_back(max(0, growth))
        elif growth > 0:

            def answered(produced: Produced) -> None:
                give_back(growth)
                on_produced(produced)

            self._on_produced = answered

    def accept(
        self, base_offset: int, append_time_ms: int, may_acknowledge: Callable[[], bool]
    ) -> ProducedBatch:
        """Return what the stream calls once the batch is durable or has failed."""
        self._base_offset = base_offset
        self._append_time_ms = append_time_ms
        self._may_acknowledge = may_acknowledge
        return self

    def __call__(self, error: LedgerError | None) -> None:
        if error is None and not self._may_acknowledge():
            error = _LEASE_OVER
        if error is None:
            answer = Produced(ErrorCode.none, self._base_offset, self._append_time_ms)
        else:
            answer = Produced(partition_code(error, unknown_outcome=True))
        self._on_produced(answer)

    def refuse(self, refused: BatchRefused) -> None:
        """Answer with the reason why the batch is invalid."""
        self.take()(
            Produced(refused.code, message=str(refused), record_errors=refused.record_errors)
        )

    def give_up(self) -> None:
        """Answer that the outcome is unknown, unless there was an answer. No other follows."""
        self.take()(OUTCOME_UNKNOWN)


class OwnBatch:
    """One batch of the broker itself: waiting, then accepted, and answered once.

    Once accepted it is the `OnDurable` of the stream, as a `ProducedBatch` is.
    """

    __slots__ = ("_may_acknowledge", "_on_done", "batch", "records")

    takes_long = False

    def __init__(
        self, batch: bytes, records: int, on_done: Callable[[LedgerError | None], None]
    ) -> None:
        self.batch = memoryview(batch)
        self.records = records
        # The callback for the answer. None once the batch was answered.
        self._on_done: Callable[[LedgerError | None], None] | None = on_done

    def accept(self, may_acknowledge: Callable[[], bool]) -> OwnBatch:
        """Return what the stream calls once the batch is durable or has failed."""
        self._may_acknowledge = may_acknowledge
        return self

    def __call__(self, error: LedgerError | None) -> None:
        if error is None and not self._may_acknowledge():
            error = _LEASE_OVER
        self._answer(error)

    def refuse(self, error: LedgerError) -> None:
        """Answer that the batch was not appended, or that its outcome is unknown."""
        self._answer(error)

    def _answer(self, error: LedgerError | None) -> None:
        on_done, self._on_done = self._on_done, None
        if on_done is not None:
            on_done(error)


def _ignore(_: Produced) -> None:
    """Answer nothing."""
