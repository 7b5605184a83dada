"""Goal: each known mistake of a log cleaner is found by a test that is named beside it.

Method: one rule of the cleaner, or of the replacement of segments, is broken, and the test is run.
"""

from __future__ import annotations

import inspect
from dataclasses import replace

import numpy as np
import pytest

from gateway.cleaning import cleaner as schedule
from gateway.core import cleaned_batches, cleaning
from gateway.core.cleaning import Cleaning
from gateway.core.cleaning_keys import KeyMap
from gateway.core.cleaning_results import NOT_FULL, CleanedBatch
from gateway.core.cleaning_transactions import CleanedTransactions
from gateway.wire.batches import read_header
from ledger.core.segments import LAYOUT_VERSION
from ledger.errors import LedgerError
from ledger.streams.reads import SegmentReads
from ledger.streams.retention import Retention
from ledger.streams.segment_store import SegmentStore
from tests.gateway import test_cleaner as shell
from tests.gateway import test_cleaning as core
from tests.ledger import test_cleaned_segments as segments


def a_gap_lies_behind_a_batch(patch):
    def filter_batches(self, data, original=Cleaning.filter_batches):
        found = original(self, data)
        moved = []
        for one in found:
            own = read_header(one.data).last_offset_delta + 1
            if moved:
                moved[-1] = moved[-1]._replace(offsets=moved[-1].offsets + one.offsets - own)
            first = one.offsets if not moved else own
            moved.append(CleanedBatch(first, one.timestamp_max, one.data))
        return moved

    patch.setattr(Cleaning, "filter_batches", filter_batches)


def a_gap_at_the_end_is_left_out(patch):
    patch.setattr(
        Cleaning,
        "end_segment",
        lambda self, original=Cleaning.end_segment: original(self)._replace(batches=[]),
    )


def the_index_is_that_of_the_old_ledger(patch):
    """Read it from the head of the next segment, as for a segment that was not cleaned."""

    async def index_of(self, segment, original=SegmentReads.index_of):
        return await original(self, replace(segment, layout_version=LAYOUT_VERSION))

    patch.setattr(SegmentReads, "index_of", index_of)


def the_old_ledger_is_deleted_at_the_swap(patch):
    patch.setattr(Retention, "delete_later", lambda self, ledger: self._removed.append(ledger))


def cleaning_passes_the_stable_offset(patch):
    patch.setattr(
        schedule,
        "cleanable",
        lambda facts, stable, now, rules, original=schedule.cleanable: original(
            facts, 2**62, now, rules
        ),
    )


def a_tombstone_goes_in_the_first_round(patch):
    def horizon_of(header, original=cleaned_batches.horizon_of):
        return -1 if header.records else original(header)

    patch.setattr(cleaning, "horizon_of", horizon_of)


def a_full_map_puts_a_key_in_the_place_of_another(patch):
    def put(self, words, offsets, original=KeyMap.put):
        noted = original(self, words, offsets)
        if noted < len(offsets):
            self._places[np.flatnonzero(self._places[:, 2])[0], 2] = offsets[-1] + 1
        return len(offsets)

    patch.setattr(KeyMap, "put", put)


def a_segment_that_did_not_fit_counts_as_mapped(patch):
    """As if no later record had the keys that were left out."""
    patch.setattr(
        Cleaning,
        "map_batches",
        lambda self, data, original=Cleaning.map_batches: original(self, data) and NOT_FULL,
    )


def a_segment_is_replaced_without_a_version(patch):
    async def replace_at_once(self, before, after):
        for each in before:
            await self._metadata.delete(self._path(each), -1)
        await self._metadata.create(self._path(after), after.encode())

    patch.setattr(SegmentStore, "replace", replace_at_once)


def a_marker_goes_before_its_records(patch):
    def end(self, *words, original=CleanedTransactions.end, **more):
        original(self, *words, **more)
        return True

    patch.setattr(CleanedTransactions, "end", end)


def a_marker_goes_as_soon_as_its_records(patch):
    patch.setattr(cleaning, "horizon_of", lambda header: -1)


def the_minimum_lag_is_ignored(patch):
    patch.setattr(
        schedule,
        "cleanable",
        lambda facts, stable, now, rules, original=schedule.cleanable: original(
            facts, stable, now, rules._replace(lag_ms_min=0)
        ),
    )


def aborted_records_count(patch):
    patch.setattr(CleanedTransactions, "aborted_with", lambda *_: None)


def a_round_begins_behind_records_that_it_did_not_map(patch):
    """Forget the keys of the dirty segments but the last."""
    patch.setattr(
        Cleaning,
        "begin_segment",
        lambda self, *words, original=Cleaning.begin_segment: (
            self._keys._places.fill(0),
            original(self, *words),
        ),
    )


MARKERS = core.test_a_marker_stays_until_no_record_of_its_transaction_is_left_and_then_for_its_time

FOUND_BY = {
    a_gap_lies_behind_a_batch: shell.test_a_reader_may_ask_for_any_offset_of_a_cleaned_log,
    a_gap_at_the_end_is_left_out: (
        core.test_a_gap_is_covered_by_the_batch_behind_it_and_at_the_end_by_an_empty_one
    ),
    the_index_is_that_of_the_old_ledger: (
        segments.test_the_index_of_a_cleaned_segment_is_that_of_its_footer
    ),
    the_old_ledger_is_deleted_at_the_swap: (
        segments.test_the_old_ledger_is_deleted_after_the_grace_period
    ),
    cleaning_passes_the_stable_offset: (
        shell.test_an_open_transaction_is_not_cleaned_and_its_abort_loses_nothing
    ),
    a_tombstone_goes_in_the_first_round: (
        core.test_a_tombstone_stays_for_delete_retention_from_the_first_cleaning_that_met_it
    ),
    a_full_map_puts_a_key_in_the_place_of_another: (
        shell.test_more_keys_than_the_map_holds_take_more_rounds_and_lose_nothing
    ),
    a_segment_that_did_not_fit_counts_as_mapped: (
        core.test_a_segment_with_more_keys_than_the_map_holds_is_cleaned_in_rounds
    ),
    a_segment_is_replaced_without_a_version: segments.test_a_zombie_cannot_replace_a_segment,
    a_marker_goes_before_its_records: MARKERS,
    a_marker_goes_as_soon_as_its_records: MARKERS,
    the_minimum_lag_is_ignored: (
        shell.test_min_compaction_lag_keeps_young_records_and_max_lag_cleans_old_ones
    ),
    aborted_records_count: core.test_aborted_records_go_at_once_and_hide_nothing,
    a_round_begins_behind_records_that_it_did_not_map: (
        shell.test_the_dirty_part_is_cleaned_and_new_records_stay
    ),
}


@pytest.mark.parametrize("mistake", FOUND_BY, ids=lambda mistake: mistake.__name__)
async def test_the_mistake_is_found(mistake, monkeypatch):
    mistake(monkeypatch)
    with pytest.raises((AssertionError, LedgerError, StopIteration, pytest.fail.Exception)):
        found = FOUND_BY[mistake]()
        if inspect.isawaitable(found):
            await found
