"""Warnings about one partition, which name its topic and partition instead of its stream."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.core.partition_transactions import ProducerTransactions
from gateway.log import Throttle, logger
from ledger.errors import LedgerError, NotEnoughBookies
from ledger.events import EventKind, note_event
from ledger.streams.config import StreamConfig
from ledger.streams.services import StreamServices

CHECK_S = 2.0
"""Time between two checks for waiting batches: a batch is reported after twice this time."""

_HANGING_MAX = 10  # transactions of one partition that are reported one by one
_BOOKIES = "bookies"
_throttle = Throttle()


class PartitionWarnings:
    """The log of one partition: at most one warning of each kind per minute.

    A lack of bookies concerns all partitions, so it is logged once per minute for all of them.
    """

    __slots__ = ("_index", "_services", "_stream", "_topic")

    def __init__(self, stream: str, services: StreamServices, topic: str, index: int) -> None:
        self._stream = stream
        self._services = services
        self._topic = topic
        self._index = index

    def warn(self, event: str, error: LedgerError, *, intended: bool = False) -> None:
        """Log an error, for information only if it follows from what a client asked for."""
        lack = isinstance(error, NotEnoughBookies)
        kind, subject = (_BOOKIES, "") if lack else (event, self._stream)
        if _throttle.allows(kind, subject, self._services.clock.monotonic_s()):
            log = logger()
            (log.info if intended else log.warning)(
                event,
                topic=self._topic,
                partition=self._index,
                kind=type(error).__name__,
                reason=self.in_kafkas_words(str(error)),
            )

    def warn_of_loss(self, offset: int, error: LedgerError) -> None:
        """Report that readers stop at lost records. The caller limits how often."""
        note_event(
            EventKind.LOSS, topic=self._topic, partition=self._index, offset=offset, accepted="no"
        )
        logger().warning(
            "records are lost; readers stop there until the loss is accepted",
            topic=self._topic,
            partition=self._index,
            offset=offset,
            reason=self.in_kafkas_words(str(error)),
        )

    def warn_of_hanging(self, hanging: Sequence[tuple[int, ProducerTransactions]]) -> None:
        """Report open transactions whose markers may lie in a loss that was accepted."""
        shown = hanging[:_HANGING_MAX]
        for number, (producer_id, known) in enumerate(shown, 1):
            logger().warning(
                "the end of an open transaction may be lost; if it stays open, abort it",
                topic=self._topic,
                partition=self._index,
                producer_id=producer_id,
                producer_epoch=known.epoch,
                start_offset=known.first_offset,
                **({"others": len(hanging) - number} if number == _HANGING_MAX else {}),
            )

    def warn_of_wait(self, ack_quorum: int) -> None:
        """Report that a batch waits for the bookies, unless their lack was just reported."""
        if _throttle.allows(_BOOKIES, "", self._services.clock.monotonic_s()):
            bookies = self._services.client.health.summary()
            logger().warning(
                "a produce waits for bookies; producers retry",
                topic=self._topic,
                partition=self._index,
                waited_s=CHECK_S,
                reason=f"{bookies}, {ack_quorum} must acknowledge",
            )

    def in_kafkas_words(self, text: str) -> str:
        """Replace the stream's name. A metadata path that contains it stays as it is."""
        stream = rf"(?<![/\w-]){re.escape(self._stream)}(?![/\w-])"
        return re.sub(stream, f"{self._topic}-{self._index}", text)


class WatchedPartition(Protocol):
    """The state of a partition that its `ProduceWatch` reads."""

    @property
    def closed(self) -> bool: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def accepted_end(self) -> int:
        """Return the offset after the last batch that was accepted, durable or not."""
        ...

    @property
    def first_waiting(self) -> object | None:
        """Return the first batch that waits for the stream to open or for its check, or None."""
        ...

    @property
    def checking(self) -> bool:
        """Return whether the first waiting batch waits for its check, not for bookies."""
        ...


class ProduceWatch:
    """A check every `CHECK_S` seconds, while batches are not durable, of whether they progress.

    There is one timer per partition, not one per batch, and none while nothing is written.
    """

    __slots__ = ("_log", "_partition", "_stream_config", "armed")

    def __init__(
        self,
        partition: WatchedPartition,
        log: PartitionWarnings,
        stream_config: Callable[[], StreamConfig],
    ) -> None:
        self._partition = partition
        self._log = log
        self._stream_config = stream_config
        # True from the first batch until a check finds all batches durable.
        self.armed = False

    def arm(self) -> None:
        """Begin to watch. Call it after a batch was accepted while `armed` is False."""
        partition = self._partition
        first, end = partition.first_waiting, partition.accepted_end
        behind = first is not None or partition.high_watermark < end
        self.armed = behind and not partition.closed
        if self.armed:
            asyncio.get_running_loop().call_later(CHECK_S, self._check, first, end)

    def _check(self, first: object | None, end: int) -> None:
        partition = self._partition
        # A stream that failed drops its last batches, so the accepted end may have fallen.
        pending = partition.high_watermark < min(end, partition.accepted_end)
        waiting = first is not None and partition.first_waiting is first and not partition.checking
        if (pending or waiting) and not partition.closed:
            self._log.warn_of_wait(self._stream_config().ack_quorum)
        self.arm()
