"""Goal: the checker of copy jobs finds each way in which a copy can be wrong.

Method: a good copy of 8 records with 2 keys in 2 partitions, and one with each fault. Two
transactions commit the records; a third is aborted, and its records are copied again.
"""

import pytest

from tests.cluster.copies import ABORT, COMMIT, Copy, View, compare, compare_newest

KEYS = 2
COUNT = 8
OUTCOMES = {"first": COMMIT, "undone": ABORT}  # the answer to "second" was lost


def copies(transaction, *values, since=0):
    """Return the copies of a transaction, each key in a partition of its own."""
    return [Copy(value, value % 2, since + value, transaction, 1000 + value) for value in values]


FIRST = copies("first", 0, 1, 2, 3)
UNDONE = copies("undone", 4, 5)
SECOND = copies("second", 4, 5, 6, 7, since=10)


def kinds(view, outcomes=OUTCOMES):
    return {each.kind for each in compare(COUNT, view, outcomes, KEYS)}


def seen(*committed, more=()):
    """Return the view of committed copies, and of others that are only in the log."""
    return View(committed, sorted({*committed, *more}, key=lambda each: each.offset))


def test_a_copy_with_each_record_once_is_good():
    assert not kinds(seen(*FIRST, *SECOND, more=UNDONE))


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (seen(*FIRST), {"lost"}),
        (seen(*FIRST, more=SECOND), {"lost"}),
        (seen(*FIRST, *SECOND, *copies("third", 6, since=20)), {"doubled"}),
        (seen(*FIRST, *SECOND, *copies("third", 8, since=20)), {"foreign"}),
        (seen(*FIRST, SECOND[2], *SECOND[:2], SECOND[3]), {"reordered"}),
        (seen(*FIRST, *SECOND, more=copies("second", 6, since=20)), {"torn"}),
        (seen(*FIRST, *SECOND[2:], *UNDONE), {"aborted", "reordered"}),
        (seen(*FIRST[2:], *SECOND, more=FIRST), {"lost", "torn", "uncommitted"}),
    ],
)
def test_each_fault_is_found(view, expected):
    assert kinds(view) == expected


def test_a_fault_names_record_partition_offset_and_transaction():
    (doubled,) = compare(COUNT, seen(*FIRST, *SECOND, *copies("third", 7, since=20)), {}, KEYS)
    assert str(doubled) == (
        "doubled: record 7, partition 1 offset 17 by second; partition 1 offset 27 by third"
    )
    (lost,) = compare(COUNT, seen(*FIRST, *SECOND[:3]), {}, KEYS)
    assert str(lost) == "lost: record 7, without any copy"


def newest(*committed):
    return {each.kind for each in compare_newest(COUNT, View(committed, committed), OUTCOMES, KEYS)}


def test_a_compacted_topic_ends_with_the_last_value_of_each_key():
    assert not newest(*SECOND[2:])
    assert not newest(*FIRST, *SECOND)
    assert newest(*FIRST, *SECOND[:3]) == {"stale"}
    assert newest(SECOND[3]) == {"stale"}
    assert newest(*FIRST, *UNDONE, *SECOND[2:]) == {"aborted"}
