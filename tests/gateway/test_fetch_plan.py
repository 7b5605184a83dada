"""Goal: a plan fills a response as Kafka does: in order, within its bytes, the first batch whole,
early only if waiting would not improve it.

Method: single facts; then Hypothesis plans fetches of small logs beside a slow twin that computes
every total anew.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from gateway.core.fetch_plan import OPEN_S_MIN, FetchPlan
from gateway.core.fetch_session import FetchPartition
from ledger.streams.tail_cache import StoredRecord

OK = ErrorCode.none
AHEAD = ErrorCode.offset_not_available
EPOCH = 5


class Log(NamedTuple):
    """A log of batches of these sizes, two records each, and the request for it."""

    sizes: tuple[int, ...] = ()
    start: int = 0
    is_follower: bool = False
    offset: int = 0
    bytes_max: int = 1000
    leader_epoch: int = -1
    preferred: int = -1
    error: ErrorCode = OK  # why no log serves the request

    @property
    def end(self):
        return self.start + 2 * len(self.sizes)

    def batches(self):
        return [
            StoredRecord(self.start + 2 * at, self.start + 2 * at + 2, -1, size, ())
            for at, size in enumerate(self.sizes)
        ]

    def read(self, bytes_max):
        """Return at least one batch, and as many more as fit."""
        taken = []
        for batch in self.batches():
            if batch.end_sequence_id <= self.offset:
                continue
            if taken and sum(each.size_bytes for each in taken) + batch.size_bytes > bytes_max:
                break
            taken.append(batch)
        return taken


def plan_of(logs, min_bytes=1, bytes_max=1000, wait_s=1.0):
    asked = [
        FetchPartition("t", at, log.offset, log.bytes_max, log.leader_epoch)
        for at, log in enumerate(logs)
    ]
    return FetchPlan(asked, min_bytes, bytes_max, wait_s)


def run(plan, logs):
    """Run one pass; return the partitions that were read."""
    read = []
    for result in plan.undecided:
        log = logs[result.asked.partition]
        if log.error:
            plan.refuse(result, log.error)
        elif plan.needs_read(result, log.start, log.end, EPOCH, log.is_follower, log.preferred):
            read.append(result.asked.partition)
            plan.add_records(result, log.read(plan.read_bytes_max(result.asked)), log.end)
    return read


def planned(*logs, **limits):
    plan = plan_of(logs, **limits)
    run(plan, logs)
    return plan


def sent(plan):
    return [[each.sequence_id for each in result.records] for result in plan.decided]


def errors(plan):
    return [plan.error_of(result) for result in plan.decided]


# -- what a response holds ------------------------------------------------------------------------


def test_records_are_sent_up_to_the_bytes_that_the_client_takes_of_a_partition():
    assert sent(planned(Log((100, 100, 100), bytes_max=250))) == [[0, 2]]


def test_later_partitions_share_what_earlier_ones_leave():
    logs = [Log((300, 300)), Log((300, 300)), Log((300,))]
    assert sent(planned(*logs, bytes_max=1000)) == [[0, 2], [0], []]


def test_the_first_batch_is_sent_whole_even_if_no_bytes_are_asked_for():
    assert sent(planned(Log((900,), bytes_max=0), Log((900,)), bytes_max=0)) == [[0], []]


def test_nothing_is_read_after_a_batch_that_did_not_fit():
    logs = [Log((600,)), Log((600,)), Log((10,)), Log((10,))]
    plan = plan_of(logs)
    assert run(plan, logs) == [0, 1]
    assert sent(plan) == [[0], [], [], []]


@pytest.mark.parametrize(
    ("log", "error"),
    [
        (Log((1, 1), start=4, offset=3), ErrorCode.offset_out_of_range),
        (Log((1, 1), start=4, offset=4), OK),
        (Log((1, 1), start=4, offset=8), OK),
        (Log((1, 1), start=4, offset=9), ErrorCode.offset_out_of_range),
        (Log((1, 1), start=4, offset=3, is_follower=True), ErrorCode.offset_out_of_range),
        (Log((1, 1), start=4, offset=9, is_follower=True), AHEAD),
        (Log((1,), leader_epoch=EPOCH), OK),
        (Log((1,), leader_epoch=EPOCH - 1), ErrorCode.fenced_leader_epoch),
        (Log((1,), leader_epoch=EPOCH + 1), ErrorCode.unknown_leader_epoch),
        (Log((1,), offset=9, leader_epoch=EPOCH - 1), ErrorCode.fenced_leader_epoch),
        (Log(error=ErrorCode.unknown_topic_id), ErrorCode.unknown_topic_id),
    ],
)
def test_epochs_and_offsets_outside_the_log_are_errors(log, error):
    plan = planned(log, wait_s=0.0)
    assert errors(plan) == [error]
    assert not error or sent(plan) == [[]]


def test_an_offset_past_a_followers_end_is_an_error_only_when_the_time_is_over():
    plan = planned(Log((1,), offset=9, is_follower=True))
    assert (errors(plan), plan.complete) == ([OK], False)
    plan.timed_out = True
    assert errors(plan) == [AHEAD]


def test_a_preferred_replica_is_named_instead_of_records_but_not_instead_of_an_error():
    plan = planned(Log((1,), preferred=3), Log((1,), offset=9, preferred=3))
    assert [result.preferred_replica for result in plan.decided] == [3, -1]
    assert errors(plan) == [OK, ErrorCode.offset_out_of_range]
    assert sent(plan) == [[], []]


# -- when it is sent ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "complete"),
    [
        (Log((100, 100), offset=4), False),
        (Log((100, 100), offset=2), False),
        (Log((100, 100)), True),
        (Log((100, 100), bytes_max=100), True),
        (Log((100,), offset=9), True),
        (Log((100,), offset=9, is_follower=True), False),
        (Log((100,), preferred=3), True),
    ],
)
def test_it_is_complete_with_enough_bytes_or_a_result_that_waiting_does_not_improve(log, complete):
    assert planned(log, min_bytes=200).complete is complete


def test_the_bytes_of_all_partitions_count():
    logs = [Log((100,)), Log((100,))]
    assert not planned(*logs, min_bytes=201).complete
    assert planned(*logs, min_bytes=200).complete


def test_partitions_that_all_rest_are_no_reason_to_respond():
    assert not planned(min_bytes=1000).complete


def test_a_partition_lost_while_others_were_read_is_an_error_and_sends_nothing():
    plan = planned(Log((100,)), min_bytes=1000)
    plan.revoke(plan.decided[0], ErrorCode.not_leader_or_follower)
    assert (sent(plan), errors(plan)) == ([[]], [ErrorCode.not_leader_or_follower])
    assert plan.complete


def test_opening_delays_nothing_that_is_complete_and_otherwise_gets_its_time():
    logs = [Log((100,)), Log()]
    for wait_s in (0.1, 3.0):
        plan = plan_of(logs, wait_s=wait_s)
        assert plan.opening_wait_s == max(wait_s, OPEN_S_MIN), "nothing is decided"
        run_first(plan, logs)
        assert plan.opening_wait_s == 0.0
    plan = plan_of(logs, wait_s=3.0, min_bytes=1000)
    run_first(plan, logs)
    assert plan.opening_wait_s == 3.0


def run_first(plan, logs):
    [result, _] = plan.undecided
    plan.add_records(result, logs[0].read(1000), logs[0].end)


def test_a_new_pass_is_not_complete_because_the_last_one_was():
    plan = planned(Log(error=ErrorCode.unknown_topic_id))
    assert plan.complete
    plan.restart()
    run(plan, [Log()])
    assert not plan.complete


# -- beside a twin --------------------------------------------------------------------------------


def twin(logs, min_bytes, bytes_max):
    """Return records, error and preferred replica of each log; and whether to respond now."""
    answers, full, good = [], False, False
    for log in logs:
        so_far = sum(sum(each.size_bytes for each in batches) for batches, _, _ in answers)
        left = 0 if full else bytes_max - so_far
        error, preferred, batches, more = log.error or position_error(log), -1, [], False
        if not error and log.preferred >= 0:
            preferred = log.preferred
        elif not error and log.offset != log.end:
            batches = log.read(min(log.bytes_max, left))
            fits = so_far == 0 or (left > 0 and batches[0].size_bytes <= left)
            batches = batches if fits else []
            full = full or not fits
            more = not batches or batches[-1].end_sequence_id < log.end
        answers.append((batches, error, preferred))
        good = good or bool(error and error is not AHEAD) or preferred >= 0 or more
    total = sum(sum(each.size_bytes for each in batches) for batches, _, _ in answers)
    return answers, good or total >= min_bytes


def position_error(log):
    if log.leader_epoch >= 0 and log.leader_epoch != EPOCH:
        old = log.leader_epoch < EPOCH
        return ErrorCode.fenced_leader_epoch if old else ErrorCode.unknown_leader_epoch
    if log.offset > log.end and log.is_follower:
        return AHEAD
    return OK if log.start <= log.offset <= log.end else ErrorCode.offset_out_of_range


SIZES = st.integers(61, 400)
LOGS = st.lists(
    st.builds(
        Log,
        sizes=st.lists(SIZES, max_size=4).map(tuple),
        start=st.sampled_from([0, 0, 2]),
        is_follower=st.booleans(),
        offset=st.integers(0, 10),
        bytes_max=st.integers(-1, 800),
        leader_epoch=st.sampled_from([-1, -1, -1, EPOCH, 4, 6]),
        preferred=st.sampled_from([-1, -1, -1, 2]),
        error=st.sampled_from([OK, OK, OK, ErrorCode.unknown_topic_id]),
    ),
    max_size=5,
)
BYTES = st.integers(0, 1500)


def answers_of(plan):
    return [
        (list(result.records), result.error, result.preferred_replica) for result in plan.decided
    ]


@settings(deadline=None)
@given(LOGS, BYTES, BYTES)
@example([Log((100,), bytes_max=-1), Log((100,))], 1, 0)
def test_a_plan_decides_as_its_slow_twin(logs, min_bytes, bytes_max):
    plan = planned(*logs, min_bytes=min_bytes, bytes_max=bytes_max)
    answers, complete = twin(logs, min_bytes, bytes_max)
    assert answers_of(plan) == answers
    assert plan.complete is complete
    sizes = [result.size_bytes for result in plan.decided if result.records]
    assert sum(sizes) <= bytes_max or len(sizes) == 1


@settings(deadline=None)
@given(LOGS, LOGS, BYTES, BYTES, st.integers(0, 5))
def test_a_pass_keeps_nothing_of_the_one_before(before, logs, min_bytes, bytes_max, decided):
    """The logs change between two passes of one plan; the first may have been cut short."""
    before = [*before, *logs][: len(logs)]
    plan = plan_of(logs, min_bytes, bytes_max)
    for result, log in list(zip(plan.undecided, before, strict=True))[:decided]:
        if log.error:
            plan.refuse(result, log.error)
        elif plan.needs_read(result, log.start, log.end, EPOCH, log.is_follower, log.preferred):
            plan.add_records(result, log.read(plan.read_bytes_max(result.asked)), log.end)
    plan.restart()
    run(plan, logs)
    fresh = planned(*logs, min_bytes=min_bytes, bytes_max=bytes_max)
    assert answers_of(plan) == answers_of(fresh)
    assert plan.complete is fresh.complete
    assert [each.more for each in plan.decided] == [each.more for each in fresh.decided]


@settings(deadline=None)
@given(LOGS, LOGS, st.integers(0, 5), BYTES, BYTES)
def test_a_changed_partition_is_decided_as_a_new_pass_would(logs, changes, rested, low, bytes_max):
    """Logs change one at a time, `rested` of them for the first time; nothing else is decided."""
    min_bytes = max(low, 1)
    awake = logs[: len(logs) - rested] if rested < len(logs) else []
    plan = plan_of(awake, min_bytes, bytes_max)
    run(plan, awake)
    now = list(awake)
    for at, log in enumerate(changes[: len(logs)]):
        if plan.complete:
            break
        if at < len(now):
            log = log._replace(offset=now[at].offset, leader_epoch=now[at].leader_epoch)
            now[at] = log
            plan.reconsider(plan.results[at])
            again(plan, plan.results[at], log)
        else:
            now.append(log)
            asked = FetchPartition("t", len(now) - 1, log.offset, log.bytes_max, log.leader_epoch)
            again(plan, plan.add(asked), log)
    sizes = [result.size_bytes for result in plan.decided]
    assert len(plan.decided) == len(plan.results) == len(now)
    assert sum(sizes) <= bytes_max or sum(map(bool, sizes)) == 1
    if not plan.complete:
        bounds = [result.asked.bytes_max for result in plan.results]
        fresh = [log._replace(bytes_max=size) for log, size in zip(now, bounds, strict=True)]
        assert answers_of(plan) == answers_of(
            planned(*fresh, min_bytes=min_bytes, bytes_max=bytes_max)
        )


def again(plan, result, log):
    """Decide one partition."""
    if log.error:
        plan.refuse(result, log.error)
    elif plan.needs_read(result, log.start, log.end, EPOCH, log.is_follower, log.preferred):
        plan.add_records(result, log.read(plan.read_bytes_max(result.asked)), log.end)
