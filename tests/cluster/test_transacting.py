"""Goal: the proof of transactions reaches each point with each victim, and names the right harm.

Method: the plan of its kills, and its record of harms, without a cluster.
"""

import itertools
import random
from collections import Counter

from tests.cluster.copying_harms import POINTS, VICTIMS
from tests.cluster.transacting import Harm, Record, plan


def test_each_point_is_reached_equally_often_and_each_pair_once():
    pairs = plan(random.Random(1), POINTS, VICTIMS)
    row = list(itertools.islice(pairs, len(POINTS)))
    assert {point for point, _ in row} == set(POINTS)
    rest = itertools.islice(pairs, len(POINTS) * (len(VICTIMS) - 1))
    assert set(Counter([*row, *rest]).values()) == {1}


def test_an_anomaly_is_named_with_the_last_harm_that_had_begun():
    record = Record()
    record.harms += [Harm("first", 1_000, 2_000), Harm("second", 3_000, 4_000)]
    named = [record.at(time_ms) for time_ms in (999, 1_500, 2_500, 3_000, 9_000)]
    assert named == ["no harm", "first", "first", "second", "second"]
