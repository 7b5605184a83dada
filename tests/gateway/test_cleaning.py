"""Goal: cleaning keeps the last value of each key, its offset included, and loses nothing else.

Method: random logs by Hypothesis, with transactions, tombstones and codecs, cleaned in rounds with
maps of all sizes. A consumer reads them after each swap of a segment, and a model that knows every
committed record says what it must find. Single rules have logs by hand.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core import cleaned_batches, record_blocks
from gateway.core.cleaned_batches import DELETE_HORIZON, plain_records, with_kept
from gateway.core.cleaning import COUNT_MAX, Cleaning
from gateway.core.cleaning_keys import KEY_BYTES, KeyMap, key_words
from gateway.core.cleaning_results import NOT_FULL, PoisonedBatch
from gateway.core.cleaning_transactions import CleanedTransactions
from gateway.core.partition_transactions import AbortedTransaction
from gateway.wire.batches import BatchRefused, read_header, with_records
from gateway.wire.record_parts import record_parts
from tests.gateway.cleaning_log import DAY_MS, ROOM, Log, keyed_batch, last_values

KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"a-key-of-more-than-16-bytes", b""])
RECORDS = st.lists(
    st.tuples(KEYS, st.sampled_from([b"", b"one", b"two" * 90, None])), min_size=1, max_size=4
)
PRODUCERS = st.integers(1, 3)
STEPS = st.one_of(
    st.tuples(st.just("plain"), RECORDS, st.integers(0, 4)),
    st.tuples(st.just("part"), RECORDS, PRODUCERS),
    st.tuples(st.just("end"), PRODUCERS, st.booleans()),
    st.tuples(st.just("roll")),
    st.tuples(st.just("clean"), st.integers(1, 6), st.integers(0, 3)),
)


def write(log, step):
    match step:
        case ("plain", records, codec):
            log.append(records, codec=codec)
        case ("part", records, producer):
            log.append(records, producer=producer, transactional=True)
        case ("end", producer, commit):
            log.end_transaction(producer, commit=commit)
        case _:
            log.roll()


@settings(max_examples=300, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_at_every_moment_readers_find_the_last_value_of_each_key(steps):
    log = Log()
    now = 0

    def check():
        found = log.read()
        assert last_values(found) == log.newest()
        assert found.items() <= log.live.items(), "no record has moved, changed or come back"

    for step in steps:
        if step[0] == "clean":
            now += step[2] * DAY_MS // 2
            log.round(now=now, room=step[1] * KEY_BYTES, after_swap=check)
        else:
            write(log, step)
    log.end_transaction(1, commit=True)
    log.append([(b"last", b"one")])
    log.roll()
    log.clean(now=now, after_swap=check)


@settings(max_examples=100, deadline=None)
@given(st.lists(STEPS, max_size=30), st.integers(1, 20))
def test_a_cleaned_log_has_each_key_once_whatever_the_room(steps, room):
    log = Log()
    for step in steps:
        write(log, step)
    for producer in (1, 2, 3):
        log.end_transaction(producer, commit=producer == 1)
    log.roll()
    log.clean(room=room * KEY_BYTES)
    keys = [key for key, _ in log.read().values()]
    # A segment that did not fit into the map with those before it may be newer than they are.
    if room > 10:
        assert len(keys) == len(set(keys))
    log.redirty()
    log.clean(now=1)
    again = [key for key, _ in log.read().values()]
    assert len(again) == len(set(again))


def test_a_segment_with_more_keys_than_the_map_holds_is_cleaned_in_rounds():
    log = Log()
    for value in (b"old", b"new"):
        log.append([(b"%d" % key, value) for key in range(50)])
    log.roll()
    log.clean(room=7 * KEY_BYTES)
    assert list(log.read()) == list(range(50, 100))


def test_the_map_refuses_new_keys_when_it_is_full_and_still_moves_known_ones():
    keys = KeyMap(2 * KEY_BYTES)
    a, b, c = key_words([b"a"]), key_words([b"b" * 40]), key_words([b"c"])
    assert keys.put(np.concatenate((a, b)), np.array([1, 2])) == 2
    assert keys.put(np.concatenate((b, c, a)), np.array([4, 5, 6])) == 1
    assert (*keys.newest(a), *keys.newest(b), *keys.newest(c)) == (1, 4, -1)
    assert len(keys) == 2


# -- tombstones and markers -------------------------------------------------------------------


def horizons(log):
    headers = [read_header(batch) for s in log.segments for _, _, batch in s.stored]
    return [h.base_timestamp for h in headers if h.attributes & DELETE_HORIZON]


def test_a_tombstone_stays_for_delete_retention_from_the_first_cleaning_that_met_it():
    log = Log()
    log.append([(b"a", b"one"), (b"a", None)])
    log.roll()
    log.clean(now=10)
    assert log.read() == {1: (b"a", None)}
    assert horizons(log) == [10 + DAY_MS]
    log.redirty()
    log.clean(now=9 + DAY_MS)
    assert log.read() == {1: (b"a", None)}
    assert horizons(log) == [10 + DAY_MS]
    log.redirty()
    log.clean(now=10 + DAY_MS)
    assert log.read() == {}


def test_a_new_horizon_keeps_the_timestamps_and_headers_of_the_records():
    for codec in range(5):
        log = Log()
        log.append([(b"a", b"one"), (b"b", None), (b"c", b"three")], codec=codec)
        log.roll()
        before = decoded(log)
        log.clean(now=10**12)
        after = decoded(log)
        assert after == before
        assert horizons(log) == [10**12 + DAY_MS]
        assert read_header(log.segments[0].stored[0][2]).attributes & 7 == codec


def test_a_timestamp_at_the_end_of_64_bits_stays_through_two_cleanings():
    log, lowest = Log(), -(2**63)
    log.append([(b"a", None), (b"b", None)], at=lowest)
    log.roll()
    for now, kept in ((10**12, [0, 1]), (10**12 + 1, [1])):
        log.clean(now=now)
        ((_, _, batch),) = log.segments[0].stored
        header = read_header(batch)
        parts = record_parts(batch[61:], 0, header.records)
        found = {p.offset: (header.base_timestamp + p.timestamp) % 2**64 for p in parts}
        assert found == {at: (lowest + at) % 2**64 for at in kept}
        assert header.max_timestamp == lowest + 1
        log.append([(b"a", b"new")])
        log.roll()
        log.redirty()


def decoded(log):
    from aiokafka.record.default_records import DefaultRecordBatch

    return [
        (r.offset, r.timestamp, r.key, r.value, r.headers)
        for s in log.segments
        for _, _, batch in s.stored
        for r in DefaultRecordBatch(bytes(batch))
    ]


def markers(log):
    headers = [read_header(batch) for s in log.segments for _, _, batch in s.stored]
    return [h.base_offset for h in headers if h.attributes & 0x20]


def test_a_marker_stays_until_no_record_of_its_transaction_is_left_and_then_for_its_time():
    log = Log()
    log.append([(b"a", b"one")], producer=1, transactional=True)
    log.end_transaction(1, commit=True)
    log.roll()
    for now in (0, 2 * DAY_MS):  # its record is there
        log.clean(now=now)
        log.redirty()
    assert (markers(log), horizons(log)) == ([1], [])
    log.append([(b"a", b"two")])
    log.roll()
    log.clean(now=3 * DAY_MS)  # its record goes in this round
    assert (markers(log), horizons(log)) == ([1], [])
    log.redirty()
    log.clean(now=3 * DAY_MS)
    assert (markers(log), horizons(log)) == ([1], [4 * DAY_MS])
    log.redirty()
    log.clean(now=4 * DAY_MS)
    assert markers(log) == []
    assert log.read() == {2: (b"a", b"two")}


def test_aborted_records_go_at_once_and_hide_nothing():
    log = Log()
    log.append([(b"a", b"one")])
    log.append([(b"a", b"two"), (b"b", b"two")], producer=1, transactional=True)
    log.end_transaction(1, commit=False)
    log.roll()
    log.clean()
    assert log.read() == {0: (b"a", b"one")}
    assert len(log.segments[0].aborted) == 1, "readers of the old ledger still look it up"
    log.redirty()
    log.clean()
    assert log.segments[0].aborted == []


def test_an_aborted_transaction_with_a_later_marker_goes_too():
    log = Log()
    log.append([(b"a", b"two")], producer=1, transactional=True)
    log.roll()
    log.end_transaction(1, commit=False)
    log.append([(b"z", b"z")], producer=1, transactional=True)
    log.end_transaction(1, commit=True)
    log.roll()
    log.clean()
    assert log.read() == {2: (b"z", b"z")}


def test_an_aborted_transaction_ends_before_later_batches_of_its_producer_without_its_marker():
    transactions = CleanedTransactions()
    transactions.add([AbortedTransaction(1, 0, 5, 6)])
    assert transactions.aborted_with(1, 0) is not None
    assert transactions.aborted_with(1, 6) is None
    assert not transactions.end(1, 7, commit=True)


# -- batches ------------------------------------------------------------------------------------


def test_a_gap_is_covered_by_the_batch_behind_it_and_at_the_end_by_an_empty_one():
    log = Log()
    log.append([(b"a", b"old")] * 3)
    log.append([(b"b", b"one")])
    log.append([(b"a", b"old")])
    log.roll()
    log.append([(b"a", b"new")])
    log.roll()
    log.clean()
    places = [(first, count) for first, count, _ in log.segments[0].stored]
    assert places == [(0, 4), (4, 1)]
    headers = [read_header(batch) for _, _, batch in log.segments[0].stored]
    assert [(h.base_offset, h.last_offset_delta, h.records) for h in headers] == [
        (3, 0, 1),
        (4, 0, 0),
    ]
    assert {h.leader_epoch for h in headers} == {3}


def test_a_gap_larger_than_one_record_can_cover_gets_empty_batches():
    cleaning = Cleaning()
    far = 3 * COUNT_MAX
    cleaning.begin_filter(0, 0)
    cleaning.begin_segment(0, far + 10, [])
    kept = cleaning.filter_batches(keyed_batch([(b"a", b"one")], base=far))
    kept += cleaning.end_segment().batches
    assert sum(each.offsets for each in kept) == far + 10
    assert all(0 < each.offsets <= COUNT_MAX for each in kept)
    at = 0
    for each in kept:
        header = read_header(each.data)
        at += each.offsets
        assert header.base_offset + header.last_offset_delta + 1 == at


def test_a_batch_that_keeps_all_records_stays_byte_for_byte():
    log = Log()
    log.append([(b"a", b"one"), (b"b", b"two")], codec=1, producer=9)
    log.roll()
    before = log.segments[0].stored
    log.clean()
    assert log.segments[0].stored == before


def test_a_batch_without_some_records_keeps_producer_offsets_and_the_greatest_timestamp():
    log = Log()
    log.append([(b"a", b"1"), (b"b", b"2"), (b"b", b"3"), (b"a", b"4")], producer=9, codec=4)
    log.append([(b"a", b"5")])
    log.roll()
    log.clean()
    (first, count, batch), _ = log.segments[0].stored
    header = read_header(batch)
    assert (first, count) == (0, 4)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 0, 0)
    assert (header.last_offset_delta, header.records, header.max_timestamp) == (3, 1, 1002)
    assert log.read() == {2: (b"b", b"3"), 4: (b"a", b"5")}


def test_records_without_a_key_go():
    log = Log()
    log.append([(None, b"one"), (b"a", b"two")])
    log.roll()
    log.clean()
    assert log.read() == {1: (b"a", b"two")}


def test_a_damaged_batch_is_named_by_its_offset():
    cleaning = Cleaning()
    cleaning.begin_map(ROOM, 0)
    cleaning.begin_segment(0, 10, [])
    good = keyed_batch([(b"a", b"one"), (b"b", b"two")])
    bad = bytearray(keyed_batch([(b"c", b"one")], base=2))
    bad[-1] ^= 1
    for work in (cleaning.map_batches, cleaning.filter_batches):
        try:
            work(good + bytes(bad))
        except PoisonedBatch as poisoned:
            assert poisoned.offset == 2
            assert "CRC" in str(poisoned)
        else:
            raise AssertionError("the damage was not noticed")


def a_block_cannot_be_looked_up(patch):
    patch.setattr(KeyMap, "newest", failing)


def a_block_cannot_be_put(patch):
    patch.setattr(KeyMap, "put", failing)


def columns_cannot_be_built(patch):
    patch.setattr(record_blocks, "columns_of", failing)


def a_batch_cannot_be_divided(patch):
    patch.setattr(record_blocks, "portions_of", lambda *_: map(failing, [0]))


def a_batch_cannot_be_decompressed(patch):
    patch.setattr(cleaned_batches, "plain_records", failing)


def failing(*_):
    raise IndexError("nobody expected this")


UNEXPECTED = [
    (a_block_cannot_be_looked_up, [Cleaning.mark_batches, Cleaning.filter_batches]),
    (a_block_cannot_be_put, [Cleaning.map_batches]),
    *(
        (mistake, [Cleaning.map_batches, Cleaning.mark_batches, Cleaning.filter_batches])
        for mistake in (
            columns_cannot_be_built,
            a_batch_cannot_be_divided,
            a_batch_cannot_be_decompressed,
        )
    ),
]


@pytest.mark.parametrize(
    ("mistake", "work"),
    [(mistake, work) for mistake, works in UNEXPECTED for work in works],
    ids=lambda each: each.__name__,
)
def test_what_nobody_expected_of_a_batch_names_its_offset_too(mistake, work, monkeypatch):
    cleaning = Cleaning()
    cleaning.begin_map(ROOM, 0)
    cleaning.begin_marks(100, 103)
    cleaning.begin_filter(0, 0)
    cleaning.begin_segment(100, 103, [])
    batches = keyed_batch([(b"a", b"one"), (b"b", b"two")], base=100, codec=1)
    mistake(monkeypatch)
    with pytest.raises(PoisonedBatch, match="offset 100 cannot be cleaned: IndexError: nobody"):
        work(cleaning, batches + keyed_batch([(b"a", b"three")], base=102))


def test_a_record_outside_of_its_segment_is_named_by_its_batch():
    cleaning = Cleaning()
    cleaning.begin_map(ROOM, 0)
    cleaning.begin_segment(0, 2, [])
    cleaning.map_batches(keyed_batch([(b"a", b"two")], base=200))
    cleaning.begin_marks(0, 2)
    with pytest.raises(PoisonedBatch, match="offset 100 cannot be cleaned: a record of it"):
        cleaning.mark_batches(keyed_batch([(b"a", b"one")], base=100))


@given(st.lists(st.tuples(KEYS, st.sampled_from([None, b"", b"v" * 200])), min_size=1, max_size=90))
def test_records_are_found_as_another_decoder_finds_them(records):
    from aiokafka.record.default_records import DefaultRecordBatch

    batch = keyed_batch(records)
    parts = list(record_parts(batch[61:], 0, len(records)))
    assert [(p.offset, p.timestamp + 1000, p.key, p.tombstone) for p in parts] == [
        (r.offset, r.timestamp, r.key, r.value is None) for r in DefaultRecordBatch(batch)
    ]


def test_a_batch_of_many_records_takes_little_memory():
    """A megabyte of compressed batch can hold millions of records."""
    import tracemalloc

    count = 100_000
    batch = keyed_batch([(b"%d" % (at % 64), b"") for at in range(count)], codec=1)
    plain = len(plain_records(memoryview(batch), read_header(batch)))

    def cleaned():
        cleaning = Cleaning()
        cleaning.begin_map(64 * KEY_BYTES, 0)
        cleaning.begin_segment(0, count, [])
        assert cleaning.map_batches(batch) == NOT_FULL
        cleaning.begin_filter(0, 0)
        cleaning.begin_segment(0, count, [])
        (kept,) = cleaning.filter_batches(batch)
        return kept

    cleaned()  # what is imported at the first use takes memory too
    tracemalloc.start()
    try:
        kept = cleaned()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert read_header(kept.data).records == 64
    # Zlib alone takes 3.8 times: it doubles its output until all fits, and then copies it.
    assert peak < 4.3 * plain


def test_a_rewritten_batch_is_as_compressed_as_its_producer_made_it():
    """Otherwise it may be larger than any entry, and its log is never cleaned."""
    import random

    import zstandard

    value = random.Random(7).randbytes(3 * 1024 * 1024)
    plain = keyed_batch([(b"%d" % (at % 4), value) for at in range(5)])
    header = read_header(plain)
    packed = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(window_log=23, enable_ldm=True)
    ).compress(plain[61:])
    batch = with_records(header, 4, packed)
    assert len(batch) < 4 * 1024 * 1024
    cleaning = Cleaning()
    cleaning.begin_map(ROOM, 0)
    cleaning.begin_segment(0, 5, [])
    cleaning.map_batches(batch)
    cleaning.begin_filter(0, 0)
    cleaning.begin_segment(0, 5, [])
    (kept,) = cleaning.filter_batches(batch)
    assert read_header(kept.data).records == 4
    assert len(kept.data) < 4 * 1024 * 1024
    data = plain_records(memoryview(kept.data), read_header(kept.data))
    assert [part.offset for part in record_parts(data, 0, 4)] == [1, 2, 3, 4]


def test_a_batch_that_would_be_too_large_makes_its_log_uncleanable():
    batch = keyed_batch([(b"a", b"v" * (1 << 24)), (b"b", b"v")])
    with pytest.raises(BatchRefused, match="at most 16777216 are stored"):
        with_kept(read_header(batch), batch[61:], 2, 1000)
