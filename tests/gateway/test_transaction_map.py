"""Goal: the map of a transaction log is the same after a snapshot, a replay and a failed append.

Method: random batches are applied to a map, to a replayed one, and to a dictionary.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.producer_states import ProducerStates
from gateway.core.transaction_log import encode_key, encode_value
from gateway.core.transaction_states import (
    TopicPartition,
    TransactionMetadata,
    TransactionState,
)
from gateway.transactions.transaction_map import TransactionMap
from gateway.wire.batches import PREFIX, read_header
from gateway.wire.own_batches import encode_batch
from ledger.errors import CorruptFormat

NAMES = st.sampled_from(["pay", "ship", "käse", "x" * 300, "𝄞"])
BATCHES = st.lists(st.dictionaries(NAMES, st.none() | st.binary(max_size=40), min_size=1))


def loaded(data, name="log"):
    found = TransactionMap(name)
    list(found.load(data))
    return found


def values(found):
    return {name: found.value(name) for name in found.names}


def stored(batch, offset):
    """The batch as the log stores it."""
    records = [(encode_key(name), value) for name, value in batch.items()]
    data = encode_batch(records, 7)
    return PREFIX.pack(offset, read_header(data).length, 3) + data[PREFIX.size :]


def apply(expected, batch):
    for name, value in batch.items():
        if value is None:
            expected.pop(name, None)
        else:
            expected[name] = value


@given(BATCHES)
def test_written_replayed_and_loaded_maps_are_equal(batches):
    written, replayed, expected = TransactionMap("log"), TransactionMap("log"), {}
    list(replayed.load(b""))
    offset = 0
    for batch in batches:
        written.write(batch)
        written.on_written()
        replayed.replay(offset, memoryview(stored(batch, offset)))
        offset += len(batch)
        apply(expected, batch)
        for each in (written, replayed, loaded(written.encode(offset))):
            assert values(each) == expected
            assert each.memory_bytes == written.memory_bytes
    assert (written.memory_bytes > 0) == bool(expected)


@given(BATCHES)
def test_a_snapshot_has_the_batch_under_way_only_behind_it(batches):
    found, expected, end = TransactionMap("log"), {}, 10
    found.begin(end)
    for batch in batches:
        found.write(batch)
        assert values(loaded(found.encode(end))) == expected
        apply(expected, batch)
        end += len(batch)
        assert values(loaded(found.encode(end))) == expected
        found.on_written()
    assert values(found) == expected


def test_a_failed_batch_is_not_in_the_map():
    found = TransactionMap("log")
    found.write({"pay": b"1"})
    found.on_failed()
    assert values(loaded(found.encode(9))) == {}
    found.write({"ship": b"2"})
    assert values(loaded(found.encode(1))) == {"ship": b"2"}


def test_a_load_pauses_for_other_tasks():
    found = TransactionMap("log")
    found.write({str(number): b"" for number in range(2_000)})
    found.on_written()
    assert len(list(TransactionMap("log").load(found.encode(2_000)))) == 4


def test_states_are_decoded_and_a_damaged_one_names_the_partition_and_the_id():
    state = TransactionMetadata(
        transactional_id="pay",
        producer_id=7,
        epoch=1,
        timeout_ms=60_000,
        state=TransactionState.ONGOING,
        partitions=frozenset({TopicPartition("t", 0)}),
        updated_ms=5,
    )
    found = TransactionMap("__transaction_state-3")
    found.write({"pay": encode_value(state, 1)})
    found.on_written()
    assert [each.partitions for each in found.decoded()] == [state.partitions]
    found.write({"ship": b"\xff\xff"})
    found.on_written()
    with pytest.raises(CorruptFormat, match=r"__transaction_state-3: .*'ship' has version -1"):
        list(found.decoded())


def test_foreign_and_damaged_snapshots_are_refused():
    found = TransactionMap("log")
    found.write({"pay": b"1", "ship": b"2"})
    found.on_written()
    data = found.encode(2)
    newer = data[:4] + b"\2" + data[5:]
    for damaged in (data[:-1], data + b"\0", data[:6], newer, b"\1" + bytes(30)):
        with pytest.raises(CorruptFormat, match="log: "):
            loaded(damaged)
    for before, after in pairwise(range(len(data))):
        with pytest.raises(CorruptFormat):
            loaded(data[:before] + data[after:])


def test_the_owner_of_an_ordinary_partition_refuses_the_snapshot():
    found = TransactionMap("log")
    found.write({"pay": b"1"})
    found.on_written()
    with pytest.raises(ValueError, match="version"):
        list(ProducerStates().load(found.encode(1)))
