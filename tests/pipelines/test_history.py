"""Goal: the properties of an archive equal the sum of its commits.

Method: Hypothesis; the dumb twin is a set of offsets. Damaged and newer properties are refused.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pipelines.archives.history import (
    KEYS,
    LOST_KEY,
    OFFSETS_KEY,
    PLAIN_CHARS_MAX,
    TOPIC_IDS_KEY,
    ArchiveHistory,
    from_properties,
    from_ranges,
)
from gateway.pipelines.archives.port import Commit, LostOffsets
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
        history = history.after(Commit((taken,), {place.topic: "id"}, lost))
        held.setdefault(place, set()).update(range(taken.start, taken.end))
        ends[place] = taken.end
    assert history.ends == ends
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
            history.after(Commit((OffsetRange("a", 0, start, end),), {}))


def test_properties_of_many_partitions_are_packed_and_come_back():
    history = from_ranges(OffsetRange("orders", each, 0, each + 1) for each in range(10_000))
    properties = history.properties()
    assert len(properties[OFFSETS_KEY]) < 100_000
    assert from_properties(properties, "here") == history
    assert len(from_ranges([OffsetRange("a", 0, 0, 1)]).properties()[OFFSETS_KEY]) < PLAIN_CHARS_MAX


def test_foreign_properties_give_no_history():
    assert from_properties({"owner": "me"}, "here") is None


def test_damaged_and_newer_properties_are_refused():
    good = from_ranges([OffsetRange("a", 0, 0, 1)]).properties()
    for key in KEYS:
        for bad in ("", "zlib:", "zlib:QUJD", "zlib:?", "7", '{"a":{"x":1}}', '[["a",0]]'):
            with pytest.raises(JobError, match="here: "):
                from_properties({**good, key: bad}, "here")
    for key in (OFFSETS_KEY, TOPIC_IDS_KEY, LOST_KEY):
        with pytest.raises(JobError, match="here: damaged"):
            from_properties({each: good[each] for each in KEYS if each != key}, "here")
