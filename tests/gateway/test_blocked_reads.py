"""Goal: it is known where readers wait, for what, and for how long. Method: the pure core."""

from gateway.core.blocked_reads import (
    EXPIRY_S,
    PLACES_MAX,
    STALLED_S,
    STUCK_S,
    BlockedReads,
)


def test_a_reader_is_stalled_after_30_seconds_and_stuck_after_121():
    reads = BlockedReads()
    for now_s in range(0, 130, 5):
        reads.on_failed(7, now_s, lost=True)
        assert reads.readers_blocked(STALLED_S, now_s) == (now_s >= 30)
        assert reads.readers_blocked(STUCK_S, now_s) == (now_s >= 121)


def test_a_reader_that_does_not_ask_again_is_gone():
    reads = BlockedReads()
    assert reads.on_failed(7, 0, lost=True)
    assert not reads.on_failed(7, EXPIRY_S, lost=True)
    assert reads.places(0, 2 * EXPIRY_S)
    assert not reads.places(0, 2 * EXPIRY_S + 1)
    assert not reads
    assert reads.on_failed(7, 3 * EXPIRY_S, lost=True)
    assert not reads.readers_blocked(1, 3 * EXPIRY_S)


def test_a_reason_names_the_loss_or_the_bookies():
    reads = BlockedReads()
    reads.on_failed(7, 0, lost=True)
    reads.on_failed(9, 0, lost=False, waits_for=("bookie-2", "bookie-3"))
    reads.on_failed(11, 0, lost=False)
    reads.on_failed(13, 0, lost=True, stopped=True)
    assert [place.text for place in reads.places(0, 0)] == [
        "blocked at offset 7: lost",
        "blocked at offset 9: waiting for bookie-2, bookie-3",
        "blocked at offset 11: waiting for its bookies",
        "blocked at offset 13: lost (gateway.loss.delivery=stop)",
    ]


def test_a_read_unblocks_what_it_passes_and_truncation_hides_the_rest():
    reads = BlockedReads()
    for offset in (3, 5, 7, 9):
        reads.on_failed(offset, 0, lost=offset == 7)
    assert not reads.on_read(5, 7)
    assert [place.offset for place in reads.places(0, 0)] == [3, 7, 9]
    assert [place.offset for place in reads.places(4, 0)] == [7, 9]
    assert reads.on_read(6, 8)
    assert [place.offset for place in reads.places(0, 0)] == [3, 9]


def test_offsets_within_one_loss_count_once():
    reads = BlockedReads()
    for offset in (5, 8, 12):
        reads.on_failed(offset, 0, lost=True)
    assert [place.lost_offsets for place in reads.places(0, 0)] == [1, 1, 1]
    reads.know_following(5, 12)
    reads.know_following(99, 120)
    assert [(each.offset, each.lost_offsets) for each in reads.places(0, 0)] == [(5, 7), (12, 1)]
    reads.on_failed(5, 1, lost=True)
    assert [each.lost_offsets for each in reads.places(0, 1)] == [7, 1]


def test_an_entry_that_may_return_is_shown_also_within_a_loss():
    """The readers behind it are other ones, and the loss may have been measured before."""
    reads = BlockedReads()
    reads.on_failed(5, 0, lost=True)
    reads.know_following(5, 12)
    reads.on_failed(8, 0, lost=False, waits_for=("bookie-2",))
    assert [(each.offset, each.lost) for each in reads.places(0, 0)] == [(5, True), (8, False)]


def test_a_reader_that_asks_again_stays_though_nothing_is_read():
    reads = BlockedReads()
    assert not reads.on_asked(7, 0)
    reads.on_failed(7, 0, lost=True)
    assert reads.on_asked(7, EXPIRY_S)
    assert reads.readers_blocked(EXPIRY_S, 2 * EXPIRY_S) == 1
    assert reads.any_lost(2 * EXPIRY_S)
    assert not reads.on_asked(7, 2 * EXPIRY_S + 1)
    assert not reads.any_lost(2 * EXPIRY_S + 1)


def test_places_are_bounded_and_the_oldest_is_forgotten_first():
    reads = BlockedReads()
    for offset in range(3 * PLACES_MAX):
        reads.on_failed(offset, offset / 100, lost=True)
    found = [place.offset for place in reads.places(0, 1)]
    assert found == list(range(2 * PLACES_MAX, 3 * PLACES_MAX))
