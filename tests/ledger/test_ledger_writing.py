"""Goal: what a ledger's writer decides, for every answer of bookies, store and timers.

Method: the pure machine, one fact per test: events in, effects out. Any order of events is in
`test_ledger_writing_orders`.
"""

import pytest

from ledger.core.add_pipeline import AddPipeline
from ledger.core.ledger_metadata import Versioned
from ledger.core.ledger_writing import (
    OVERLOADED_WAIT_S,
    OVERLOADED_WAIT_S_MAX,
    SPARE_WAIT_S,
    SPARE_WAIT_S_MAX,
    ChooseSpares,
    Closing,
    CompareAndSet,
    Confirm,
    Fail,
    LedgerWriting,
    ReadMetadata,
    Refusal,
    ReportHealth,
    ReportPlaced,
    StartTimer,
)
from ledger.errors import AddFailed, Fenced, LedgerClosed, LedgerError, StorageFull, Unauthorized
from tests.ledger.writing_rig import CHANGE_S_MAX, opened, slot_of, writing_of

UNHEALTHY = (Refusal.UNHEALTHY, "IO_ERROR")
FULL = (Refusal.NO_SPACE, "READ_ONLY")


def ack(writing, index, entry):
    return writing.adds.on_added(slot_of(writing, index).index, entry)


def refuse(writing, index, entry, refusal=UNHEALTHY, now_s=0.0):
    return writing.on_refused(slot_of(writing, index), entry, *refusal, now_s)


def request_of(writing, index, entry):
    """The choice of spares that a refusal asks for."""
    (request,) = [one for one in refuse(writing, index, entry) if isinstance(one, ChooseSpares)]
    return request


def proposed(writing, index=1, entry=0, spare="b9"):
    """The change that is to be stored after a refusal."""
    request = request_of(writing, index, entry)
    writing.on_spares_chosen(request, {index: spare}, (), 0.0)
    (change,) = writing.on_metadata_read(Versioned(writing.change.metadata, 5), 0.0)
    return change


def store(writing, change, version=6):
    stored = change.change.apply(change.known.metadata)
    return writing.on_change_stored(Versioned(stored, version), 0.0)


# A bookie refuses


def test_a_refusal_is_reported_and_asks_for_a_spare():
    writing = writing_of(entries=1)
    assert refuse(writing, 1, 0) == [
        ReportHealth("b1", ok=False),
        ChooseSpares(("b0", "b1", "b2"), (1,), 3, {"b1"}, retry=False),
    ]


def test_a_full_bookie_is_not_reported_as_ill():
    assert [type(one) for one in refuse(writing_of(entries=1), 1, 0, FULL)] == [ChooseSpares]


def test_a_bookie_that_has_failed_already_is_not_reported_again():
    writing = writing_of(entries=2)
    refuse(writing, 1, 0)
    assert [type(one) for one in refuse(writing, 1, 1)] == [ChooseSpares]


@pytest.mark.parametrize(
    ("refusal", "error"), [(Refusal.FENCED, Fenced), (Refusal.UNAUTHORIZED, Unauthorized)]
)
def test_a_writer_that_lost_its_ledger_fails_everything_pending(refusal, error):
    writing = writing_of(entries=3)
    (fail,) = refuse(writing, 1, 1, (refusal, refusal.name))
    assert (type(fail.error), fail.items) == (error, [0, 1, 2])
    assert str(fail.error).startswith("ledger 7 entry 1 at b1: ")
    assert ack(writing, 0, 0) == ack(writing, 1, 0) == []


def test_a_full_disk_is_the_reason_if_no_other_bookie_could_have_the_entry():
    writing = writing_of(1, 1, 1, entries=1)
    (request,) = refuse(writing, 0, 0, FULL)
    _, fail = writing.on_spares_chosen(request, {}, (), 0.0)
    assert (type(fail.error), fail.items) == (StorageFull, [0])


def test_an_answer_of_a_replaced_bookie_changes_nothing():
    writing = writing_of(entries=1)
    old = slot_of(writing, 1)
    store(writing, proposed(writing))
    assert writing.on_refused(old, 0, Refusal.FENCED, "FENCED", 0.0) == []
    assert writing.on_overloaded(old, 0, "item", 0.0) == []


# An overloaded bookie


def test_an_overloaded_bookie_is_retried_with_growing_delays_until_its_time_is_up():
    writing = writing_of(entries=1)
    (timer,) = writing.on_overloaded(slot_of(writing, 1), 0, "item", 100.0)
    delays_s, now_s = [], 100.0
    while isinstance(timer, StartTimer):
        delays_s.append(timer.delay_s)
        now_s += timer.delay_s
        (send,) = writing.on_timer(timer.retry, now_s)
        assert (send.slot.bookie, send.entry, send.item) == ("b1", 0, "item")
        timer, *others = writing.on_overloaded_again(send, "OVERLOADED", now_s)
    assert delays_s[:3] == [OVERLOADED_WAIT_S, 2 * OVERLOADED_WAIT_S, 4 * OVERLOADED_WAIT_S]
    assert max(delays_s) == OVERLOADED_WAIT_S_MAX
    assert 130.0 <= now_s <= 130.0 + OVERLOADED_WAIT_S_MAX
    assert [type(one) for one in (timer, *others)] == [ReportHealth, ChooseSpares]


def test_a_retry_ends_when_its_bookie_is_replaced():
    writing = writing_of(entries=1)
    (timer,) = writing.on_overloaded(slot_of(writing, 1), 0, "item", 0.0)
    store(writing, proposed(writing))
    assert writing.on_timer(timer.retry, 1.0) == []
    assert writing.on_overloaded_again(timer.retry, "OVERLOADED", 1.0) == []


# A change of the ensemble


def test_a_change_is_read_proposed_and_stored_then_confirming_goes_on():
    writing = writing_of(entries=2)
    assert ack(writing, 0, 1) == ack(writing, 1, 1) == []
    request = request_of(writing, 1, 0)
    assert writing.on_spares_chosen(request, {1: "b9"}, (), 0.0) == [ReadMetadata(7)]
    known = Versioned(opened(), 8)
    (change,) = writing.on_metadata_read(known, 0.0)
    assert (change.known, change.change.spares) == (known, {1: "b9"})
    assert ack(writing, 0, 0) == ack(writing, 2, 0) == []
    effects = store(writing, change, version=9)
    assert [(one.slot.bookie, one.entry) for one in effects[:-1]] == [("b9", 0), ("b9", 1)]
    assert effects[-1] == Confirm([0])
    assert writing.version == 9
    assert ack(writing, 1, 1) == [1]


def test_one_change_runs_at_a_time():
    writing = writing_of(entries=1)
    request = request_of(writing, 1, 0)
    writing.on_spares_chosen(request, {1: "b9"}, (), 0.0)
    assert [type(one) for one in refuse(writing, 2, 0)] == [ReportHealth]
    assert writing.on_spares_chosen(request, {1: "b8"}, (), 0.0) == []


def test_bookies_that_failed_during_a_change_are_replaced_by_the_next():
    writing = writing_of(entries=1)
    change = proposed(writing)
    refuse(writing, 2, 0)
    effects = store(writing, change)
    assert effects[-1] == ChooseSpares(("b0", "b9", "b2"), (2,), 3, {"b1", "b2"}, retry=False)


def test_before_the_proposal_an_unavailable_store_delays_no_confirm():
    writing = writing_of(entries=1)
    writing.on_spares_chosen(request_of(writing, 1, 0), {1: "b9"}, (), 0.0)
    assert writing.on_metadata_unavailable(LedgerError("away"), 1.0) == [ReadMetadata(7)]
    assert (ack(writing, 0, 0), ack(writing, 2, 0)) == ([], [0])
    assert writing.on_metadata_unavailable(LedgerError("away"), CHANGE_S_MAX) == [
        StartTimer(SPARE_WAIT_S, None)
    ]
    assert writing.adds.error is None


def test_an_entry_that_needed_the_change_fails_when_the_store_stays_away():
    writing = writing_of(entries=1)
    request = request_of(writing, 1, 0)
    refuse(writing, 2, 0)
    writing.on_spares_chosen(request, {1: "b9"}, (), 0.0)
    away = LedgerError("away")
    _, fail = writing.on_metadata_unavailable(away, CHANGE_S_MAX)
    assert fail == Fail(away, [0])


def test_after_the_proposal_the_change_is_retried_and_then_everything_fails():
    writing = writing_of(entries=1)
    change = proposed(writing)
    away = LedgerError("away")
    assert writing.on_metadata_unavailable(away, CHANGE_S_MAX - 0.1) == [change]
    assert writing.on_metadata_unavailable(away, CHANGE_S_MAX) == [Fail(away, [0])]


def test_a_change_that_a_rival_made_impossible_fails_the_writer():
    writing = writing_of(entries=2)
    change = proposed(writing)
    with pytest.raises(Fenced) as raised:
        change.change.apply(opened().in_recovery())
    assert writing.on_change_failed(raised.value) == [Fail(raised.value, [0, 1])]


def test_a_writer_that_failed_meanwhile_proposes_nothing():
    writing = writing_of(entries=1)
    writing.on_spares_chosen(request_of(writing, 1, 0), {1: "b9"}, (), 0.0)
    (fail,) = refuse(writing, 0, 0, (Refusal.FENCED, "FENCED"))
    assert fail.items == [0]
    (rest,) = writing.on_metadata_read(Versioned(opened(), 5), 0.0)
    assert (rest, writing.change.proposal) == (Fail(fail.error, []), None)


# No spare


def test_without_a_spare_a_timer_runs_and_entries_with_a_quorum_are_confirmed():
    writing = writing_of(entries=1)
    request = request_of(writing, 1, 0)
    assert writing.on_spares_chosen(request, {}, (), 0.0) == [StartTimer(SPARE_WAIT_S, None)]
    assert (ack(writing, 0, 0), ack(writing, 2, 0)) == ([], [0])


def test_without_a_spare_the_first_entry_that_lost_its_quorum_fails_with_all_after_it():
    writing = writing_of(entries=3)
    request = request_of(writing, 1, 1)
    writing.on_spares_chosen(request, {}, (), 0.0)
    _, request = refuse(writing, 2, 1)
    (fail,) = writing.on_spares_chosen(request, {}, (), 0.0)
    assert (type(fail.error), fail.items) == (AddFailed, []), "entry 0 may still be confirmed"
    assert (ack(writing, 0, 0), ack(writing, 1, 0)) == ([], [0])
    assert writing.after_confirm() == [Fail(fail.error, [1, 2])]


def test_while_the_timer_runs_only_an_entry_without_a_quorum_asks_for_spares():
    writing = writing_of(entries=3)
    writing.on_spares_chosen(request_of(writing, 1, 0), {}, (), 0.0)
    assert refuse(writing, 1, 1) == []
    assert [type(one) for one in refuse(writing, 2, 0)] == [ReportHealth, ChooseSpares]


def test_the_timer_retries_failed_bookies_that_are_live_and_runs_on_for_the_others():
    writing = writing_of(4, 4, 1, entries=1)
    for index in (1, 2):
        writing.on_spares_chosen(request_of(writing, index, 0), {}, (), 0.0)
        if index == 1:
            (request,) = writing.on_timer(None, 1.0)
            assert (request.indexes, request.retry) == ((1,), True)
            resend, *rest = writing.on_spares_chosen(request, {}, ("b1",), 1.0)
            assert (resend.slot.bookie, resend.entry, rest) == ("b1", 0, [])
    refuse(writing, 1, 0)
    (request,) = writing.on_timer(None, 2.0)
    resend, timer = writing.on_spares_chosen(request, {}, ("b2",), 2.0)
    assert (resend.slot.bookie, timer) == ("b2", StartTimer(4 * SPARE_WAIT_S, None))


def test_the_delay_for_spares_doubles_to_a_bound_and_a_change_resets_it():
    writing = writing_of(entries=1)
    (timer,) = writing.on_spares_chosen(request_of(writing, 1, 0), {}, (), 0.0)
    delays_s = [timer.delay_s]
    for _ in range(6):
        (request,) = writing.on_timer(None, 0.0)
        (timer,) = writing.on_spares_chosen(request, {}, (), 0.0)
        delays_s.append(timer.delay_s)
    assert delays_s == [0.1, 0.2, 0.4, 0.8, 1.6, SPARE_WAIT_S_MAX, SPARE_WAIT_S_MAX]
    (request,) = writing.on_timer(None, 0.0)
    writing.on_spares_chosen(request, {1: "b9"}, (), 0.0)
    (change,) = writing.on_metadata_read(Versioned(opened(), 5), 0.0)
    store(writing, change)
    assert writing.on_spares_chosen(request_of(writing, 2, 0), {}, (), 0.0) == [
        StartTimer(SPARE_WAIT_S, None)
    ]


def test_with_nothing_pending_the_timer_ends():
    writing = writing_of(entries=1)
    writing.on_spares_chosen(request_of(writing, 1, 0), {}, (), 0.0)
    assert (ack(writing, 0, 0), ack(writing, 2, 0)) == ([], [0])
    assert writing.on_timer(None, 1.0) == []


# Closing


def test_a_close_waits_for_pending_entries_and_for_a_change():
    writing = writing_of(entries=1)
    change = proposed(writing)
    writing.on_close()
    assert (ack(writing, 0, 0), ack(writing, 2, 0)) == ([], [])
    assert writing.close_request() is None
    store(writing, change, version=9)
    request = writing.close_request()
    assert request == CompareAndSet(Versioned(writing.change.metadata, 9), Closing(0, 10))


def test_a_close_waits_for_a_change_of_which_nothing_is_pending():
    writing = writing_of(entries=1)
    writing.on_spares_chosen(request_of(writing, 1, 0), {1: "b9"}, (), 0.0)
    assert (ack(writing, 0, 0), ack(writing, 2, 0)) == ([], [0])
    writing.on_close()
    assert writing.close_request() is None
    writing.on_metadata_unavailable(LedgerError("away"), CHANGE_S_MAX)
    assert writing.close_request() is not None


def test_a_writer_that_failed_cannot_close():
    writing = writing_of(entries=1)
    refuse(writing, 0, 0, (Refusal.FENCED, "FENCED"))
    writing.on_close()
    with pytest.raises(Fenced):
        writing.close_request()


def test_a_closing_writer_replaces_a_bookie_only_for_an_entry_that_needs_it():
    writing = writing_of(entries=1)
    writing.on_close()
    assert request_of(writing, 1, 0).indexes == ()
    assert request_of(writing, 2, 0).indexes == (1, 2)
    ack(writing, 0, 0)


def test_a_copy_that_is_refused_after_the_last_confirm_needs_no_change():
    writing = writing_of(entries=1)
    writing.on_close()
    assert (ack(writing, 0, 0), ack(writing, 2, 0)) == ([], [0])
    assert refuse(writing, 1, 0) == []


def test_a_closed_ledger_reports_its_bytes_and_the_bookies_that_took_them():
    writing = writing_of(entries=1)
    writing.on_spares_chosen(request_of(writing, 1, 0), {}, (), 0.0)
    assert (ack(writing, 0, 0), ack(writing, 2, 0)) == ([], [0])
    stored = Versioned(writing.change.metadata.close(0, 10), 6)
    assert writing.on_closed(stored) == [
        ReportPlaced(("b0", "b1", "b2"), 10),
        ReportHealth("b0", ok=True),
        ReportHealth("b2", ok=True),
    ]


@pytest.mark.parametrize(
    ("stored", "error"),
    [(opened().in_recovery(), Fenced), (opened().close(3, 9), LedgerClosed)],
    ids=["in recovery", "closed elsewhere"],
)
def test_a_close_of_a_lost_ledger_is_withdrawn(stored, error):
    with pytest.raises(error):
        Closing(4, 50).apply(stored)


def test_a_close_whose_reply_was_lost_is_recognised():
    closing = Closing(4, 50)
    assert closing.apply(closing.apply(opened())) is None


def test_a_writer_is_of_a_new_open_ledger_only():
    adds = AddPipeline(ensemble_size=3, write_quorum=3, ack_quorum=2, entries_max=1, bytes_max=1)
    limits = {"overloaded_s_max": 1.0, "change_s_max": 1.0, "failed_bookie_pause_s": 1.0}
    for metadata in (opened().in_recovery(), opened().with_ensemble(4, ("b0", "b1", "b9"))):
        with pytest.raises(AssertionError):
            LedgerWriting(Versioned(metadata, 0), adds, **limits)
