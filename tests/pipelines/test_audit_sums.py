"""Goal: the sums over buckets describe the records exactly, however they are cut into batches.

Method: records drawn by Hypothesis, cut into Arrow batches anywhere; a dumb twin counts with sets
and lists. No Spark: pandas does its part, adding up the rows of one bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import pandas
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pipelines.audits.columns import BUCKET, PARTIALS, SUMS
from gateway.pipelines.audits.partials import add_density, count_partials

KEYS = ["topic", "partition", "bucket"]
HASHES = st.integers(-(2**63), 2**63 - 1)
OFFSETS = st.one_of(st.integers(0, 9), st.integers(BUCKET - 5, BUCKET + 5))


class Counted(NamedTuple):
    topic: str
    partition: int
    offset: int
    ms: int
    hash: int


RECORDS = st.lists(
    st.builds(
        Counted, st.sampled_from("ab"), st.integers(0, 1), OFFSETS, st.integers(-1, 5), HASHES
    ),
    max_size=40,
)


def in_batches(records: Sequence[Counted], cuts: Sequence[int]) -> list[pa.RecordBatch]:
    """Cut the records before these indexes. Some batches are empty."""
    edges = [0, *sorted(min(cut, len(records)) for cut in cuts), len(records)]
    schema = pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("ms", pa.int64()),
            ("hash", pa.int64()),
        ]
    )
    return [
        pa.RecordBatch.from_pylist([one._asdict() for one in records[start:end]], schema)
        for start, end in pairwise(edges)
    ]


def buckets(
    records: Sequence[Counted],
    cuts: Sequence[int] = (),
    *,
    bases: dict[tuple[str, int], int] | None = None,
    ordered: bool = False,
) -> pandas.DataFrame:
    """Merge and judge the rows of each bucket, as Spark would."""
    rows = list(count_partials(bases or {}, ordered)(in_batches(records, cuts)))
    if not rows:
        return pandas.DataFrame()
    frame = pa.Table.from_batches(rows).to_pandas()
    how = {"first": "min", "last": "max", "first_ms": "min", "last_ms": "max"}
    merged = frame.groupby(KEYS, as_index=False).agg({**how, **dict.fromkeys(SUMS, "sum")})
    names = [column.split()[0] for column in PARTIALS.split(", ")]
    batch = pa.RecordBatch.from_pandas(merged[names], preserve_index=False)
    return pa.Table.from_batches(list(add_density([batch]))).to_pandas().set_index(KEYS)


def total(row: pandas.Series, name: str) -> int:
    return (int(row[f"{name}_high"]) << 32) + int(row[f"{name}_low"])


@pytest.mark.slow
@given(RECORDS, st.lists(st.integers(0, 40), max_size=4))
def test_a_bucket_has_the_counts_bounds_and_checksum_of_its_records(
    records: list[Counted], cuts: list[int]
) -> None:
    found = buckets(records, cuts)
    twin: dict[tuple[str, int, int], list[Counted]] = {}
    for one in records:
        twin.setdefault((one.topic, one.partition, one.offset // BUCKET), []).append(one)
    assert set(found.index) == set(twin)
    for key, here in twin.items():
        row = found.loc[key]
        offsets, times = [one.offset for one in here], [one.ms for one in here]
        assert (row["records"], row["first"], row["last"]) == (
            len(here),
            min(offsets),
            max(offsets),
        )
        assert (row["first_ms"], row["last_ms"]) == (min(times), max(times))
        assert total(row, "content") == sum(one.hash for one in here)


@pytest.mark.slow
@given(RECORDS, st.lists(st.integers(0, 40), max_size=4))
def test_a_bucket_is_dense_when_each_offset_between_its_ends_is_there_once(
    records: list[Counted], cuts: list[int]
) -> None:
    for key, row in buckets(records, cuts).iterrows():
        here = sorted(one.offset for one in records if (*one[:2], one.offset // BUCKET) == key)
        assert row["dense"] == (here == list(range(here[0], here[-1] + 1)))


@pytest.mark.slow
@given(RECORDS, st.lists(st.integers(0, 40), max_size=4))
def test_steps_back_are_seen_across_batches(records: list[Counted], cuts: list[int]) -> None:
    found = buckets(records, cuts, ordered=True)
    last: dict[tuple[str, int], Counted] = {}
    disorder = back = 0
    for one in records:
        before = last.get(one[:2])
        if before is not None:
            disorder += one.offset <= before.offset
            back += one.ms < before.ms
        last[one[:2]] = one
    sums = (0, 0) if found.empty else (found["disorder"].sum(), found["back"].sum())
    assert sums == (disorder, back)


def line(offsets: Sequence[int], hashes: Sequence[int]) -> list[Counted]:
    return [Counted("a", 0, offset, 0, each) for offset, each in zip(offsets, hashes, strict=True)]


@pytest.mark.slow
@given(st.lists(HASHES, min_size=2, max_size=9, unique=True))
def test_two_swapped_records_have_another_sum(hashes: list[int]) -> None:
    swapped = [hashes[1], hashes[0], *hashes[2:]]
    one, other = (buckets(line(range(len(each)), each)).iloc[0] for each in (hashes, swapped))
    assert total(one, "content") == total(other, "content")
    assert total(one, "placed") != total(other, "placed")


@pytest.mark.slow
@given(st.lists(HASHES, min_size=1, max_size=9), st.integers(0, 3 * BUCKET))
def test_a_base_shifts_the_positions_of_records(hashes: list[int], base: int) -> None:
    plain = buckets(line(range(len(hashes)), hashes))
    moved = line(range(base, base + len(hashes)), hashes)
    assert buckets(moved, bases={("a", 0): base}).equals(plain)


def test_one_offset_twice_and_another_missing_is_not_dense() -> None:
    offsets = [0, 1, 2, 2, 4, 5]
    row = buckets(line(offsets, [7] * len(offsets))).iloc[0]
    assert row["records"] == 6 == row["last"] - row["first"] + 1
    assert not row["dense"]
