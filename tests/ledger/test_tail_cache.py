"""Goal: the tail cache returns consecutive records, never exceeds its bound, and frees evicted
records. Method: random steps on several streams against plain lists.
"""

import gc
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from ledger.streams.tail_cache import RECORD_BYTES, StoredRecord, StreamTail, TailCache

MIB = 1 << 20


def record(at, records=2, size=10, data=b""):
    return StoredRecord(at, at + records, -1, size, (data,))


def counted(records):
    """Return the bytes that these records count: their data and their objects."""
    return sum(each.size_bytes + RECORD_BYTES for each in records)


steps = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["append"] * 8 + ["clear"]), st.integers(1, 40)),
    max_size=200,
)


def check(tail, held, end):
    """Check that the tail returns exactly these records, from any place."""
    for sequence_id in range(end + 2):
        at = tail.find(sequence_id)
        due = [each for each in held if each.end_sequence_id > sequence_id]
        assert (at >= 0) == bool(due and due[0].sequence_id <= sequence_id)
        if at >= 0:
            assert tail.take(at, 10**9) == due


@given(steps, st.integers(0, 100 * RECORD_BYTES))
def test_it_holds_the_newest_of_all_streams_within_its_bound(taken, bytes_max):
    cache = TailCache(bytes_max)
    tails = [StreamTail(cache) for _ in range(3)]
    order, ends = [], [0, 0, 0]
    for number, step, size in taken:
        if step == "clear":
            tails[number].clear()
            order = [one for one in order if one[0] != number]
        else:
            one = record(ends[number], size=size)
            ends[number] = one.end_sequence_id
            tails[number].append(one)
            order.append((number, one))
            while counted(each for _, each in order) > bytes_max:
                order.pop(0)
        assert cache.bytes_held == counted(each for _, each in order) <= bytes_max
        for stream, tail in enumerate(tails):
            check(tail, [each for owner, each in order if owner == stream], ends[stream])


def test_a_read_takes_at_least_one_record_and_else_what_fits():
    tail = StreamTail(TailCache(MIB))
    for at in range(0, 10, 2):
        tail.append(record(at, size=10))
    sizes = [len(tail.take(tail.find(3), bytes_max)) for bytes_max in (-5, 0, 9, 10, 19, 20, 999)]
    assert sizes == [1, 1, 1, 1, 1, 2, 4]


def test_an_evicted_record_keeps_no_memory():
    tail = StreamTail(TailCache(RECORD_BYTES + 15))
    data = bytearray(b"x")
    tail.append(record(0, data=data))
    tail.append(record(2))
    assert [one for one in gc.get_referrers(data) if isinstance(one, tuple)] == []


def test_small_records_take_no_more_memory_than_is_counted():
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        cache = TailCache(4 * MIB)
        tails = [StreamTail(cache) for _ in range(3)]
        for number in range(30_000):
            at = 1_000_000 + number
            frame = bytes(80 + number % 200)
            data = (frame[:16], memoryview(frame)[16:])  # the pieces of a batch with its offset
            tails[number % 3].append(
                StoredRecord(at, at + 1, 1_700_000_000_000 + number, len(frame), data)
            )
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 3 * MIB < after - before <= cache.bytes_max


def test_streams_that_come_and_go_leave_nothing_behind():
    cache = TailCache(1 << 30)
    for _ in range(3000):
        tail = StreamTail(cache)
        for at in range(0, 20, 2):
            tail.append(record(at))
        tail.clear()
    assert cache.bytes_held == 0
    assert len(cache) < 5000


def test_it_says_how_old_its_oldest_record_is_and_what_it_answered():
    now = [100.0]
    cache = TailCache(10 * (MIB + RECORD_BYTES), lambda: now[0])
    tail = StreamTail(cache)
    for number in range(40):
        now[0] = 100.0 + number
        tail.append(StoredRecord(number, number + 1, -1, MIB, ()))
    assert cache.bytes_held == 10 * (MIB + RECORD_BYTES)
    assert cache.seconds_held() == 9.0
    now[0] = 200.0
    assert cache.seconds_held() == 70.0
    for number in (35, 39):
        tail.take(tail.find(number), 1)
    tail.missed([])
    tail.missed(None)
    assert (cache.hits, cache.misses) == (2, 1)
    tail.clear()
    assert cache.seconds_held() == 0.0
