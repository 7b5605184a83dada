"""Goal: the coordinator's core answers as Apache Kafka 4.3 does, and only after its records.

Method: requests one after the other; `Log` makes records durable when a test wants it. The error
codes are those of Kafka's TransactionCoordinator; tests/compat/test_transaction_answers.py compares
the core with a broker.
"""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode as Code

from gateway.core.transaction_effects import (
    Added,
    Append,
    Ended,
    Initialized,
)
from gateway.core.transaction_states import (
    EPOCH_LAST,
    TopicPartition,
    TransactionState,
)
from tests.gateway.coordinator_log import ID, ORDERS, STOCK, Log, at_epoch, ongoing

DAY_MS = 86_400_000


# -- InitProducerId ------------------------------------------------------------------------------


def test_each_new_producer_gets_the_next_epoch():
    log = Log()
    assert [log.init().epoch for _ in range(3)] == [0, 1, 2]
    assert log.state.previous_producer_id == log.state.producer_id == 1_000


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ({"name": ""}, Code.invalid_request),
        ({"timeout_ms": 0}, Code.invalid_transaction_timeout),
        ({"timeout_ms": -1}, Code.invalid_transaction_timeout),
        ({"timeout_ms": 900_001}, Code.invalid_transaction_timeout),
        ({"producer_id": 5}, Code.invalid_request),
        ({"epoch": 5}, Code.invalid_request),
    ],
)
def test_an_invalid_request_gets_its_code_and_leaves_nothing(words, code):
    log = Log()
    assert log.init(**words) == Initialized(code)
    assert not log.records
    assert list(log.core.metadata) == []


def test_a_producer_that_goes_on_names_its_epoch_and_may_retry():
    log = Log()
    log.init()
    assert log.init(1_000, 0) == Initialized(Code.none, 1_000, 1)
    assert log.init(1_000, 0) == Initialized(Code.none, 1_000, 1)  # the answer was lost
    assert log.init(1_000, 1) == Initialized(Code.none, 1_000, 2)
    assert log.init(1_000, 0) == Initialized(Code.producer_fenced)
    assert log.init(7, 2) == Initialized(Code.producer_fenced)


def test_a_new_producer_fences_a_retry_of_the_one_before():
    log = Log()
    log.init()
    log.init(1_000, 0)
    log.init()
    assert log.init(1_000, 0) == Initialized(Code.producer_fenced)


def test_after_the_last_epoch_there_is_a_new_producer_id():
    log = at_epoch(EPOCH_LAST - 1)
    assert log.init() == Initialized(Code.none, 500, EPOCH_LAST)
    assert log.init() == Initialized(Code.none, 1_000, 0)


def test_a_retry_over_the_change_of_the_producer_id_gets_the_same_answer():
    log = at_epoch(EPOCH_LAST)
    assert log.init(500, EPOCH_LAST) == Initialized(Code.none, 1_000, 0)
    assert log.init(500, EPOCH_LAST) == Initialized(Code.none, 1_000, 0)
    assert log.init(500, EPOCH_LAST) == Initialized(Code.producer_fenced)  # as in Kafka


def test_another_epoch_than_the_exhausted_one_gets_kafkas_code():
    assert at_epoch(EPOCH_LAST).init(500, 7) == Initialized(Code.unknown_server_error)


def test_without_a_producer_id_at_hand_the_client_tries_again():
    log = Log()
    log.ids_left = 0
    assert log.init() == Initialized(Code.coordinator_load_in_progress)
    exhausted = at_epoch(EPOCH_LAST)
    exhausted.ids_left = 0
    assert exhausted.init() == Initialized(Code.coordinator_load_in_progress)


@pytest.mark.parametrize(("level", "epochs"), [(2, (1, 2)), (0, (1, 2))])
def test_a_new_producer_aborts_the_open_transaction_first(level, epochs):
    log = ongoing(level, version=level)
    assert log.init() == Initialized(Code.concurrent_transactions)
    assert log.states[-1] == "PrepareAbort"
    assert log.init() == Initialized(Code.concurrent_transactions)
    marker = log.mark()
    assert (marker.commit, marker.epoch, marker.version) == (False, epochs[0], level)
    assert log.init() == Initialized(Code.none, 1_000, epochs[1])


def test_fencing_at_the_last_epoch_leaves_the_producer_id():
    log = at_epoch(EPOCH_LAST, TransactionState.ONGOING)
    assert log.init() == Initialized(Code.concurrent_transactions)
    assert log.mark().epoch == EPOCH_LAST + 1
    assert (log.state.producer_id, log.state.epoch) == (1_000, 0)
    assert log.init() == Initialized(Code.none, 1_000, 1)


# -- AddPartitionsToTxn --------------------------------------------------------------------------


def test_the_first_partitions_start_the_transaction_and_later_ones_join_it():
    log = Log()
    log.init()
    assert log.add(1_000, 0, ORDERS) == Added(Code.none)
    log.now_ms += 5
    assert log.add(1_000, 0, STOCK) == Added(Code.none)
    assert (log.state.partitions, log.state.started_ms) == ({ORDERS, STOCK}, 10_000)
    before = len(log.records)
    assert log.add(1_000, 0, ORDERS) == Added(Code.none)
    assert len(log.records) == before  # it was there already


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((1_000, 0, ""), Code.invalid_request),
        ((1_000, 0, "other"), Code.invalid_producer_id_mapping),
        ((7, 0, ID), Code.invalid_producer_id_mapping),
        ((1_000, 1, ID), Code.producer_fenced),
        ((1_000, -1, ID), Code.producer_fenced),
    ],
)
def test_a_wrong_producer_adds_nothing(words, code):
    log = Log()
    log.init()
    producer_id, epoch, name = words
    assert log.add(producer_id, epoch, ORDERS, name=name) == Added(code)
    assert log.verify(producer_id, epoch, ORDERS, name=name) == {ORDERS: code}


def test_verification_tells_added_partitions_from_others():
    log = Log()
    log.init()
    assert log.verify(1_000, 0, ORDERS) == {ORDERS: Code.transaction_abortable}
    log.holds = True
    log.add(1_000, 0, ORDERS)
    assert log.verify(1_000, 0, ORDERS) == {ORDERS: Code.transaction_abortable}  # not durable yet
    log.holds = False
    log.carry_out(log.flush())
    assert log.verify(1_000, 0, ORDERS, STOCK) == {
        ORDERS: Code.none,
        STOCK: Code.transaction_abortable,
    }
    log.end(1_000, 0)
    assert log.verify(1_000, 1, ORDERS) == {ORDERS: Code.concurrent_transactions}
    log.mark()
    assert log.verify(1_000, 1, ORDERS) == {ORDERS: Code.transaction_abortable}


def test_while_a_record_is_appended_or_markers_are_sent_requests_try_again():
    log = Log()
    log.init()
    log.holds = True
    assert log.add(1_000, 0, ORDERS) is None
    assert log.add(7, 9, STOCK) == Added(Code.concurrent_transactions)
    assert log.end(7, 9) == Ended(Code.concurrent_transactions)
    assert log.end(1_000, 0, version=0) == Ended(Code.concurrent_transactions)
    assert log.init() == Initialized(Code.concurrent_transactions)
    log.holds = False
    log.carry_out(log.flush())
    log.answers.clear()
    log.end(1_000, 0)
    assert log.add(1_000, 1, ORDERS) == Added(Code.concurrent_transactions)


def test_a_transaction_that_fits_no_record_is_refused_and_100_000_partitions_fit():
    log = Log()
    log.init()
    many = [TopicPartition("orders", at) for at in range(100_000)]
    assert log.add(1_000, 0, *many) == Added(Code.none)
    named = [TopicPartition(f"{at:0240}", 0) for at in range(5_000)]
    assert log.add(1_000, 0, *named) == Added(Code.unknown_server_error)
    assert len(log.state.partitions) == 100_000


# -- EndTxn --------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_is_decided_by_prepare_and_complete_after_the_last_marker(commit):
    log = ongoing()
    outcome = "Commit" if commit else "Abort"
    assert log.end(1_000, 0, commit=commit) == Ended(Code.none, 1_000, 1)
    assert log.states[-1] == f"Prepare{outcome}"
    marker = log.mark(Code.none, ORDERS)
    assert log.states[-1] == f"Prepare{outcome}"
    log.carry_out(log.core.on_marked(marker, {STOCK: Code.none}, log.now_ms))
    assert log.states[-1] == f"Complete{outcome}"
    assert log.state.partitions == frozenset()


def test_no_answer_leaves_before_its_record_is_durable():
    log = Log()
    log.holds = True
    for ask in (log.init, lambda: log.add(1_000, 0, ORDERS), lambda: log.end(1_000, 0)):
        assert ask() is None
        log.carry_out(log.flush())
        assert log.last().error is Code.none


def test_a_retry_of_an_end_whose_answer_was_lost_gets_the_same_answer():
    log = ongoing()
    log.end(1_000, 0)
    assert log.end(1_000, 0) == Ended(Code.concurrent_transactions)
    log.mark()
    assert log.end(1_000, 0) == Ended(Code.none, 1_000, 1)
    assert log.end(1_000, 0, commit=False) == Ended(Code.invalid_txn_state)


STATES = {"Empty": (), "CompleteCommit": (True,), "CompleteAbort": (False,)}


@pytest.mark.parametrize(
    ("before", "commit", "epoch", "expected"),
    [
        ("Empty", False, -1, Code.producer_fenced),
        ("Empty", True, -1, Code.producer_fenced),
        ("Empty", False, 0, None),
        ("Empty", True, 0, Code.invalid_txn_state),
        ("CompleteAbort", False, -1, Code.none),
        ("CompleteAbort", True, -1, Code.invalid_txn_state),
        ("CompleteAbort", False, 0, None),
        ("CompleteAbort", True, 0, Code.invalid_txn_state),
        ("CompleteCommit", False, -1, Code.invalid_txn_state),
        ("CompleteCommit", True, -1, Code.none),
        ("CompleteCommit", False, 0, None),
        ("CompleteCommit", True, 0, Code.invalid_txn_state),
        ("CompleteCommit", True, 1, Code.producer_fenced),
    ],
)
def test_protocol_2_answers_an_end_without_a_transaction_as_kafkas_table(
    before, commit, epoch, expected
):
    """`epoch` is relative to the current one: -1 is a retry. None stands for an epoch bump."""
    log = Log()
    log.init()
    log.init()
    current = 1
    for outcome in STATES[before]:
        log.add(1_000, current, ORDERS)
        log.end(1_000, current, commit=outcome)
        log.mark()
        current += 1
    answer = log.end(1_000, current + epoch, commit=commit)
    if expected is None:
        assert answer == Ended(Code.none, 1_000, current + 1)
        assert log.states[-2:] == ["PrepareAbort", "CompleteAbort"]
        assert not log.markers
    else:
        assert answer.error is expected
        assert answer.epoch == (current if expected is Code.none else -1)


@pytest.mark.parametrize("commit", [True, False])
def test_the_last_epoch_ends_with_a_new_producer_id_and_the_retry_gets_it_too(commit):
    log = at_epoch(EPOCH_LAST, TransactionState.ONGOING)
    assert log.end(500, EPOCH_LAST, commit=commit) == Ended(Code.none, 1_000, 0)
    assert log.mark().epoch == EPOCH_LAST + 1
    assert log.end(500, EPOCH_LAST, commit=commit) == Ended(Code.none, 1_000, 0)
    assert log.end(500, EPOCH_LAST, commit=not commit) == Ended(Code.invalid_txn_state)
    assert log.add(1_000, 0, ORDERS) == Added(Code.none)


@pytest.mark.parametrize(
    ("before", "commit", "code"),
    [
        ("Empty", True, Code.invalid_txn_state),
        ("Empty", False, Code.invalid_txn_state),
        ("CompleteCommit", True, Code.none),
        ("CompleteCommit", False, Code.invalid_txn_state),
        ("CompleteAbort", False, Code.none),
        ("CompleteAbort", True, Code.invalid_txn_state),
    ],
)
def test_protocol_1_ends_without_an_epoch_bump(before, commit, code):
    log = Log(level=0)
    log.init()
    for outcome in STATES[before]:
        log.add(1_000, 0, ORDERS, version=0)
        assert log.end(1_000, 0, commit=outcome, version=0) == Ended(Code.none)
        assert log.end(1_000, 0, commit=outcome, version=0).error is Code.concurrent_transactions
        assert log.mark().epoch == 0
    assert log.end(1_000, 0, commit=commit, version=0) == Ended(code)
    assert log.end(1_000, 1, commit=commit, version=0) == Ended(Code.producer_fenced)
    assert log.end(7, 0, commit=commit, version=0) == Ended(Code.invalid_producer_id_mapping)


def test_an_unknown_or_empty_id_ends_nothing():
    log = Log()
    for version in (0, 2):
        assert log.end(1, 0, version=version) == Ended(Code.invalid_producer_id_mapping)
        assert log.end(1, 0, version=version, name="") == Ended(Code.invalid_request)


# -- markers and takeovers -----------------------------------------------------------------------


def test_a_refused_marker_is_sent_again_to_the_partitions_that_refused_it():
    log = ongoing()
    log.end(1_000, 0)
    first = log.markers[-1]
    assert first.partitions == {ORDERS, STOCK}
    log.mark(Code.not_leader_or_follower, STOCK)
    assert log.markers == [first._replace(partitions=frozenset({STOCK}))]
    log.carry_out(log.core.on_marked(first, {ORDERS: Code.none}, log.now_ms))
    assert log.states[-1] == "PrepareCommit"
    log.mark(Code.none)
    assert log.states[-1] == "CompleteCommit"


def test_a_partition_with_a_newer_epoch_needs_no_marker():
    log = ongoing()
    log.end(1_000, 0)
    log.mark(Code.invalid_producer_epoch)
    assert log.states[-1] == "CompleteCommit"


def test_a_fenced_coordinator_loads_its_map_again():
    log = ongoing()
    log.end(1_000, 0)
    log.mark(Code.transaction_coordinator_fenced)
    assert (log.reloads, log.states[-1]) == (1, "PrepareCommit")


def test_a_late_answer_does_not_count_for_the_next_transaction():
    log = ongoing()
    log.end(1_000, 0)
    old = log.mark()
    log.add(1_000, 1, ORDERS)
    log.end(1_000, 1)
    log.carry_out(log.core.on_marked(old, {ORDERS: Code.none}, log.now_ms))
    assert log.states[-1] == "PrepareCommit"


@pytest.mark.parametrize("commit", [True, False])
def test_a_takeover_ends_prepared_transactions_with_its_own_epoch(commit):
    log = ongoing()
    log.end(1_000, 0, commit=commit)
    old = log.markers.pop()
    log.take_over()
    marker = log.mark()
    assert (marker.coordinator_epoch, old.coordinator_epoch) == (1, 0)
    assert marker._replace(coordinator_epoch=0) == old
    assert log.states[-1] == ("CompleteCommit" if commit else "CompleteAbort")


def test_a_takeover_completes_a_prepared_transaction_without_partitions():
    log = Log()
    log.init()
    log.holds = True
    log.end(1_000, 0, commit=False)
    log.records += log.pending
    log.holds = False
    log.take_over()
    assert log.states[-1] == "CompleteAbort"


def test_after_a_failed_append_every_waiter_is_answered_and_nothing_is_accepted():
    log = Log()
    log.holds = True
    log.init()
    log.init(name="other")
    log.carry_out(log.core.abandon(Code.not_coordinator))
    assert log.answers == [Initialized(Code.not_coordinator)] * 2
    log.carry_out(log.flush())
    assert len(log.answers) == 2
    assert log.init() == Initialized(Code.not_coordinator)
    assert log.add(1_000, 0, ORDERS) == Added(Code.not_coordinator)
    assert log.verify(1_000, 0, ORDERS) == {ORDERS: Code.not_coordinator}
    assert log.end(1_000, 0) == Ended(Code.not_coordinator)
    assert log.core.describe(ID) is Code.not_coordinator


# -- time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [2, 0])
def test_a_timeout_aborts_with_an_epoch_bump_so_the_producer_is_fenced(level):
    log = ongoing(level, version=level)
    log.tick(60_000)
    assert log.states[-1] == "Ongoing"
    log.tick(1)
    assert log.states[-1] == "PrepareAbort"
    marker = log.mark()
    assert (marker.commit, marker.epoch) == (False, 1)
    # In protocol 2 the epoch before the bump counts as the retry of an EndTxn, as in Kafka.
    code = Code.invalid_txn_state if level else Code.producer_fenced
    assert log.end(1_000, 0, version=level).error is code
    assert log.add(1_000, 0, ORDERS, version=level) == Added(Code.producer_fenced)


def test_a_timeout_waits_for_a_record_that_is_on_its_way():
    log = ongoing()
    log.holds = True
    log.end(1_000, 0)
    log.tick(60_001)
    log.carry_out(log.flush())
    assert log.states[-1] == "PrepareCommit"
    log.tick(600_000)
    assert not log.pending


def test_unused_ids_expire_after_seven_days_and_open_ones_never():
    log = Log()
    log.init()
    log.init(name="open")
    log.add(1_001, 0, ORDERS, name="open")
    log.holds = True
    log.tick(7 * DAY_MS)
    tombstones = [append for append in log.pending if append.metadata is None]
    assert tombstones == [Append(ID, None)]
    assert log.init() == Initialized(Code.concurrent_transactions)
    log.carry_out(log.flush())
    log.holds = False
    assert log.core.describe(ID) is Code.transactional_id_not_found
    assert log.init() == Initialized(Code.none, 1_002, 0)


def test_an_id_may_expire_while_a_refused_marker_would_be_sent_again():
    log = Log(id_expiration_ms=1_000)
    log.init()
    log.add(1_000, 0, ORDERS)
    log.end(1_000, 0)
    log.core._fenced[ID] = (log.markers[-1].producer_id, log.markers[-1].epoch)
    again = log.markers[-1]
    log.mark(Code.transaction_coordinator_fenced)
    assert log.held == 1
    log.markers.append(again)
    log.mark()  # an operator has helped, and a copy that was under way is answered
    log.tick(2_000)
    assert not list(log.core.metadata)
    log.tick(60_000)
    assert log.markers == []


def test_few_ids_expire_in_one_tick():
    log = Log(expired_at_once=3)
    for number in range(8):
        log.init(name=f"id {number}")
    log.tick(7 * DAY_MS)
    assert len(list(log.core.metadata)) == 5
    log.tick(10_000)
    assert len(list(log.core.metadata)) == 2


def test_a_view_shows_the_partitions_that_still_need_a_marker():
    log = ongoing()
    assert log.core.describe(ID).partitions == {ORDERS, STOCK}
    log.end(1_000, 0)
    log.mark(Code.none, ORDERS)
    (view,) = log.core.views()
    assert (view.state, view.partitions) == (TransactionState.PREPARE_COMMIT, {STOCK})
    assert log.core.describe("other") is Code.transactional_id_not_found
    assert log.core.describe("") is Code.invalid_request
