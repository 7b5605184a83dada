"""Goal: whoever knows the same gateways and topics names the same candidates, and few of them move.

Method: the pure core on many topics; shares and moves are counted against their bounds.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.ring import SLACK_PERCENT, Assignment, Ring

TOPIC = UUID(int=7)


def topics_of(draw, count, partitions):
    return [(UUID(int=draw.getrandbits(128)), partitions) for _ in range(count)]


def candidates(nodes, topics):
    assigned = Assignment(Ring(nodes), topics)
    return {
        (topic_id, partition): assigned.candidate(topic_id, partition)
        for topic_id, count in topics
        for partition in range(count)
    }


@given(st.permutations(range(5)), st.integers(0, 2**32))
def test_members_that_cache_nothing_name_the_same_candidate_and_the_same_next_one(order, seed):
    draw = random.Random(seed)
    topics = topics_of(draw, 8, 3)
    shuffled = draw.sample(topics, len(topics))
    first = candidates(range(5), topics)
    assert candidates(order, shuffled) == first
    gone = first[topics[0][0], 0]
    left = [node for node in order if node != gone]
    assert candidates(left, shuffled) == candidates(sorted(left), topics)


@given(st.integers(1, 9), st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_no_gateway_has_more_than_its_share(nodes, counts):
    topics = [(UUID(int=at * 7919 + 1), count) for at, count in enumerate(counts)]
    loads = Counter(candidates(range(nodes), topics).values())
    assert sum(loads.values()) == sum(counts)
    mean = sum(counts) / nodes
    assert max(loads.values()) <= max(math.ceil(mean), mean * (1 + SLACK_PERCENT / 100))


def moved(nodes, more, topics):
    before, after = candidates(nodes, topics), candidates(more, topics)
    return sum(before[key] != after[key] for key in before) / len(before)


@pytest.mark.slow
def test_a_gateway_more_moves_about_its_share_of_one_large_topic():
    for nodes in (2, 3, 5, 10):
        part = moved(range(nodes), range(nodes + 1), [(TOPIC, 10_000)])
        assert 0.5 / (nodes + 1) < part < 1.5 / (nodes + 1)


def test_a_gateway_more_moves_about_its_share_of_many_small_topics():
    topics = topics_of(random.Random(3), 3_000, 1)
    for nodes in (2, 3, 5, 10):
        part = moved(range(nodes), range(nodes + 1), topics)
        assert 0.5 / (nodes + 1) < part < 1.5 / (nodes + 1)


def test_a_gateway_less_moves_what_it_had_and_little_else():
    before = candidates(range(4), [(TOPIC, 10_000)])
    after = candidates([0, 1, 3], [(TOPIC, 10_000)])
    others = [key for key in before if before[key] != 2]
    assert sum(before[key] != after[key] for key in others) < 0.05 * len(others)


def test_the_partitions_of_one_topic_are_spread():
    loads = Counter(
        candidates(range(3), [*topics_of(random.Random(1), 50, 2), (TOPIC, 12)])[TOPIC, partition]
        for partition in range(12)
    )
    assert set(loads.values()) == {4}


def test_successors_are_all_gateways_each_once():
    assigned = Assignment(Ring(range(5)), [(TOPIC, 3)])
    for partition in range(3):
        assert sorted(assigned.successors(TOPIC, partition)) == [0, 1, 2, 3, 4]


def test_what_is_not_there_has_no_candidate():
    assigned = Assignment(Ring([1]), [(TOPIC, 1)])
    nobody = Assignment(Ring([]), [(TOPIC, 1)])
    assert assigned.candidate(TOPIC, 1) is None
    assert assigned.candidate(UUID(int=8), 0) is None
    assert nobody.candidate(TOPIC, 0) is None
    assert list(nobody.successors(TOPIC, 0)) == []
    assert Ring([]).candidate("group") is None


def test_groups_are_spread_and_stay_where_they_are_when_a_gateway_joins():
    groups = [f"group-{number}" for number in range(3_000)]
    three, four = Ring(range(3)), Ring(range(4))
    loads = Counter(three.candidate(group) for group in groups)
    assert min(loads.values()) > 700
    went = [group for group in groups if three.candidate(group) != four.candidate(group)]
    assert {four.candidate(group) for group in went} == {3}
    assert 0.15 < len(went) / len(groups) < 0.35
