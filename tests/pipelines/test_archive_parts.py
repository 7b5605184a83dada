"""Goal: the parts of the archive job that need no Spark: lives, pacing, metrics, exact reads.

Method: values in, values out. The metrics page is read over HTTP.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.pipelines.archive_metrics import ArchiveMetrics, served
from gateway.pipelines.archives.archive_model import ArchiveReport
from gateway.pipelines.archives.checking import OffsetSummary, check_records, fold_of
from gateway.pipelines.archives.exact_read import (
    Unrepresentable,
    merge_unrepresentable,
    sort_out,
    split_batches,
)
from gateway.pipelines.archives.holes import clip_holes
from gateway.pipelines.archives.lives import base_name, find_life, life_name, select_life
from gateway.pipelines.archives.pacing import CommitPacer
from gateway.pipelines.archives.port import DELETED, SKIPPED, ArchiveState, HoleSum, LostOffsets
from gateway.pipelines.archives.rounds import ArchiveRound, GoneRange, RoundInput, next_round
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition
from gateway.pipelines.shared.topics import ListedTopic, OffsetBounds, choose_topics
from tests.batches import plain_batch, raw_batch

A = TopicPartition("a", 0)


# lives


def test_a_topic_continues_the_life_with_its_id():
    later = life_name("a", "2")
    archived = {"a": "1", later: "2"}
    assert find_life(archived, "a", "1") == "a"
    assert find_life(archived, "a", "2") == later
    assert find_life(archived, "a", "3") is None
    assert find_life(archived, "b", "1") == "b", "a new topic"
    assert find_life({}, "a", "1") == "a", "an archive without ids"
    assert find_life(archived, "a", None) == "a", "a broker without ids"
    assert (base_name(later), base_name("a")) == ("a", "a")


def test_a_reader_selects_one_life():
    ids = {"a": "1", "a@2": "2", "ab": "3"}
    assert select_life(ids, ids, "ab") == "ab"
    assert select_life(ids, ids, "a", "2") == "a@2"
    assert select_life(ids, ids, "a@2") == "a@2"
    assert select_life(ids, ids, "a@1") == select_life(ids, ids, "a", "1") == "a"
    assert select_life(["a", "a@2"], {}, "a@2") == "a@2", "an archive without ids"
    with pytest.raises(JobError, match=r"2 lives of topic 'a'.*: a@1, a@2$"):
        select_life(ids, ids, "a")
    with pytest.raises(JobError, match=r"no records of topic 'a' with id 9; it holds a, ab$"):
        select_life(ids, ids, "a", "9")
    with pytest.raises(JobError, match="no records of topic 'a': it is empty, or at another place"):
        select_life([], {}, "a")


def test_a_pattern_matches_whole_names_and_no_internal_topics():
    listed = {
        "log": ListedTopic("1", False),
        "logs": ListedTopic("2", False),
        "__log": ListedTopic("3", True),
    }
    assert choose_topics(listed, ["logs", "none"], "_*log") == (["log", "logs"], ["none"])
    assert choose_topics(listed, ["__log"], "") == (["__log"], [])


# the plan


def planned(
    ends: dict[str, int], bounds: dict[str, tuple[int, int]], most: int = 100, **more: Any
) -> ArchiveRound:
    state = ArchiveState("1", {TopicPartition(topic, 0): end for topic, end in ends.items()})
    found = {TopicPartition(topic, 0): OffsetBounds(*each) for topic, each in bounds.items()}
    return next_round(RoundInput(state, found, most, 7, **more))


def test_a_round_is_shared_by_size_and_skips_no_partition():
    bounds = {"a": (0, 1_000_000), "b": (5, 105), "c": (0, 1), "d": (4, 4)}
    plan = planned({"d": 4}, bounds, 1_000)
    assert plan.ranges == (
        OffsetRange("a", 0, 0, 999),
        OffsetRange("b", 0, 5, 6),
        OffsetRange("c", 0, 0, 1),
    )


def test_a_topic_that_lost_all_records_has_an_empty_range_at_its_new_start():
    plan = planned({"a": 4}, {"a": (9, 9)}, accept_loss={"a"})
    assert plan.ranges == (OffsetRange("a", 0, 9, 9),)
    assert [each.range for each in plan.lost] == [OffsetRange("a", 0, 4, 9)]


def test_a_topic_is_refused_alone():
    plan = planned({"a": 4, "b": 4, "c": 4}, {"a": (6, 9), "b": (0, 3), "c": (0, 9)})
    assert {topic: error.code for topic, error in plan.refused.items()} == {
        "a": "DATA_LOST",
        "b": "OFFSETS_WENT_BACK",
    }
    assert "ends at offset 3, but is archived up to 4" in str(plan.refused["b"])
    assert plan.ranges == (OffsetRange("c", 0, 4, 9),)
    assert plan.lost == ()


def test_offsets_are_lost_for_several_reasons_at_once():
    gone = {A: [GoneRange(OffsetRange("a", 0, 6, 8), "unrepresentable: timestamp 9 ms")]}
    bounds = {"a": (6, 12)}
    plan = planned({"a": 4}, bounds, gone=gone)
    assert "2 offsets were deleted before" in str(plan.refused["a"])
    assert "2 offsets hold records that Spark cannot represent" in str(plan.refused["a"])
    plan = planned({"a": 4}, bounds, gone=gone, accept_loss={"a"})
    assert plan.ranges == (OffsetRange("a", 0, 8, 12),)
    assert [(each.range, each.reason) for each in plan.lost] == [
        (OffsetRange("a", 0, 4, 6), DELETED),
        (OffsetRange("a", 0, 6, 8), "unrepresentable: timestamp 9 ms"),
    ]


def test_only_what_a_later_topic_skips_is_recorded():
    starts = {A: 5}
    first = planned({}, {"a": (2, 9)}, starts=starts)
    assert (first.ranges, first.lost) == ((OffsetRange("a", 0, 5, 9),), ())
    later = planned({"b": 0}, {"a": (2, 9)}, starts=starts)
    assert (later.ranges, later.refused) == (first.ranges, {})
    assert later.lost == (LostOffsets(OffsetRange("a", 0, 2, 5), 7, SKIPPED),)
    report = ArchiveReport()
    report.add(later)
    assert (report.offsets, report.lost, report.skipped) == (4, 0, 3)
    assert report.partitions[A].start == 5


def test_a_commit_has_the_ids_of_its_own_topics_only():
    plan = ArchiveRound((OffsetRange("a", 0, 0, 1),))
    commit = plan.commit({"a": "1", "b": "2"}, frozenset(), lambda: None)
    assert commit.topic_ids == {"a": "1"}


# pacing


def test_without_bounds_every_round_commits():
    pacer = CommitPacer(0, 0)
    pacer.on_committed(10, 1000)
    assert pacer.is_due(1, 0)
    assert pacer.limit(7) == 7


def test_a_commit_waits_for_its_size_or_its_time():
    pacer = CommitPacer(1000, 60)
    assert pacer.is_due(1, 0), "the first commit measures the records"
    pacer.on_committed(10, 500)
    assert pacer.limit(10**9) == 20
    assert pacer.limit(7) == 7
    assert not pacer.is_due(19, 100)
    assert pacer.is_due(20, 101)
    assert not pacer.is_due(3, 159.9)
    assert pacer.is_due(3, 160)
    pacer.on_committed(3, 150)
    assert not pacer.is_due(3, 161), "the time begins again"
    assert pacer.is_due(0, 161), "a commit without records does not wait"


# metrics


def test_the_page_shows_a_running_job():
    clock = SimpleNamespace(now_ms=lambda: 5000, monotonic_s=lambda: now_s[0])
    now_s = [0.0]
    metrics = ArchiveMetrics(clock)  # type: ignore[arg-type]
    lost = LostOffsets(OffsetRange("a", 0, 0, 4), 7, "unrepresentable: timestamp 9 ms")
    now_s[0] = 10.0
    metrics.on_planned(100)
    metrics.on_committed(ArchiveRound((OffsetRange("a", 0, 4, 34),), (lost,)))
    metrics.on_retry(JobError("gone", "UNREACHABLE"), 1)
    metrics.on_set_aside("b", JobError("anew", "TOPIC_MADE_ANEW"))
    metrics.on_set_aside("c", JobError("lost", "DATA_LOST"))
    metrics.on_recovered("c", JobError("lost", "DATA_LOST"))
    with served(metrics, "127.0.0.1", 0) as address:
        page = urllib.request.urlopen(address, timeout=60).read().decode()
        port = int(address.rpartition(":")[2].partition("/")[0])
        taken = served(metrics, "127.0.0.1", port)
        with pytest.raises(JobError, match=f"^--metrics-port {port}: cannot listen"), taken:
            pass
    lines = page.splitlines()
    for line in (
        "gateway_job_records_total 30.0",
        "gateway_job_commits_total 1.0",
        "gateway_job_lag 66.0",
        "gateway_job_records_per_second 3.0",
        "gateway_job_last_commit_timestamp_seconds 5.0",
        'gateway_job_lost_records_total{reason="unrepresentable"} 4.0',
        'gateway_job_retries_total{code="UNREACHABLE"} 1.0',
        'gateway_job_topic_set_aside{code="TOPIC_MADE_ANEW",topic="b"} 1.0',
    ):
        assert line in lines
    assert "DATA_LOST" not in page
    now_s[0] = 70.5
    assert metrics.registry.get_sample_value("gateway_job_records_per_second") == 0


# exact reads


def test_adjacent_records_share_a_range():
    found = [
        Unrepresentable(A, 3, 30),
        Unrepresentable(A, 4, 20),
        Unrepresentable(A, 6, 5),
        Unrepresentable(TopicPartition("a", 1), 7, 5),
    ]
    assert merge_unrepresentable(found) == [
        (OffsetRange("a", 0, 3, 5), "unrepresentable: timestamp 20 ms to 30 ms"),
        (OffsetRange("a", 0, 6, 7), "unrepresentable: timestamp 5 ms"),
        (OffsetRange("a", 1, 7, 8), "unrepresentable: timestamp 5 ms"),
    ]


def test_a_reply_is_split_into_its_whole_batches():
    one, other = plain_batch([1, 2]), plain_batch([3])
    assert list(split_batches(one + other)) == [one, other]
    assert list(split_batches(one + other[:-1])) == [one]
    assert list(split_batches(b"")) == []


def test_the_batches_of_aborted_transactions_are_left_out():
    def batch(offset: int, producer: int, attributes: int) -> bytes:
        return plain_batch([1], base_offset=offset, producer=producer, attributes=attributes)

    transactional, control = 0x10, 0x30
    found = [
        batch(0, 1, transactional),
        batch(1, 2, transactional),
        batch(2, 1, 0),
        batch(3, 1, control),
        batch(4, 1, transactional),
    ]
    aborted = [SimpleNamespace(producer_id=1, first_offset=0)]
    kept, holes = sort_out(found, aborted)
    assert holes == [(0, 1), (3, 4)]
    assert kept == found[1:], "the transaction of producer 1 ends with its control batch"
    assert sort_out(found, ())[0] == found


def test_a_batch_that_a_compaction_has_emptied_is_left_out():
    full = plain_batch([1])
    assert sort_out([raw_batch(b"", 0, last_offset_delta=3), full], ()) == ([full], [])


def summary(*offsets: int) -> OffsetSummary:
    """Return the summary of these offsets, as Spark computes it."""
    fold = 0
    for each in offsets:
        fold ^= fold_of(each, each + 1)
    return OffsetSummary(len(offsets), min(offsets), max(offsets), fold)


@pytest.mark.parametrize(
    ("proved", "problem"),
    [
        pytest.param((2, 4), "", id="all of them"),
        pytest.param((), "3 records of 5", id="none"),
        pytest.param((2,), "3 records, 1 markers and aborted records of 5", id="too few"),
        pytest.param((2, 3), "some offsets are missing", id="others"),
    ],
)
def test_an_offset_may_be_missing_only_if_it_is_proved_to_hold_no_record(
    proved: tuple[int, ...], problem: str
) -> None:
    def holes(ranges: Sequence[OffsetRange]) -> dict[TopicPartition, HoleSum]:
        assert list(ranges) == [wanted]
        return {A: HoleSum(len(proved), summary(*proved).fold)} if proved else {}

    wanted, frame = OffsetRange("a", 0, 0, 5), cast("Any", None)
    found = {A: summary(0, 1, 3)}
    if not problem:
        check_records([wanted], frozenset(), found, frame, holes)
        return
    with pytest.raises(JobError, match=problem):
        check_records([wanted], frozenset(), found, frame, holes)


def test_a_range_that_holds_only_holes_has_no_record() -> None:
    wanted, frame = [OffsetRange("a", 0, 0, 5)], cast("Any", None)
    whole = HoleSum(5, summary(*range(5)).fold)
    check_records(wanted, frozenset(), {}, frame, lambda _: {A: whole})
    with pytest.raises(JobError, match="0 records of 5"):
        check_records(wanted, frozenset(), {}, frame, lambda _: {})


def test_holes_are_clipped_and_merged() -> None:
    holes = [(0, 3), (3, 4), (6, 9), (9, 30)]
    assert clip_holes(holes, OffsetRange("a", 0, 2, 12)) == [
        OffsetRange("a", 0, 2, 4),
        OffsetRange("a", 0, 6, 12),
    ]
