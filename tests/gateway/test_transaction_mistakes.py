"""Goal: the random transactions of test_read_committed and of test_transaction_races find each
planted mistake of a partition and its readers.

Method: one rule is removed, and seeds are played until one finds that. `python -m
tests.gateway.test_transaction_mistakes` prints how many seeds each mistake takes.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest

from gateway.core.partition_transactions import PartitionTransactions
from gateway.handlers import k02_list_offsets
from gateway.topics import aborted_reader, fetch_reader, partition, partition_state
from gateway.topics.aborted_reader import AbortedReader
from gateway.topics.fetch_reader import FetchReader
from gateway.topics.partition import Partition
from gateway.topics.partition_state import PartitionState
from tests.gateway.test_read_committed import play
from tests.gateway.transaction_races import race
from tests.sim import first_seeds
from tests.sim.loop import simulate
from tests.sim.transaction_mistakes import (
    EncodesTooMuch,
    ForgetsOpen,
    KeepsGuards,
    NoVerification,
    StableEarly,
)

SEEDS_MAX = 200


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
        aborted_reader,
        "overlapping_in_order",
        lambda aborted, start, end: [a for a in aborted if start <= a.last_offset < end],
    )


def latest_is_the_high_watermark(patch):
    """Answer ListOffsets of committed readers with the end of the log."""
    patch.setattr(k02_list_offsets, "_committed", lambda request: False)


def the_tail_cache_passes_the_stable_offset(patch):
    """Cut the records that come from disk only."""

    def add(self, result, log, records):
        self.plan.add_records(result, records, log.stable_offset)
        return True

    patch.setattr(FetchReader, "_add_committed", add)


def a_takeover_has_the_first_leader_epoch(patch):
    """Check markers that arrive while a partition is being opened against leader epoch 0."""
    patch.setattr(partition, "NO_LEADER_EPOCH", 0)


def core(kind):
    """Return a mistake in the transactions of a partition."""
    return lambda patch: patch.setattr(partition_state, "PartitionTransactions", kind)


class Mistake(NamedTuple):
    """A mistake, what removes the rule, and the run of one seed that is to find it."""

    name: str
    plant: Callable
    run: Callable


MISTAKES = [
    Mistake("the LSO is the high watermark", stable_offset_is_the_high_watermark, play),
    Mistake("readers pass the LSO", readers_pass_the_stable_offset, play),
    Mistake("the tail cache passes the LSO", the_tail_cache_passes_the_stable_offset, play),
    Mistake("latest is the high watermark", latest_is_the_high_watermark, play),
    Mistake("a snapshot has no transactions", a_snapshot_has_no_open_transactions, play),
    Mistake("a replay ends no transaction", a_replay_ends_no_transaction, play),
    Mistake("the list is cut at a border", the_list_is_cut_at_the_border_of_a_segment, play),
    Mistake("a lookup ends with its segment", a_lookup_ends_with_the_first_segment, play),
    Mistake("only the marker counts", only_the_offset_of_the_marker_counts, play),
    Mistake("a verified batch is appended after an abort", core(KeepsGuards), race),
    Mistake("the first batch is not verified", core(NoVerification), race),
    Mistake("the LSO passes a marker that is not durable", core(StableEarly), race),
    Mistake("a snapshot lacks an open transaction", core(ForgetsOpen), race),
    Mistake("a late marker passes a takeover", a_takeover_has_the_first_leader_epoch, race),
    Mistake("a snapshot has one that began after its end", core(EncodesTooMuch), race),
]


def shows(mistake, seed):
    """Return how a seed shows a mistake that is planted, or an empty string if it does not."""
    try:
        simulate(mistake.run(seed))
    except AssertionError as error:
        return str(error).partition("\n")[0] or "an assertion"
    return ""


def hunt(mistake):
    """Return the number of seeds until the mistake was found, and how. 0 and "" if it was not."""
    with pytest.MonkeyPatch.context() as patch:
        mistake.plant(patch)
        for seed in range(SEEDS_MAX):
            if how := shows(mistake, seed):
                return seed + 1, how
    return 0, ""


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_planted_mistake_is_found(mistake, monkeypatch):
    mistake.plant(monkeypatch)
    found = partial(shows, mistake)
    assert first_seeds.found("partition", mistake.name, found, SEEDS_MAX)


def main():
    for mistake in MISTAKES:
        seeds, how = hunt(mistake)
        print(f"{mistake.name:48} {seeds:4} {how[:80]}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
