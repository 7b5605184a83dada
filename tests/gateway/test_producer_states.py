"""Goal: sequences are checked as by Kafka, and the state as of an offset is that of a broker that
has seen only the batches below it. Method: Kafka's table by hand; a dumb twin that keeps every
batch, on random producers; encoded states are decoded again, whole and truncated.
"""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from gateway.core.producer_states import (
    SEQUENCE_MAX,
    WINDOW,
    AcceptedBatch,
    ProducerStates,
    sequence_after,
    sequence_distance,
)

MINUTE_MS = 60_000
OK = ErrorCode.none
OUT_OF_ORDER = ErrorCode.out_of_order_sequence_number


def accept(states, producer, epoch, first, records, offset, now_ms=0, durable=0):
    states.accept(producer, epoch, first, records, offset, -1, now_ms, durable_offset=durable)


def expire(states, now_ms, after_ms, durable=10**9):
    while states.expire(now_ms, after_ms, 10, durable_offset=durable):
        pass


def load(states, data):
    """Load all of `data`; the number of pauses."""
    return sum(1 for _ in states.load(data))


def filled(batches, producer=1, epoch=0, records=2):
    states = ProducerStates()
    for number in range(batches):
        accept(states, producer, epoch, number * records, records, 100 + number * records)
    return states


def test_the_newest_batch_of_each_producer_is_known_whether_in_use_or_settled():
    states = filled(3)
    accept(states, 2, 4, 7, 3, 106)
    expire(states, 2 * MINUTE_MS, 60 * MINUTE_MS)
    accept(states, 1, 0, 6, 2, 109, 2 * MINUTE_MS)
    assert sorted(states.producer_ids) == [1, 2]
    assert states.newest(1) == AcceptedBatch(0, 6, 7, 109, -1)
    assert states.newest(2) == AcceptedBatch(4, 7, 9, 106, -1)
    assert states.newest(3) is None


# -- Kafka's table --------------------------------------------------------------------------------


@pytest.mark.parametrize("sequence", [0, 5, SEQUENCE_MAX])
def test_an_unknown_producer_may_begin_anywhere(sequence):
    assert ProducerStates().check(1, 3, sequence, 1) is OK


def test_the_next_sequence_is_the_next_batch():
    assert filled(3).check(1, 0, 6, 2) is OK


@pytest.mark.parametrize("number", range(7))
def test_a_repeat_of_the_newest_five_gets_its_first_offset(number):
    verdict = filled(7).check(1, 0, number * 2, 2)
    if number < 2:
        assert verdict is OUT_OF_ORDER
    else:
        assert isinstance(verdict, AcceptedBatch)
        assert verdict.base_offset == 100 + number * 2
        assert verdict.end_offset == 102 + number * 2


@pytest.mark.parametrize(("first", "records"), [(4, 1), (4, 3), (5, 1), (8, 2), (7, 2), (3, 2)])
def test_anything_else_is_out_of_order(first, records):
    assert filled(3).check(1, 0, first, records) is OUT_OF_ORDER


def test_an_older_epoch_is_fenced_even_for_a_repeat():
    states = filled(2, epoch=4)
    assert states.check(1, 3, 0, 2) is ErrorCode.invalid_producer_epoch
    assert states.check(1, 3, 4, 2) is ErrorCode.invalid_producer_epoch


def test_a_newer_epoch_begins_at_zero():
    states = filled(2)
    assert states.check(1, 1, 0, 1) is OK
    assert states.check(1, 1, 4, 2) is OUT_OF_ORDER


def test_a_newer_epoch_forgets_the_batches_of_the_older():
    states = filled(3)
    accept(states, 1, 1, 0, 2, 200)
    verdict = states.check(1, 1, 0, 2)
    assert isinstance(verdict, AcceptedBatch)
    assert verdict.base_offset == 200
    assert states.check(1, 1, 4, 2) is OUT_OF_ORDER


def test_sequences_wrap_to_zero_after_the_greatest():
    assert sequence_after(SEQUENCE_MAX, 1) == 0
    assert sequence_distance(SEQUENCE_MAX, 0) == 1
    states = ProducerStates()
    accept(states, 1, 0, SEQUENCE_MAX - 1, 3, 50)
    assert states.check(1, 0, 1, 1) is OK
    verdict = states.check(1, 0, SEQUENCE_MAX - 1, 3)
    assert isinstance(verdict, AcceptedBatch)
    assert (verdict.last_sequence, verdict.end_offset) == (0, 53)


def test_a_batch_that_ends_on_the_greatest_sequence_is_followed_by_zero():
    states = ProducerStates()
    accept(states, 1, 0, SEQUENCE_MAX, 1, 50)
    assert states.check(1, 0, 0, 5) is OK


def test_producers_do_not_know_each_other():
    states = filled(3)
    assert states.check(2, 0, 77, 1) is OK


def test_one_unused_for_a_day_is_forgotten_and_the_others_are_not():
    states = ProducerStates()
    accept(states, 1, 0, 0, 1, 0, now_ms=0)
    accept(states, 2, 0, 0, 1, 1, now_ms=900)
    expire(states, now_ms=MINUTE_MS + 1000, after_ms=MINUTE_MS + 999)
    assert len(states) == 1
    assert states.check(1, 0, 55, 1) is OK
    assert states.check(2, 0, 55, 1) is OUT_OF_ORDER


def test_expiry_is_in_the_order_of_the_last_use_with_bounded_work():
    states = ProducerStates()
    for number in range(20):
        accept(states, number, 0, 0, 1, number, now_ms=number, durable=number)
    accept(states, 3, 0, 1, 1, 20, now_ms=20, durable=20)
    settings = {"now_ms": MINUTE_MS + 30, "after_ms": MINUTE_MS + 14, "durable_offset": 21}
    done = []
    while more := states.expire(count_max=10, **settings):
        done.append(more)
    assert max(done) <= 20
    assert sum(done) == 20 + 15
    assert len(states) == 5
    assert states.check(3, 0, 2, 1) is OK
    assert states.check(3, 0, 7, 1) is OUT_OF_ORDER


def test_a_producer_with_batches_in_flight_is_not_dropped():
    states = filled(3)
    expire(states, now_ms=10 * MINUTE_MS, after_ms=MINUTE_MS, durable=102)
    assert states.check(1, 0, 6, 2) is OK
    assert states.check(1, 0, 8, 2) is OUT_OF_ORDER
    expire(states, now_ms=10 * MINUTE_MS, after_ms=MINUTE_MS, durable=106)
    assert len(states) == 0


def test_an_older_state_in_the_order_of_its_first_use_expires_on_time():
    old, new = filled(1, producer=1), ProducerStates()
    accept(old, 1, 0, 2, 2, 200, now_ms=900)
    accept(new, 2, 0, 0, 1, 0, now_ms=5)
    first, second = old.encode(10**9), new.encode(10**9)
    both = ProducerStates()
    load(both, b"\x01\0\0\0\x02" + first[5:] + second[5:])
    expire(both, now_ms=1_000, after_ms=500)
    assert len(both) == 1
    assert both.check(1, 0, 77, 1) is OUT_OF_ORDER


def test_many_producers_take_little_memory_and_load_with_pauses():
    states = ProducerStates()
    tracemalloc.start()
    for number in range(20_000):
        accept(states, number, 0, 0, 1, number, now_ms=1, durable=number)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 20_000 * 300
    again = ProducerStates()
    assert load(again, states.encode(10**9)) == 4 + 1 + 4
    assert len(again) == 20_000
    assert again.expire(now_ms=MINUTE_MS, after_ms=1, count_max=100, durable_offset=0) == 100


# -- the twin -------------------------------------------------------------------------------------


class Twin:
    """A producer state that keeps every batch in a list."""

    def __init__(self):
        self.batches = []

    def of(self, producer):
        return [batch for batch in self.batches if batch[0] == producer]

    def check(self, producer, epoch, first, records):
        known = self.of(producer)
        if not known:
            return OK
        _, newest_epoch, newest_first, newest_records, _ = known[-1]
        if epoch < newest_epoch:
            return ErrorCode.invalid_producer_epoch
        if epoch > newest_epoch:
            return OK if first == 0 else OUT_OF_ORDER
        if first == (newest_first + newest_records) % 2**31:
            return OK
        same = [batch for batch in known if batch[1] == epoch][-WINDOW:]
        for _, _, known_first, known_records, offset in reversed(same):
            if (known_first, known_records) == (first, records):
                return offset
        return OUT_OF_ORDER

    def below(self, end_offset):
        twin = Twin()
        twin.batches = [batch for batch in self.batches if batch[4] < end_offset]
        return twin


def verdict_of(states, batch):
    verdict = states.check(*batch)
    return verdict.base_offset if isinstance(verdict, AcceptedBatch) else verdict


sequences = st.one_of(st.integers(0, 30), st.integers(SEQUENCE_MAX - 30, SEQUENCE_MAX))
questions = st.tuples(st.integers(0, 2), st.integers(0, 2), sequences, st.integers(1, 4))


@st.composite
def histories(draw):
    """Draw batches that the twin accepts, the durable end at each, and then queries."""
    twin, log, offset, durable = Twin(), [], 0, 0
    for _ in range(draw(st.integers(0, 40))):
        producer, epoch, first, records = draw(questions)
        if draw(st.integers(0, 9)) < 8 and twin.of(producer):
            _, epoch, last_first, last_records, _ = twin.of(producer)[-1]
            first = (last_first + last_records) % 2**31
        if twin.check(producer, epoch, first, records) is not OK:
            continue
        ends = [batch[4] + batch[3] for batch in twin.batches]
        durable = draw(st.sampled_from([durable, *(end for end in ends if end >= durable)]))
        twin.batches.append((producer, epoch, first, records, offset))
        log.append((producer, epoch, first, records, offset, durable))
        offset += records
    return twin, log, draw(st.lists(questions, max_size=10))


def states_of(log, recent_max=1):
    states = ProducerStates(recent_max)
    for producer, epoch, first, records, offset, durable in log:
        accept(states, producer, epoch, first, records, offset, durable=durable)
    return states


@pytest.mark.slow
@given(histories())
def test_every_verdict_is_the_twins(case):
    twin, log, asked = case
    states = states_of(log)
    repeats = [batch[:4] for batch in twin.batches]
    for batch in asked + repeats:
        assert verdict_of(states, batch) == twin.check(*batch)


@pytest.mark.slow
@given(histories(), st.data())
def test_the_state_as_of_an_offset_is_that_of_a_twin_which_saw_only_those_batches(case, data):
    twin, log, asked = case
    states = states_of(log)
    durable = log[-1][5] if log else 0
    ends = [batch[4] + batch[3] for batch in twin.batches if batch[4] + batch[3] >= durable]
    end_offset = data.draw(st.sampled_from([durable, *ends]))
    again = ProducerStates()
    load(again, states.encode(end_offset))
    earlier = twin.below(end_offset)
    for batch in asked + [batch[:4] for batch in twin.batches]:
        assert verdict_of(again, batch) == earlier.check(*batch)


@pytest.mark.slow
@given(histories())
def test_memory_is_the_window_and_what_is_not_durable(case):
    _, log, _ = case
    states = states_of(log)
    durable = log[-1][5] if log else 0
    pending = sum(batch[4] >= durable for batch in log)
    states.encode(durable)
    assert states.batches <= pending + WINDOW * len(states)


# -- bytes ----------------------------------------------------------------------------------------


@pytest.mark.slow
@given(histories())
def test_loading_and_encoding_again_gives_the_same_bytes(case):
    _, log, _ = case
    data = states_of(log).encode(10**9)
    again = ProducerStates()
    load(again, data)
    assert again.encode(10**9) == data


def test_loading_replaces_what_was_known():
    states = filled(3)
    load(states, b"")
    assert len(states) == 0


def test_a_state_cut_anywhere_or_too_long_or_of_another_version_is_refused():
    data = filled(3).encode(10**9)
    for wrong in [*(data[:end] for end in range(1, len(data))), data + b"\0", b"\x02" + data[1:]]:
        with pytest.raises(ValueError):
            load(ProducerStates(), wrong)


def test_a_producer_without_a_batch_is_refused():
    data = bytearray(filled(1).encode(10**9))
    data[5 + 16] = 0
    with pytest.raises(ValueError):
        load(ProducerStates(), bytes(data[:22]))
