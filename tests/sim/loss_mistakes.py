"""Mistakes about losses that an operator accepted, planted into the product for `proof_reading`."""

import contextlib
from dataclasses import replace
from unittest import mock

from gateway.topics.partition_state import PartitionState
from ledger.core import segments
from ledger.core.accepted_losses import StreamLosses
from ledger.core.segment_table import SegmentTable
from ledger.losses import forced_close
from ledger.streams import recovery
from tests.sim.planting import Mutation, patched
from tests.sim.reading_forced import Forced
from tests.sim.reading_retries import Retried
from tests.sim.reading_world import Lossy, LossyTrimmed

_relist = SegmentTable.relist


def ends_with_its_records(self, number, end_offset):
    """Offsets that are reserved behind a segment are assigned."""
    return end_offset


def follows_the_one_before(before, segment):
    """The start of a segment in progress is the end of the one before it, reserved or not."""
    start = before.end_sequence_id if before else max(segment.start_sequence_id, 0)
    return replace(segment, start_sequence_id=start)


@contextlib.contextmanager
def starting_after_the_one_before(world):
    with contextlib.ExitStack() as stack:
        for module in (segments, recovery):
            stack.enter_context(mock.patch.object(module, "started_after", follows_the_one_before))
        yield


def forgets_losses(self, segments_, losses=None):
    _relist(self, segments_, None)


def one_segment_more(self, start):
    """The ranges of the segment of the start go too."""
    return StreamLosses(tuple(each for each in self.ranges if each.segment > start.segment))


def nothing_there(self, number, entry):
    """A reader asks the bookies for entries that were given up."""


MUTATIONS = (
    Mutation(
        "reused",
        "an offset that a forced close reserved is assigned again",
        patched(StreamLosses, end_after=ends_with_its_records),
        Forced,
    ),
    Mutation(
        "reused",
        "the bound of a forced close is what the bookies that are left show",
        patched(forced_close, RESERVED_OFFSETS=1),
        Forced,
    ),
    Mutation(
        "reused",
        "the start of a segment is computed from the one before",
        starting_after_the_one_before,
        Forced,
    ),
    Mutation(
        "accepted",
        "a follower forgets an accepted range",
        patched(SegmentTable, relist=forgets_losses),
        Lossy,
    ),
    Mutation(
        "accepted",
        "an accepted range is removed before truncation has passed it",
        patched(StreamLosses, without_below=one_segment_more),
        LossyTrimmed,
    ),
    Mutation(
        "accepted",
        "a copy that is found again is delivered",
        patched(StreamLosses, at_entry=nothing_there, first_behind=nothing_there),
        Lossy,
    ),
    Mutation(
        "retries",
        "a retry of a batch that lies in a loss is accepted",
        patched(PartitionState, pass_loss=lambda self, first, last: None),
        Retried,
    ),
)
