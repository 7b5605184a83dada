"""Lost offsets as format("ledger") reports them: rows, lines in the log, or errors.

    not accepted, or `stop`  ─▶ LossNotAccepted, with or without failOnDataLoss
    accepted, `skip`         ─▶ DataLost; with failOnDataLoss=false a line in the log
    accepted, `marker`       ─▶ a row, the same as Spark's Kafka source receives

The option acceptedLoss=skip passes accepted losses in silence, whatever the topic is set to.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from datetime import UTC, datetime

from gateway.pipelines.shared.errors import DataLost
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition
from gateway.pipelines.shared.storage import ReadStorage
from gateway.topics.configs import LossMode
from gateway.topics.loss_delivery import describe
from gateway.wire.lost_batches import marker_batch
from ledger.core.accepted_losses import LostRange
from ledger.core.gaps import ENTRY_MAX, Evidence, Gap, GapKind
from ledger.core.loss import EntryLost
from ledger.errors import LedgerError
from ledger.ids import Dlsn, EntryId
from ledger.streams.log_reader import LogReader
from ledger.streams.scan import StreamSlice

_FIND_S = 10.0
"""How long to look for the end of a loss. Each lost entry costs an answer of all its bookies."""
_TIME_MS_MAX = 253_402_300_799_999  # the end of the year 9999


class LossNotAccepted(DataLost):
    """An error at records that are lost: an operator must accept the loss before it is passed."""

    def __init__(self, message: str, ranges: tuple[OffsetRange, ...]) -> None:
        super().__init__(message, ranges)
        self.code = "DATALOSS"


def report_loss(lost: Iterable[OffsetRange], why: str, fail: bool) -> None:
    """Raise DataLost if `fail` is set, otherwise report the loss on stderr."""
    ranges = tuple(lost)
    loss = f"{', '.join(map(str, ranges))}: {why}"
    if fail:
        raise DataLost(f"{loss}; set failOnDataLoss=false to continue without them", ranges)
    print(f"format(ledger): skipped {loss}", file=sys.stderr)


def pass_accepted(
    partition: TopicPartition, lost: LostRange, mode: LossMode, fail: bool
) -> bytes | None:
    """Report an accepted loss. Returns the batch of a marker if the topic is set to `marker`.

    Raises LossNotAccepted if it is set to `stop`, and DataLost for `skip` if `fail` is set.
    """
    gone = range_of(partition, lost)
    if mode is LossMode.STOP:
        raise LossNotAccepted(
            f"{gone}: DATALOSS, {describe_accepted(lost)}; the topic is set to "
            "gateway.loss.delivery=stop, skip or marker lets readers pass",
            (gone,),
        )
    if mode is LossMode.MARKER:
        return marker_batch(lost.offsets.last, 0, describe(lost))
    report_loss([gone], f"DATALOSS, {describe_accepted(lost)}", fail)
    return None


def range_of(partition: TopicPartition, lost: LostRange) -> OffsetRange:
    return OffsetRange(*partition, lost.offsets.first, lost.offsets.last + 1)


def describe_accepted(lost: LostRange) -> str:
    """Return the entries, the evidence and the acceptance of a loss in one line."""
    acceptance = lost.evidence.acceptance
    assert acceptance is not None
    last = None if lost.last == ENTRY_MAX else lost.last
    exact = "" if lost.offsets.exact else "at most, "
    return (
        f"{exact}{_entries(lost.evidence, lost.first, last)}, "
        f"accepted by {acceptance.by or 'an operator'} at {_time(acceptance.at_ms)}"
    )


async def find_loss(storage: ReadStorage, piece: StreamSlice, entry: EntryId) -> Gap | None:
    """Return the whole loss that holds a lost entry, or None if it cannot be found now."""
    reader = LogReader(piece.stream, storage.store, storage.client)
    try:
        async with asyncio.timeout(_FIND_S):
            await reader.start(Dlsn(piece.number, entry, 0))
            records, gap = [], None
            while not records and (gap is None or gap.kind is GapKind.TRIM):
                records, gap = await reader.read(1)
            return gap if gap is not None and gap.kind is GapKind.DATALOSS else None
    except (LedgerError, TimeoutError):
        return None
    finally:
        await reader.stop()


def not_accepted(
    partition: TopicPartition, following: int, error: EntryLost, gap: Gap | None
) -> LossNotAccepted:
    """Return the error at a loss from offset `following` on. `gap` is the whole loss, if known."""
    topic, number = partition
    if gap is None or gap.evidence is None:
        gone = OffsetRange(*partition, following, following + 1)
        return LossNotAccepted(
            f"{partition} from offset {following} on: DATALOSS, not accepted: {error}; "
            f"`gateway topic gaps {topic} -p {number}` shows what is lost",
            (gone,),
        )
    first, last, exact = gap.offsets
    gone = OffsetRange(*partition, first, last + 1)
    most = "" if exact else "at most, "
    return LossNotAccepted(
        f"{gone}: DATALOSS, not accepted: {most}"
        f"{_entries(gap.evidence, gap.first.entry, gap.last.entry)}; readers go on after "
        f"`gateway topic accept-loss {topic} -p {number} --offsets {first}-{last}`",
        (gone,),
    )


def _entries(evidence: Evidence, first: int, last: int | None) -> str:
    entries = f"entries {first} to {last}" if last is not None else f"all entries from {first} on"
    copies = ", ".join(
        f"{copy.bookie} {copy.answer.value} ({copy.status.name})" for copy in evidence.copies
    )
    return f"ledger {evidence.ledger}, {entries}, {evidence.verdict.value}: {copies}"


def _time(at_ms: int) -> str:
    seconds = min(max(at_ms, 0), _TIME_MS_MAX) // 1000
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"
