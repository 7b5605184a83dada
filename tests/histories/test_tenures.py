"""Goal: the checker of tenures finds each fault of a history of members, and none in a good one.

Method: a good history by hand, and one fault planted into it at a time.
"""

from __future__ import annotations

import pytest

from tests.histories.tenures import Event, check, check_takeovers, redelivered, takeovers
from tests.peers.members import events

WRITTEN = [(0, offset) for offset in range(4)] + [(1, 0)]
GOOD = """\
10 a assigned 0,1
20 a read 2 0 0,1
21 a read 2 1 0
30 a revoked 0
40 b assigned 0
50 b read 3 0 2,3
60 a lost 1
70 b revoked 0
80 b left -
90 a left -
"""


def found(text):
    return check(list(events(text)), WRITTEN)


def test_a_good_history_has_no_fault():
    assert found(GOOD) == []
    assert redelivered(events(GOOD)) == 0


def test_events_are_read_from_lines_and_a_cut_line_is_left_out():
    first, *_ = read = list(events(GOOD + "95 a rea"))
    assert first == Event(10, "a", "assigned", (0, 1))
    assert read[1] == Event(20, "a", "read", (0,), 2, (0, 1))
    assert read[-1] == Event(90, "a", "left", text="-")


@pytest.mark.parametrize(
    ("line", "planted", "fault"),
    [
        ("50 b read 3 0 2,3", "50 b read 3 0 2", "offset 3 of partition 0 was read by no member"),
        ("50 b read 3 0 2,3", "50 b read 3 0 3,2", "b reads offset 2 of partition 0 after 3"),
        ("50 b read 3 0 2,3", "50 b read 2 0 1,2,3", "offset 1 of partition 0 came twice in epoch"),
        ("30 a revoked 0", "45 a revoked 0", "a and b have partition 0 at once"),
        ("30 a revoked 0", "30 a error gone", "a and b have partition 0 at once"),
        ("40 b assigned 0", "55 b assigned 0", "b reads partition 0, which it has not"),
    ],
)
def test_a_planted_fault_is_found(line, planted, fault):
    assert line in GOOD
    first, *_ = found(GOOD.replace(line, planted))
    assert fault in first


def test_a_partition_that_was_lost_may_be_with_another_member_already():
    text = GOOD.replace("30 a revoked 0", "45 a lost 0")
    assert found(text) == []


def test_a_record_that_comes_again_in_another_epoch_is_counted():
    text = GOOD.replace("50 b read 3 0 2,3", "50 b read 3 0 1,2,3")
    assert found(text) == []
    assert redelivered(events(text)) == 1


KILLED = """\
10 a assigned 0,1
20 a read 2 0 0,1
21 a read 2 1 0
25 a killed -
70 b assigned 0
71 c assigned 1
80 b read 3 0 2,3
90 b left -
91 c left -
"""
COMMITTED = {("a", 0): 2, ("a", 1): 1}
SESSION_US = 40


def found_after_a_kill(text, committed=COMMITTED):
    """Return the faults of both checks."""
    seen = list(events(text))
    return [*check(seen, WRITTEN), *check_takeovers(takeovers(seen), committed, SESSION_US)]


def test_partitions_of_a_killed_member_are_taken_over_after_its_session():
    assert found_after_a_kill(KILLED) == []
    assert [each.after_us for each in takeovers(events(KILLED))] == [45, 46]


def test_a_record_that_was_read_and_not_committed_before_a_kill_comes_again():
    text = KILLED.replace("80 b read 3 0 2,3", "80 b read 3 0 1,2,3")
    assert found_after_a_kill(text, COMMITTED | {("a", 0): 1}) == []


@pytest.mark.parametrize(
    ("line", "planted", "fault"),
    [
        ("71 c assigned 1\n", "", "no member takes over partition 1 of a"),
        ("70 b assigned 0", "60 b assigned 0", "b takes over partition 0 of a, which was killed"),
        ("70 b assigned 0", "24 b assigned 0", "a and b have partition 0 at once"),
        ("80 b read 3 0 2,3", "80 b read 3 0 3", "offset 2 of partition 0 was read by no member"),
        ("80 b read 3 0 2,3", "80 b read 3 0 1,2,3", "at offset 1, not 2"),
        ("80 b read 3 0 2,3", "80 b read 2 0 1,2,3", "offset 1 of partition 0 came twice in epoch"),
        ("25 a killed -", "25 a error gone", "a and b have partition 0 at once"),
    ],
)
def test_a_planted_fault_after_a_kill_is_found(line, planted, fault):
    assert line in KILLED
    first, *_ = found_after_a_kill(KILLED.replace(line, planted))
    assert fault in first
