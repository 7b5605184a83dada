"""Goal: the checker of copy jobs finds each way in which a copy can be wrong.

Method: a good copy of 12 records with 3 keys in 2 partitions, and one with each fault.
"""

import pytest

from tests.cluster.copies import Verdict, compare

KEYS = 3
GOOD = {0: [0, 3, 1, 6, 4, 7, 9, 10], 1: [2, 5, 8, 11]}


def test_a_copy_with_each_record_once_is_good():
    verdict = compare(range(12), GOOD, KEYS)
    assert verdict.good
    assert verdict == Verdict(0, 0, 0, 0)


@pytest.mark.parametrize(
    ("copy", "expected"),
    [
        (GOOD | {1: [2, 5, 11]}, Verdict(1, 0, 0, 0)),
        (GOOD | {1: [2, 5, 8, 11, 11]}, Verdict(0, 1, 0, 0)),
        (GOOD | {1: [2, 5, 8, 2, 5, 8, 11]}, Verdict(0, 3, 0, 2)),
        (GOOD | {1: [2, 5, 8, 11, 14]}, Verdict(0, 0, 1, 0)),
        (GOOD | {1: [2, 8, 5, 11]}, Verdict(0, 0, 0, 1)),
        ({0: GOOD[0]}, Verdict(4, 0, 0, 0)),
    ],
)
def test_each_fault_is_counted(copy, expected):
    verdict = compare(range(12), copy, KEYS)
    assert verdict == expected
    assert not verdict.good
