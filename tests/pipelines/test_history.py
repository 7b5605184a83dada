"""Goal: the properties of an archive equal the sum of its commits.

Method: Hypothesis; the dumb twin is a set of offsets. Damaged and newer properties are refused.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pipelines.archives.history import (
    CHANGES_MAX,
    DELETED_KEY,
    FORMAT_KEY,
    KEYS,
    LOST_KEY,
    OFFSETS_KEY,
    PLAIN_CHARS_MAX,
    SUMS_KEY,
    TOPIC_IDS_KEY,
    ArchiveHistory,
    ChangeCount,
    HistoryChange,
    change_from_properties,
    commit_properties,
    from_properties,
    from_ranges,
)
from gateway.pipelines.archives.iceberg_table import (
    SNAPSHOTS_KEPT_MIN,
    IcebergSnapshot,
    expired_snapshots,
)
from gateway.pipelines.archives.port import Commit, LostOffsets
from gateway.pipelines.archives.sums import RecordSum
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition

PLACES = [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b.c-d", 0)]
steps = st.lists(
    st.tuples(st.sampled_from(PLACES), st.integers(0, 4), st.integers(0, 5)), max_size=12
)


@given(first=st.integers(0, 9), steps=steps)
def test_ranges_and_ends_are_those_of_all_commits(
    first: int, steps: list[tuple[TopicPartition, int, int]]
):
    history, held = ArchiveHistory(), dict[TopicPartition, set[int]]()
    ends = dict[TopicPartition, int]()
    for place, gone, length in steps:
        known = place in ends
        start = ends.get(place, first)
        gone = gone if known else 0
        lost = (LostOffsets(OffsetRange(*place, start, start + gone), 7),) if gone else ()
        taken = OffsetRange(*place, start + gone, start + gone + length)
        change = HistoryChange(
            Commit((taken,), {place.topic: "id"}, lost), {place: RecordSum(length, 7 * length)}
        )
        summary = change.properties(ChangeCount())
        change_back = change_from_properties(summary, "here")
        assert change_back is not None
        assert from_properties(summary, "here") is None
        assert (change_back.commit, change_back.sums) == (change.commit, change.sums)
        history = history.after(change_back)
        held.setdefault(place, set()).update(range(taken.start, taken.end))
        ends[place] = taken.end
    assert history.ends == ends
    for place, offsets in held.items():
        assert history.sums[place] == RecordSum(len(offsets), 7 * len(offsets))
    found = history.ranges
    assert found == sorted(found)
    for place, offsets in held.items():
        mine = [each for each in found if each.topic_partition == place]
        assert [o for each in mine for o in range(each.start, each.end)] == sorted(offsets)
        assert all(one.end < next_.start for one, next_ in pairwise(mine))
    assert from_properties(history.properties(), "here") == history


def test_a_range_that_does_not_follow_the_end_is_refused():
    history = from_ranges([OffsetRange("a", 0, 2, 5)])
    for start, end in ((4, 6), (6, 8), (5, 4)):
        with pytest.raises(JobError, match="does not follow on offset 5"):
            history.after(HistoryChange(Commit((OffsetRange("a", 0, start, end),), {}), {}))


def test_properties_of_many_partitions_are_packed_and_come_back():
    history = from_ranges(OffsetRange("orders", each, 0, each + 1) for each in range(10_000))
    properties = history.properties()
    assert len(properties[OFFSETS_KEY]) < 100_000
    assert from_properties(properties, "here") == history
    assert len(from_ranges([OffsetRange("a", 0, 0, 1)]).properties()[OFFSETS_KEY]) < PLAIN_CHARS_MAX


def test_changes_stay_few_and_smaller_than_the_whole():
    many = [OffsetRange("orders", each, 0, 1_000_000 + each) for each in range(1_000)]
    history = from_ranges(many, {each.topic_partition: RecordSum(9, each.end) for each in many})
    count: ChangeCount | None = None
    whole: list[int] = []
    for number in range(3 * CHANGES_MAX):
        touched = history.ranges[number % 500 : number % 500 + (500 if number > 120 else 3)]
        ranges = tuple(each._replace(start=each.end, end=each.end + 5) for each in touched)
        sums = {each.topic_partition: RecordSum(5, hash(each)) for each in ranges}
        change = HistoryChange(Commit(ranges, {}), sums)
        history = history.after(change)
        properties = commit_properties(history, change, count)
        found = change_from_properties(properties, "here")
        if found is None:
            assert from_properties(properties, "here") == history
            whole.append(number)
            count = ChangeCount()
        else:
            assert (found.commit, found.sums) == (change.commit, sums)
            count = found.count
            assert count.chars <= sum(map(len, history.properties().values()))
    assert whole[:3] == [0, CHANGES_MAX + 1, 2 * (CHANGES_MAX + 1)]
    assert len(whole) > 5


def test_sums_are_unknown_after_records_without_sums():
    here = TopicPartition("a", 0)
    old = from_ranges([OffsetRange("a", 0, 0, 4)])
    change = HistoryChange(Commit((OffsetRange("a", 0, 4, 6),), {}), {here: RecordSum(2, 5)})
    assert old.sums == old.after(change).sums == {}
    properties = {**old.properties(), FORMAT_KEY: "1"}
    for key in (SUMS_KEY, DELETED_KEY):
        del properties[key]
    assert from_properties(properties, "here") == old


def test_foreign_properties_give_no_history():
    assert from_properties({"owner": "me"}, "here") is None


def test_damaged_and_newer_properties_are_refused():
    good = from_ranges([OffsetRange("a", 0, 0, 1)]).properties()
    for key in KEYS:
        for bad in ("", "zlib:", "zlib:QUJD", "zlib:?", "7", '{"a":{"x":1}}', '[["a",0]]'):
            with pytest.raises(JobError, match="here: "):
                from_properties({**good, key: bad}, "here")
    for key in (OFFSETS_KEY, TOPIC_IDS_KEY, LOST_KEY, SUMS_KEY):
        with pytest.raises(JobError, match="here: damaged"):
            from_properties({each: good[each] for each in KEYS if each != key}, "here")


def lineage(commits: int, touched: int, partitions: int = 200) -> list[IcebergSnapshot]:
    """Return the snapshots of that many commits, the newest first: files, then the summary."""
    history, count = ArchiveHistory(), None
    snapshots: list[IcebergSnapshot] = []
    for number in range(commits):
        places = [TopicPartition("a", (number * touched + n) % partitions) for n in range(touched)]
        ends = history.ends
        ranges = tuple(OffsetRange(*at, ends.get(at, 0), ends.get(at, 0) + 3) for at in places)
        sums = {at: RecordSum(3, hash((number, at))) for at in places}
        change = HistoryChange(Commit(ranges, {"a": "id"}), sums)
        history = history.after(change)
        summary = commit_properties(history, change, count)
        found = change_from_properties(summary, "here")
        count = found.count if found else ChangeCount()
        for properties in ({}, summary):
            at = len(snapshots)
            snapshots.append(
                IcebergSnapshot(at, at - 1 if at else None, at, "append", at * 1000, properties)
            )
    return snapshots[::-1]


def test_snapshots_expire_by_count_age_and_size_behind_a_whole_history():
    snapshots = lineage(600, 2)

    def kept(count: int, age_ms: int = 2**62) -> list[IcebergSnapshot]:
        expired = set(expired_snapshots(snapshots, count, age_ms))
        found = [each for each in snapshots if each.id not in expired]
        assert found == snapshots[: len(found)]
        assert OFFSETS_KEY in found[-1].summary
        return found

    spacing = 2 * (CHANGES_MAX + 1)
    assert 500 <= len(kept(500)) <= 500 + spacing
    assert 300 <= len(kept(500, 300_000)) <= 300 + spacing
    assert expired_snapshots(snapshots, 2_000, 2**62) == []
    assert SNAPSHOTS_KEPT_MIN <= len(kept(500, 0)) <= SNAPSHOTS_KEPT_MIN + spacing


def test_the_properties_of_the_kept_snapshots_have_a_bounded_size(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gateway.pipelines.archives.iceberg_table.SUMMARY_CHARS_MAX", 200_000)
    snapshots = lineage(200, 200)
    expired = set(expired_snapshots(snapshots, 500, 2**62))
    found = [each for each in snapshots if each.id not in expired]
    size = sum(len(text) for each in found for text in each.summary.values())
    assert 200_000 < size < 240_000
