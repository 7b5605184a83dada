"""Goal: the random transactions of test_read_committed find each planted mistake.

Method: one rule of the partition or its readers is removed, and a few seeds are played.
"""

import pytest

from gateway.core.partition_transactions import PartitionTransactions
from gateway.topics import fetch_reader
from gateway.topics.aborted_reader import AbortedReader
from gateway.topics.partition import Partition
from gateway.topics.partition_state import PartitionState
from tests.gateway.test_read_committed import play

SEEDS = range(8)


def stable_offset_is_the_high_watermark(patch):
    patch.setattr(Partition, "stable_offset", property(lambda self: self.high_watermark))


def readers_pass_the_stable_offset(patch):
    patch.setattr(fetch_reader, "_below", lambda records, stable: records)


def a_snapshot_has_no_open_transactions(patch):
    patch.setattr(PartitionState, "encode", lambda self, end: self.producers.encode(end))


def a_replay_ends_no_transaction(patch):
    patch.setattr(PartitionState, "_replay_marker", lambda *_: None)


def the_list_is_cut_at_the_border_of_a_segment(patch):
    def read(self, start, end):
        found = self._state.transactions.aborted
        return [one for one in found if one.last_offset >= start and one.first_offset < end]

    patch.setattr(AbortedReader, "cached", read)


def a_lookup_ends_with_the_first_segment(patch):
    """As if no transaction passed the border of a segment."""
    patch.setattr(
        PartitionTransactions,
        "roll",
        lambda self, start, roll=PartitionTransactions.roll: (2**62, roll(self, start)[1]),
    )


def only_the_offset_of_the_marker_counts(patch):
    """Name a transaction only to readers of its marker."""
    patch.setattr(
        "gateway.topics.aborted_reader.overlapping",
        lambda aborted, start, end: [a for a in aborted if start <= a.last_offset < end],
    )


MISTAKES = [
    stable_offset_is_the_high_watermark,
    readers_pass_the_stable_offset,
    a_snapshot_has_no_open_transactions,
    a_replay_ends_no_transaction,
    the_list_is_cut_at_the_border_of_a_segment,
    a_lookup_ends_with_the_first_segment,
    only_the_offset_of_the_marker_counts,
]


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_a_planted_mistake_is_found(mistake, monkeypatch):
    mistake(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in SEEDS:
            await play(seed)
