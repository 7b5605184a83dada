"""Goal: our assignors return what Apache Kafka's return, partition by partition.

Method: histories of groups that were drawn, given to Kafka 4.3's own classes, and recorded. The
uniform assignor is also checked for its balance.
"""

import pytest

from tests.compat.assignors.cases import moves, ours, save

CASES = list(save.read())


def test_the_recording_has_all_kinds_of_groups():
    kinds = {(each["assignor"], each["alike"]) for each in CASES}
    assert kinds == {("range", True), ("range", False), ("uniform", True), ("uniform", False)}
    assert len(CASES) > 300


@pytest.mark.parametrize("assignor", ["range", "uniform"])
def test_each_partition_goes_where_kafkas_assignor_gives_it(assignor):
    differing = [
        case for case in CASES if case["assignor"] == assignor and ours(case) != case["after"]
    ]
    assert differing == []


def test_uniform_never_moves_more_partitions_than_kafkas():
    uniform = [case for case in CASES if case["assignor"] == "uniform"]
    assert all(moves(case, ours(case)) <= moves(case, case["after"]) for case in uniform)


def test_uniform_is_balanced_within_one_if_all_subscribe_alike():
    for case in CASES:
        if case["assignor"] == "uniform" and case["alike"]:
            sizes = [sum(map(len, own.values())) for own in ours(case)]
            assert max(sizes) - min(sizes) <= 1
            topics = case["members"][0]["topics"]
            assert sum(sizes) == sum(case["topics"][number][2] for number in topics)
