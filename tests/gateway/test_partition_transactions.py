"""Goal: a partition knows which records are decided, and refuses batches and markers as Kafka does.

Method: batches and markers one after the other, and random logs by Hypothesis against a slow twin
that reads the whole log again for each question.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as Code

from gateway.core import partition_transactions
from gateway.core.partition_transactions import (
    AbortedTransaction,
    EndMarker,
    Guard,
    PartitionTransactions,
    RepeatedMarker,
    aborted_between,
)
from gateway.core.transaction_states import EPOCH_MAX

PRODUCER, OTHER = 5, 6


class Log:
    """A partition whose records are durable up to `durable`."""

    def __init__(self, core=None):
        self.core = PartitionTransactions() if core is None else core
        self.end = 0

    def write(self, producer_id=PRODUCER, epoch=0, sequence=0, *, transactional=True, two=True):
        """Verify a batch if it needs it, and append it if it is allowed."""
        guard = None
        if transactional:
            guard = self.verify(producer_id, epoch, sequence, two=two)
        if isinstance(guard, Code):
            return guard
        return self.append(producer_id, epoch, sequence, guard, transactional=transactional)

    def verify(self, producer_id=PRODUCER, epoch=0, sequence=0, *, two=True):
        return self.core.begin_verification(producer_id, epoch, sequence, 0, bumps_epoch=two)

    def append(self, producer_id, epoch, sequence, guard, *, transactional=True):
        words = (producer_id, epoch, sequence, guard)
        error = self.core.check_batch(*words, transactional=transactional)
        if error is Code.none:
            words = (producer_id, epoch, self.end, self.end)
            self.core.accept_batch(*words, transactional=transactional)
            self.end += 1
        return error

    def mark(self, epoch=1, producer_id=PRODUCER, *, commit=True, **more):
        """Append a marker if it is allowed."""
        words = {"coordinator_epoch": 0, "version": 2, **more}
        marker = EndMarker(producer_id, epoch, commit=commit, **words)
        found = self.core.check_marker(marker)
        if found is Code.none:
            self.core.accept_marker(marker, self.end, self.end)
            self.end += 1
        return found

    def flush(self):
        self.core.on_durable(self.end)

    @property
    def stable(self):
        return self.core.stable_offset(self.end)


def test_a_late_copy_is_recognised_after_a_marker_of_an_admin_client() -> None:
    log = Log()
    log.write()
    assert log.mark(0, number=5, version=0) is Code.none
    assert log.mark(0, number=-1, version=0, commit=False) is Code.none
    log.write(sequence=1)
    assert log.mark(0, number=5, version=0) == RepeatedMarker(2)
    assert log.core.producer_ids == [PRODUCER]


# -- the last stable offset ----------------------------------------------------------------------


def test_an_open_transaction_holds_the_last_stable_offset_until_its_marker_is_durable():
    log = Log()
    assert log.write(OTHER, transactional=False) is Code.none
    assert log.stable == 1
    log.write()
    log.write(OTHER, transactional=False, sequence=1)
    log.flush()
    assert (log.stable, log.end) == (1, 3)
    assert log.mark() is Code.none
    assert log.stable == 1
    log.flush()
    assert log.stable == 4


def test_the_oldest_open_transaction_holds_it_and_no_high_watermark_is_passed():
    log = Log()
    log.write(PRODUCER)
    log.write(OTHER)
    log.mark(producer_id=PRODUCER)
    log.flush()
    assert log.stable == 1
    log.mark(producer_id=OTHER, commit=False)
    log.flush()
    assert log.stable == 4
    assert log.core.stable_offset(2) == 2


def test_the_log_start_bounds_it_from_below():
    log = Log()
    log.write()
    assert log.core.stable_offset(10, log_start=4) == 4
    assert log.core.stable_offset(3, log_start=4) == 3


# -- batches -------------------------------------------------------------------------------------


def test_only_a_verified_batch_starts_a_transaction_and_later_ones_need_no_question():
    log = Log()
    assert log.append(PRODUCER, 0, 0, None) is Code.invalid_txn_state
    guard = log.verify()
    assert isinstance(guard, Guard)
    assert log.append(PRODUCER, 0, 0, guard) is Code.none
    assert log.verify(sequence=1) is None
    assert log.append(PRODUCER, 0, 1, None) is Code.none
    assert log.core.producer(PRODUCER).first_offset == 0


@pytest.mark.parametrize("two", [False, True])
def test_a_marker_voids_a_verification_that_began_before_it(two):
    log = Log()
    log.write(two=two)
    log.mark(0 if not two else 1, version=2 * two)
    guard = log.verify(epoch=int(two), two=two)
    log.mark(1 if not two else 2, version=2 * two, commit=False)
    epoch = 1 if not two else 2
    assert log.append(PRODUCER, epoch, 0, guard) is Code.invalid_txn_state
    fresh = log.verify(epoch=epoch, two=two)
    assert fresh.number > guard.number
    assert log.append(PRODUCER, epoch, 0, fresh) is Code.none


def test_in_protocol_2_a_marker_leaves_the_verification_of_the_next_transaction():
    log = Log()
    log.write()
    guard = log.verify(epoch=1)
    assert log.mark(1) is Code.none
    assert log.append(PRODUCER, 1, 0, guard) is Code.none


def test_an_old_epoch_is_refused_before_and_after_the_question():
    log = Log()
    log.write(epoch=3)
    assert log.verify(epoch=2) is Code.invalid_producer_epoch
    assert log.append(PRODUCER, 2, 0, None) is Code.invalid_producer_epoch
    assert log.write(epoch=2, transactional=False) is Code.invalid_producer_epoch


def test_a_plain_batch_inside_a_transaction_is_refused_and_outside_it_costs_no_memory():
    log = Log()
    assert log.write(transactional=False) is Code.none
    assert len(log.core) == 0
    log.write()
    assert log.write(transactional=False) is Code.invalid_txn_state
    log.mark()
    assert log.write(epoch=1, transactional=False) is Code.none


def test_a_later_batch_does_not_overtake_the_first_one():
    log = Log()
    first = log.verify(sequence=4, two=False)
    later = log.verify(sequence=9, two=False)
    assert first == later
    assert log.append(PRODUCER, 0, 9, later) is Code.out_of_order_sequence_number
    assert log.append(PRODUCER, 0, 4, first) is Code.none


def test_in_protocol_2_an_unknown_producer_begins_with_sequence_0():
    log = Log()
    guard = log.verify(sequence=4)
    words = {"transactional": True, "first_of_producer": True}
    found = log.core.check_batch(PRODUCER, 0, 4, guard, **words)
    assert found is Code.out_of_order_sequence_number
    guard = log.verify(sequence=0)
    assert log.core.check_batch(PRODUCER, 0, 0, guard, **words) is Code.none


# -- markers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "epoch", "is_open", "expected"),
    [
        (0, 3, True, Code.none),
        (0, 4, True, Code.none),
        (0, 2, True, Code.invalid_producer_epoch),
        (2, 4, True, Code.none),
        (2, 3, True, Code.invalid_producer_epoch),
        (2, 2, True, Code.invalid_producer_epoch),
        (2, 4, False, Code.none),
        (2, 3, False, Code.invalid_producer_epoch),
        (2, 5, False, Code.none),
    ],
)
def test_the_epoch_of_a_marker_follows_the_transaction_version(version, epoch, is_open, expected):
    log = Log()
    log.write(epoch=3)
    if not is_open:
        assert log.mark(4) is Code.none
    assert log.mark(epoch, version=version) is expected


def test_the_highest_epoch_may_recover_from_an_earlier_mistake():
    log = Log()
    log.write(epoch=EPOCH_MAX)
    assert log.mark(EPOCH_MAX) is Code.none
    assert log.core.producer(PRODUCER).open is False


def test_a_marker_of_an_earlier_coordinator_is_fenced():
    log = Log()
    log.write()
    assert log.mark(1, coordinator_epoch=3) is Code.none
    log.write(epoch=1)
    assert log.mark(2, coordinator_epoch=2) is Code.transaction_coordinator_fenced
    assert log.mark(2, coordinator_epoch=3) is Code.none


def test_a_late_copy_of_a_marker_ends_nothing_and_waits_for_the_first_one():
    log = Log()
    log.write(two=False)
    assert log.mark(0, version=0, number=1, leader_epoch=0) is Code.none
    log.write(sequence=1, two=False)
    again = log.mark(0, version=0, number=1, leader_epoch=0, commit=False)
    assert again == RepeatedMarker(1)
    assert log.core.producer(PRODUCER).open
    assert log.mark(0, version=0, number=2, leader_epoch=0) is Code.none


def test_a_marker_for_an_earlier_ownership_is_refused():
    log = Log(PartitionTransactions(leader_epoch=7))
    assert log.mark(number=1, leader_epoch=6) is Code.not_leader_or_follower
    assert log.mark(number=1, leader_epoch=7) is Code.none
    assert log.mark(number=-1) is Code.none  # of an admin client


def test_a_marker_for_an_unknown_producer_is_appended_and_fences():
    log = Log()
    assert log.mark(4, commit=False) is Code.none
    assert log.core.aborted == []
    assert log.verify(epoch=3) is Code.invalid_producer_epoch


# -- aborted transactions ------------------------------------------------------------------------


def test_an_aborted_transaction_names_the_offset_that_is_stable_after_it():
    log = Log()
    log.write(PRODUCER)
    log.write(OTHER)
    log.mark(producer_id=PRODUCER, commit=False)
    log.mark(producer_id=OTHER, commit=False)
    assert log.core.aborted == [
        AbortedTransaction(PRODUCER, 0, 2, 1),
        AbortedTransaction(OTHER, 1, 3, 4),
    ]
    stable, aborted = log.core.roll(log.end)
    assert (stable, len(aborted), len(log.core.aborted)) == (4, 2, 0)


def test_a_marker_that_waits_for_the_next_segment_is_in_its_list():
    log = Log()
    log.write(PRODUCER)
    log.write(OTHER)
    log.mark(producer_id=PRODUCER, commit=False)
    log.mark(producer_id=OTHER, commit=False)
    assert log.core.roll(3) == (1, (AbortedTransaction(PRODUCER, 0, 2, 1),))
    assert log.core.aborted == [AbortedTransaction(OTHER, 1, 3, 4)]


def test_a_segment_must_roll_before_its_list_is_full(monkeypatch):
    monkeypatch.setattr(partition_transactions, "ABORTED_MAX", 2)
    log = Log()
    for epoch in (0, 1):
        assert not log.core.must_roll
        log.write(epoch=epoch)
        log.mark(epoch + 1, commit=False)
    assert log.core.must_roll


# -- expiry and snapshots ------------------------------------------------------------------------


def test_producers_and_questions_expire_but_never_open_transactions():
    log = Log()
    log.write(PRODUCER)
    log.write(OTHER)
    log.mark(producer_id=OTHER)
    guard = log.verify(7)
    assert log.core.expire(1_000, 100, durable_offset=0) == 0
    log.flush()
    assert log.core.expire(1_000, 100, durable_offset=log.end) == 1
    assert log.core.producer(OTHER) is None
    assert log.core.producer(PRODUCER).open
    assert log.append(7, 0, 0, guard) is Code.invalid_txn_state


def test_an_evicted_guard_fails_its_batch_and_is_forgotten_after_a_day():
    log = Log()
    words = {"transactional": True, "first_of_producer": True}
    guards = [log.verify(producer, two=False) for producer in range(1_001)]
    for producer, guard in enumerate(guards):
        log.core.end_verification(producer, guard.number, 0)
    assert log.core.check_batch(0, 0, 0, guards[0], **words) is Code.invalid_txn_state
    assert log.core.check_batch(1, 0, 0, guards[1], **words) is Code.none
    guard = log.verify(0, sequence=4, two=False)
    assert log.core.check_batch(0, 0, 4, guard, **words) is Code.out_of_order_sequence_number
    log.core.expire(1_000, 100, durable_offset=0)
    guard = log.verify(0, sequence=4, two=False)
    assert log.core.check_batch(0, 0, 4, guard, **words) is Code.none


def test_the_end_of_an_earlier_verification_leaves_a_later_one():
    log = Log()
    earlier = log.verify()
    log.mark()
    later = log.verify(epoch=1)
    log.core.end_verification(PRODUCER, earlier.number, 0, refused=True)
    assert log.append(PRODUCER, 1, 0, later) is Code.none


def test_damaged_or_newer_snapshots_are_refused():
    log = Log()
    log.write()
    whole = log.core.encode(1)
    for size in range(1, len(whole)):
        with pytest.raises(ValueError, match="bytes"):
            list(PartitionTransactions().load(whole[:size]))
    with pytest.raises(ValueError, match="bytes"):
        list(PartitionTransactions().load(whole + b"\0"))
    with pytest.raises(ValueError, match="version 9"):
        list(PartitionTransactions().load(b"\x09" + whole[1:]))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("write", "commit", "abort", "flush", "plain")),
        st.integers(1, 3),
    ),
    max_size=40,
)


def run(steps):
    """Carry out the steps. Returns the partition, its records and the durable end."""
    return [(Log(), [], 0), *each(steps)][-1]


def each(steps):
    """Carry out the steps, and yield the same after each."""
    log, records, durable, epochs = Log(), [], 0, {}
    for step, producer_id in steps:
        epoch = epochs.setdefault(producer_id, 0)
        if step == "flush":
            log.flush()
            durable = log.end
        elif step in ("commit", "abort"):
            assert log.mark(epoch + 1, producer_id, commit=step == "commit") is Code.none
            epochs[producer_id] = epoch + 1
            records.append((producer_id, epoch + 1, step))
        elif log.write(producer_id, epoch, transactional=step == "write") is Code.none:
            records.append((producer_id, epoch, step))
        assert log.end == len(records)
        yield log, records, durable


def replayed(records, core=None, start=0):
    """The state that the records alone give."""
    core = PartitionTransactions() if core is None else core
    for offset, (producer_id, epoch, step) in enumerate(records):
        if offset < start:
            continue
        if step in ("commit", "abort"):
            marker = EndMarker(producer_id, epoch, 0, step == "commit", 2)
            core.accept_marker(marker, offset, offset)
        else:
            core.accept_batch(producer_id, epoch, offset, offset, transactional=step == "write")
    return core


def shape(core, end):
    """What a state means, without what it forgets with its ownership."""
    other = PartitionTransactions()
    list(other.load(core.encode(end)))
    known = {key: one._replace(used_ms=0) for key, one in other._producers.items()}
    return known, other.aborted, list(other._unstable)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.data())
def test_a_snapshot_is_exact_at_every_offset_that_may_be_asked_for(steps, data):
    log, records, durable = run(steps)
    end = data.draw(st.integers(durable, log.end))
    assert shape(log.core, end) == shape(replayed(records[:end]), end)
    loaded = PartitionTransactions()
    list(loaded.load(log.core.encode(end)))
    assert shape(replayed(records, loaded, end), log.end) == shape(log.core, log.end)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_the_last_stable_offset_is_that_of_a_slow_twin_and_never_falls(steps):
    before = 0
    for log, records, durable in each(steps):
        stable = log.core.stable_offset(durable)
        first = {}
        for offset, (producer_id, _, step) in enumerate(records):
            if step == "write":
                first.setdefault(producer_id, offset)
            elif step in ("commit", "abort") and offset < durable:
                first.pop(producer_id, None)
        assert stable == min((durable, *first.values()))
        assert stable >= before
        before = stable


@settings(max_examples=60, deadline=None)
@given(STEPS, st.data())
def test_aborted_transactions_are_found_over_the_borders_of_segments(steps, data):
    """The records that a reader drops are those of a twin that knows all outcomes."""
    log, records, _ = run(steps)
    ends = sorted(data.draw(st.sets(st.integers(0, log.end), max_size=3)) | {0, log.end})
    segments = [
        [one for one in log.core.aborted if a <= one.last_offset < b] for a, b in pairwise(ends)
    ]
    log.flush()
    stable = log.stable
    start = data.draw(st.integers(0, stable))
    at = next((n for n, (a, b) in enumerate(pairwise(ends)) if a <= start < b), len(segments))
    found = aborted_between(iter(segments[at:]), start, stable)
    for offset in range(start, stable):
        producer_id, _, step = records[offset]
        if step != "write":
            continue
        later = (kind for who, _, kind in records[offset:] if who == producer_id)
        outcome = next(kind for kind in later if kind in ("commit", "abort"))
        dropped = any(
            one.producer_id == producer_id and one.first_offset <= offset <= one.last_offset
            for one in found
        )
        assert dropped == (outcome == "abort")
