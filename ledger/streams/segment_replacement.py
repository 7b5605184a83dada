"""Puts the cleaned records of a segment in the place of those that it had.

    rewritten, unlisted ─▶ listed in place of the old ledger ─▶ (delay) ─▶ the old ledger is deleted

Several cleaned segments may be replaced by one that has the records of all of them. The same step
then takes all of them from the list.

The list changes in one step, which fails if another process owns the stream. Readers that have the
old list read the old ledger until it is deleted, then they read the list again.
"""

from __future__ import annotations

from collections.abc import Callable

from ledger.core.segment_table import SegmentTable
from ledger.core.segments import Segment, Truncation
from ledger.errors import LedgerError, StreamUnavailable, Truncated
from ledger.streams.retention import Retention
from ledger.streams.segment_rewriter import REWRITE_S_MAX, RewrittenSegment
from ledger.streams.segment_store import SegmentStore
from ledger.streams.services import StreamServices
from ledger.streams.tail_cache import StreamTail
from ledger.streams.writer import SegmentWriter


class SegmentReplacement:
    """The replacement of segments of one stream. Called under the owner's lock.

    It shares the owner's store, table and cache.
    """

    def __init__(
        self,
        services: StreamServices,
        store: SegmentStore,
        table: SegmentTable,
        tail: StreamTail,
        retention: Retention,
    ) -> None:
        self._services = services
        self._store = store
        self._table = table
        self._tail = tail
        self._retention = retention

    def cleanable(self, writer: SegmentWriter | None) -> list[Segment]:
        """Return the segments that may be rewritten, oldest first, with records from the start on.

        These are the completed ones below the newest segment that is known to have a state
        snapshot: that of `writer`, or else that from which the state was loaded. Cleaning stops at
        a segment with an accepted loss, whose entries it would move.
        """
        table = self._table
        headed = (
            writer.number if writer is not None and writer.headed else table.index_before_number
        )
        if table.losses.ranges and table.losses.of_segment(headed):
            return []
        found: list[Segment] = []
        for segment in table.segments:
            if segment.number >= headed or not segment.completed:
                break
            if table.losses.ranges and table.losses.of_segment(segment.number):
                break
            if segment.truncation is Truncation.TRUNCATED:
                continue
            if segment.end_sequence_id > table.start_sequence_id or found:
                found.append(segment)
        return found

    async def replace(
        self, rewritten: RewrittenSegment, cleanable: Callable[[], list[Segment]]
    ) -> None:
        """List the rewritten segment. Raises Truncated if it is not cleanable any more.

        It was truncated or removed meanwhile, or the stream is closed. A single segment in which
        the log begins by now is replaced, and keeps its mark. Raises BadVersion if another process
        owns the stream, StreamUnavailable if a loss in it was accepted, MetadataUnavailable if the
        outcome is unknown. Then the ledger stays, and if no list names it, the search for orphans
        finds it.
        """
        after = rewritten.after
        ledger = after.ledger
        try:
            await self._check(rewritten)
            before = self._listed(rewritten, cleanable())
        except LedgerError:
            await self._services.delete_unlisted(ledger)
            raise
        if len(before) == 1:
            after = before[0].with_ledger(ledger, after.last_entry, after.last_slot)
        await self._store.replace(before, after)
        self._services.forget_unlisted(ledger)
        self._table.replace(after, rewritten.footer, rewritten.size_bytes)
        self._tail.drop_below(after.end_sequence_id)
        self._retention.on_measured(ledger)
        for each in before:
            self._retention.delete_later(each.ledger)

    def _listed(self, rewritten: RewrittenSegment, cleanable: list[Segment]) -> list[Segment]:
        """Return the segments that are replaced as they are listed now.

        Their records are those that were read, but the log may begin in the first one by now.
        """
        by_number = {each.number: each for each in cleanable}
        merges = len(rewritten.before) > 1
        found: list[Segment] = []
        for each in rewritten.before:
            listed = by_number.get(each.number)
            if (
                listed is None
                or listed.ledger != each.ledger
                or (merges and listed.truncation is not Truncation.ACTIVE)
            ):
                raise Truncated(f"segment {each.number} was changed while it was cleaned")
            if rewritten.after.merged and not self._table.knows(each):  # its epochs would be lost
                raise StreamUnavailable(f"of segment {each.number} the epoch is not known")
            found.append(listed)
        return found

    async def _check(self, rewritten: RewrittenSegment) -> None:
        """Check that no other process may have deleted the new ledger."""
        age_s = self._services.clock.monotonic_s() - rewritten.began_s
        if age_s > REWRITE_S_MAX:
            raise StreamUnavailable(
                f"segment {rewritten.after.number} was cleaned for {age_s:.0f} s, longer than "
                f"{REWRITE_S_MAX:.0f} s: its ledger may be taken for an orphan"
            )
        await self._services.client.read_metadata(rewritten.after.ledger)
