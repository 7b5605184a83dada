"""Goal: our assignors return what Apache Kafka's return, partition by partition.

Method: histories of groups that were drawn, given to Kafka 4.3's own classes, and recorded. The
uniform assignor is also checked for its balance.
"""

from itertools import chain
from uuid import UUID

import pytest

from gateway.core.consumer_assignors import ASSIGNORS, AssignmentSpec, MemberSpec, result_of
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


def test_uniform_does_not_count_partitions_of_a_topic_that_is_gone():
    """Two of three members had partitions of the topic that is gone, the last one."""
    for case in CASES:
        if case["assignor"] == "uniform" and case["alike"]:
            gone = str(len(case["topics"]))
            members = [
                {**each, "before": {**each["before"], gone: [0, 1, 2]} if number % 3 else {}}
                for number, each in enumerate(case["members"])
            ]
            without = [
                {**each, "before": each["before"] if number % 3 else {}}
                for number, each in enumerate(case["members"])
            ]
            topics = [*case["topics"], [1, 1, 3]]
            assert ours({**case, "topics": topics, "members": members}) == ours(
                {**case, "members": without}
            )


def members_of_one_topic(names):
    return {name: MemberSpec(frozenset([UUID(int=7)]), {}) for name in names}


def test_range_orders_names_by_their_utf_16_units_as_java_does():
    names = ["\uff5e", "\U0001f600", "z"]  # surrogates of the second come before the first
    spec = AssignmentSpec(members_of_one_topic(names), {UUID(int=7): 3}, homogeneous=True)
    found = result_of(ASSIGNORS["range"](spec))
    assert {name: set(*own.values()) for name, own in found.items()} == {
        "z": {0},
        "\U0001f600": {1},
        "\uff5e": {2},
    }


@pytest.mark.parametrize("assignor", ["range", "uniform"])
def test_each_of_very_many_partitions_has_one_member(assignor):
    spec = AssignmentSpec(
        members_of_one_topic(map(str, range(4999))), {UUID(int=7): 5000}, homogeneous=True
    )
    found = result_of(ASSIGNORS[assignor](spec))
    given = [*chain.from_iterable(chain.from_iterable(own.values() for own in found.values()))]
    assert sorted(given) == [*range(5000)]
    assert sorted(map(len, (own[UUID(int=7)] for own in found.values()))) == [1] * 4998 + [2]
