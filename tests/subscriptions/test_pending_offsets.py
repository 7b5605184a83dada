"""Goal: offsets of transactions are committed or dropped as Kafka does, whatever else is committed.

Method: Hypothesis against a dumb twin that keeps the number of each record, as Kafka does; every
sequence is also replayed from its records, and from the records of each state on the way.
"""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from subscriptions.committed_offset import CommittedOffset, TopicIdPartition, encode_advance
from subscriptions.pending_offsets import PendingOffsets
from subscriptions.segments.segment_records import (
    SubscriptionState,
    decode_record,
    encode_end,
    encode_pending,
    encode_removal,
)

KEYS = [TopicIdPartition(UUID(int=5), index) for index in range(3)]
PRODUCERS = (0, 7, 2**62)


class Twin:
    """Kafka's tables: the committed and the pending offsets, each with the number of its record."""

    def __init__(self):
        self.number = 0
        self.committed = {}
        self.pending = {producer: {} for producer in PRODUCERS}

    def run(self, step):
        self.number += 1
        kind, key, producer = step
        if kind == "commit":
            self.committed[key] = (self.number, self.number)
        elif kind == "remove":
            self.committed.pop(key, None)
            for offsets in self.pending.values():
                offsets.pop(key, None)
        elif kind == "pend":
            self.pending[producer][key] = (self.number, self.number)
        else:
            for ended, value in self.pending[producer].items():
                if kind == "end" and value > self.committed.get(ended, (0, 0)):
                    self.committed[ended] = value
            self.pending[producer] = {}


def record_of(step, number):
    kind, key, producer = step
    body = encode_advance(key, CommittedOffset(offset=number))
    if kind == "commit":
        return body
    if kind == "remove":
        return encode_removal(key)
    if kind == "pend":
        return encode_pending(body, producer, 3)
    return encode_end(producer, 3, commits=kind == "end")


def applied(bodies):
    state = SubscriptionState()
    for body in bodies:
        state.apply(decode_record(body, "test"))
    return state


def seen(state):
    """Return what a state shows, without the order of its tables."""
    unstable = {key for key in KEYS if key in state.pending}
    return dict(state.records), unstable, {p: state.pending.epoch(p) for p in PRODUCERS}


steps = st.lists(
    st.tuples(
        st.sampled_from(["commit", "remove", "pend", "pend", "end", "abort"]),
        st.sampled_from(KEYS),
        st.sampled_from(PRODUCERS),
    ),
    max_size=12,
)


@given(steps)
def test_transactions_end_as_in_kafka_also_after_a_replay(sequence):
    twin, bodies = Twin(), [record_of(step, n) for n, step in enumerate(sequence, 1)]
    for number, step in enumerate(sequence, 1):
        twin.run(step)
        state = applied(bodies[:number])
        assert {k: (n, n) for k, (n, _) in twin.committed.items()} == twin.committed
        assert state.records == {
            key: encode_advance(key, CommittedOffset(offset=offset))
            for key, (_, offset) in twin.committed.items()
        }
        assert seen(applied(state.encoded())) == seen(state)
        for producer in PRODUCERS:
            held = {each.key for each in state.pending.all() if each.producer_id == producer}
            assert held == set(twin.pending[producer])
    restored = applied(applied(bodies).encoded())
    for producer in PRODUCERS:
        twin.run(("end", KEYS[0], producer))
        restored.end(producer, commits=True)
    assert {key: decode_offset(body) for key, body in restored.records.items()} == {
        key: offset for key, (_, offset) in twin.committed.items()
    }
    assert (len(restored.pending), restored.pending.size_bytes) == (0, 0)


def decode_offset(body):
    state = applied([body])
    (key,) = state.records
    return next(n for n in range(100) if body == encode_advance(key, CommittedOffset(offset=n)))


def test_the_bytes_of_pending_offsets_are_counted_once():
    pending = PendingOffsets()
    pending.put(1, 0, KEYS[0], b"four")
    pending.put(1, 1, KEYS[0], b"longer")
    pending.put(2, 0, KEYS[0], b"two")
    assert (len(pending), pending.size_bytes, pending.epoch(1)) == (1, 9, 1)
    pending.end(1)
    assert (pending.size_bytes, pending.epoch(1), KEYS[0] in pending) == (3, None, True)
    pending.remove(KEYS[0])
    assert (len(pending), pending.size_bytes, pending.epoch(2)) == (0, 0, None)
