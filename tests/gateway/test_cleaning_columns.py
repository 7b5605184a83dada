"""Goal: the cleaner reads records in columns, and returns what a visit of each record returns.

Method: random pieces of a log by Hypothesis, sound and damaged, go through the cleaner and through
a slow twin that visits record by record. All that both return must be equal, errors included.
"""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core import record_blocks
from gateway.core.cleaning import Cleaning
from gateway.core.cleaning_keys import KEY_BYTES, KeyMap, key_words
from gateway.core.cleaning_results import PoisonedBatch
from gateway.core.partition_transactions import AbortedTransaction
from gateway.wire.batches import HEADER_BYTES, Compression, read_header, with_records
from gateway.wire.end_markers import encode_marker
from gateway.wire.recompress import compress
from tests.gateway.cleaning_log import at_offset
from tests.gateway.cleaning_twin import SlowCleaning, SlowKeyMap

KEYS = st.one_of(
    st.none(),
    st.integers(0, 30).map(lambda at: b"key-%d" % at),
    st.integers(0, 6).map(lambda at: b"%d" % at * 15),
    st.integers(14, 17).map(lambda size: b"k" * size),
    st.sampled_from([b"", b"\0", b"\0\0", b"long" * 30, b"long" * 5000]),
)
VALUES = st.sampled_from([None, b"", b"v", b"w" * 60, b"x" * 200, b"y" * 9000])
HEADERS = st.sampled_from([[], [("h", b"header")], [("h", None), ("", b"")] * 3])
RECORDS = st.lists(st.tuples(KEYS, VALUES, HEADERS), min_size=1, max_size=12)
EQUAL = st.tuples(st.integers(1, 90), st.integers(1, 40)).map(
    lambda drawn: [(b"%010d" % (at % drawn[1]), b"v" * 50, []) for at in range(drawn[0])]
)
TIMES = st.sampled_from([10, 1000, 10**12, 2**62, 10 - 2**63])
DAMAGE = st.one_of(
    st.none(),
    st.none(),
    st.none(),
    st.tuples(st.just("byte"), st.floats(0, 0.999), st.integers(0, 255)),
    st.tuples(st.just("cut"), st.floats(0, 0.999)),
    st.tuples(st.just("more"), st.binary(min_size=1, max_size=12)),
    st.tuples(st.just("count"), st.integers(-2, 40)),
    st.tuples(st.just("crc")),
)
BATCHES = st.one_of(
    st.tuples(
        st.just("records"),
        st.one_of(RECORDS, EQUAL),
        st.integers(0, 4),  # codec
        st.integers(-1, 2),  # producer of a transaction
        TIMES,
        st.sampled_from([0, 0, 0x08, 0x40]),  # log append time, delete horizon
        DAMAGE,
    ),
    st.tuples(st.just("marker"), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("gap"), st.integers(0, 5)),
)


def batch_of(records, codec, producer, at, attributes, damage, base):
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=int(producer >= 0),
        producer_id=producer,
        producer_epoch=min(producer, 0),
        base_sequence=min(producer, 0),
        batch_size=1 << 24,
    )
    for delta, (key, value, headers) in enumerate(records):
        builder.append(delta, at + 13 * (delta % 3) - 1 * (delta % 5), key, value, headers)
    plain = bytes(builder.build())
    header, data = read_header(plain), bytearray(plain[HEADER_BYTES:])
    header = header._replace(attributes=header.attributes | attributes)
    match damage:
        case ("byte", place, value):
            data[int(place * len(data))] = value
        case ("cut", place):
            del data[int(place * len(data)) :]
        case ("more", more):
            data += more
        case ("count", count):
            header = header._replace(records=count)
    packed = compress(Compression(codec, 3), bytes(data), 1 << 23)
    batch = bytearray(at_offset(with_records(header, codec, packed), base))
    if damage == ("crc",):
        batch[-1] ^= 1
    return bytes(batch)


def pieces_of(drawn):
    """Return the batches, joined by threes, and the end of the log."""
    found, base = [], 0
    for one in drawn:
        match one:
            case ("records", records, codec, producer, at, attributes, damage):
                found.append(batch_of(records, codec, producer, at, attributes, damage, base))
                base += len(records)
            case ("marker", producer, commit):
                marker = encode_marker(producer, 0, 0, 5000, commit=commit)
                found.append(at_offset(bytes(marker), base))
                base += 1
            case ("gap", size):
                base += size
    return [b"".join(found[at : at + 3]) for at in range(0, len(found), 3)], base


def outcome(work, *words):
    """Return what a call returned, and True if it raised."""
    try:
        return work(*words), False
    except PoisonedBatch as poisoned:
        return (poisoned.offset, poisoned.reason), True


def outcomes(cleaning, pieces, end, aborted, room, now):
    """Clean the pieces, as one segment, and return all that the cleaner returned."""
    found = []

    def did(work, *words):
        found.append(outcome(work, *words))
        return found[-1]

    cleaning.begin_map(room * KEY_BYTES, 1)
    cleaning.begin_segment(0, end + 2, aborted)
    for piece in pieces:
        if did(cleaning.map_batches, piece) != (-1, False):
            break
    if found and found[-1][1]:
        cleaning.begin_map(room * KEY_BYTES, 1)  # a round ends there, and never asks its map
    elif found and found[-1][0] != -1:
        cleaning.begin_marks(0, end + 2)
        for piece in pieces:
            if did(cleaning.mark_batches, piece)[1]:
                break
    cleaning.begin_filter(now, 1000)
    cleaning.begin_segment(0, end + 2, aborted)
    for piece in pieces:
        if did(cleaning.filter_batches, piece)[1]:
            return found
    found.append(cleaning.end_segment())
    return found


ABORTED = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 30)), max_size=3)


@pytest.mark.parametrize("rows", [4, record_blocks.RECORDS_MAX])
def test_the_cleaner_returns_what_its_slow_twin_returns(rows, monkeypatch):
    monkeypatch.setattr(record_blocks, "RECORDS_MAX", rows)

    @settings(max_examples=150, deadline=None)
    @given(
        st.lists(BATCHES, max_size=9),
        ABORTED,
        st.sampled_from([1, 3, 10, 1000]),
        st.sampled_from([0, 10**12 + 5]),
    )
    def check(drawn, aborted, room, now):
        if rows == 4 and any(one[0] == "records" and one[-1] for one in drawn):
            room = 1000  # a full map may end the reading before the damage of a large batch
        pieces, end = pieces_of(drawn)
        listed = [AbortedTransaction(p, a, a + b, a) for p, a, b in aborted]
        found = outcomes(Cleaning(7), pieces, end, listed, room, now)
        assert found == outcomes(SlowCleaning(), pieces, end, listed, room, now)

    check()


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 40), max_size=30), max_size=8),
    st.integers(1, 45),
    st.integers(0, 2**64 - 1),
)
def test_a_map_of_many_keys_at_once_is_that_of_single_keys(blocks, room, seed):
    keys, slow = KeyMap(room * KEY_BYTES, seed=seed), SlowKeyMap(room * KEY_BYTES)
    offset = 0
    for drawn in blocks:
        names = [b"%d" % one * (1 + one % 9) for one in drawn]
        offsets = np.arange(offset, offset + len(names))
        offset += len(names)
        noted = keys.put(key_words(names), offsets)
        expected = 0
        while expected < len(names) and slow.put(names[expected], int(offsets[expected])):
            expected += 1
        assert (noted, len(keys)) == (expected, len(slow))
        everything = [b"%d" % one * (1 + one % 9) for one in range(41)]
        assert keys.newest(key_words(everything)).tolist() == [slow.newest(n) for n in everything]


def test_keys_that_take_the_same_place_of_a_nearly_full_map_lose_nothing():
    draw = random.Random(3)
    names = [struct.pack(">Q", draw.getrandbits(64)) for _ in range(20_000)]
    keys = KeyMap(len(names) * KEY_BYTES, len(names))
    order = [draw.choice(names) for _ in range(60_000)]
    for at in range(0, len(order), 7_000):
        some = order[at : at + 7_000]
        assert keys.put(key_words(some), np.arange(at, at + len(some))) == len(some)
    newest = {name: at for at, name in enumerate(order)}
    assert keys.newest(key_words(names)).tolist() == [newest.get(name, -1) for name in names]
    assert len(keys) == len(newest)
