"""Goal: the batches of a replay hold the records unchanged, whatever Kafka allows in a record.

Method: Hypothesis makes records. aiokafka's reader, which is not used for writing, reads the
batches back.
"""

from __future__ import annotations

import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.pipelines.replays.encode import Encoder, HeaderKey, RecordRows, record_rows
from gateway.pipelines.replays.plan import SEQUENCE_MAX
from tests.batches import varint

some_bytes = st.one_of(st.none(), st.binary(max_size=40))
header = st.tuples(st.sampled_from(["", "a", "b"]), some_bytes)
time_ms = st.one_of(st.sampled_from([-1, 0]), st.integers(-(2**40), 2**45))
record = st.tuples(time_ms, some_bytes, some_bytes, st.lists(header, max_size=3))


def plain(time: int) -> tuple[int, None, bytes, list[tuple[str, bytes | None]]]:
    return time, None, b"value", []


@pytest.mark.slow
@given(
    records=st.lists(record, min_size=1, max_size=30),
    first=st.one_of(st.just(0), st.integers(SEQUENCE_MAX - 20, SEQUENCE_MAX + 20)),
    batch_bytes=st.sampled_from([100, 1_000]),
)
@example(records=[plain(-1), plain(5_000), plain(-1)], first=0, batch_bytes=1_000)
@example(records=[plain(5_000), plain(-1), plain(-1), plain(9)], first=0, batch_bytes=160)
def test_each_record_is_unchanged_in_its_batch(records, first, batch_bytes):
    times, keys, values, headers = map(list, zip(*records, strict=True))
    encoder = Encoder(7, 3, 0, batch_bytes)
    found, number = [], first
    for end, data in encoder.batches(
        RecordRows(first, times, keys, values, headers), first, SEQUENCE_MAX
    ):
        batch = DefaultRecordBatch(data)
        assert batch.validate_crc()
        assert batch.base_sequence == number % (SEQUENCE_MAX + 1)
        inside = [(each.timestamp, each.key, each.value, list(each.headers)) for each in batch]
        assert batch.max_timestamp == max(time for time, *_ in inside)
        assert len(inside) == end - number
        found += inside
        number = end
    assert found == records


def test_the_key_of_a_header_keeps_its_bytes():
    keys = pa.Array.from_buffers(
        pa.string(),
        2,
        [None, pa.array([0, 2, 4], pa.int32()).buffers()[1], pa.py_buffer(b"k\xffab")],
    )
    struct = pa.StructArray.from_arrays([keys, pa.array([b"v", None])], ["key", "value"])
    headers = pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), struct)
    times = pa.array([7_000], pa.timestamp("us", tz="UTC"))
    none = pa.array([None], pa.binary())
    batch = pa.RecordBatch.from_arrays(
        [times, none, none, headers], ["timestamp", "key", "value", "headers"]
    )
    rows = record_rows(batch, 0)
    assert rows.headers == [[(HeaderKey(b"k\xff"), b"v"), ("ab", None)]]
    ((_, data),) = Encoder(7, 3, 0, 1_000).batches(rows, 0, SEQUENCE_MAX)
    assert varint(2) + varint(2) + b"k\xff" + varint(1) + b"v" + varint(2) + b"ab" in data
