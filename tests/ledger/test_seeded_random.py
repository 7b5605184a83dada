"""Goal: the seeded numbers are even, do not depend on those before, and repeat themselves.

Method: counts over many numbers, also of every n-th one: a choice may take several at a time.
"""

from collections import Counter
from itertools import pairwise

from ledger.core.seeded_random import seeded_random


def numbers(seed, count):
    random = seeded_random(seed)
    return [random() for _ in range(count)]


def test_it_repeats_itself_by_seed_and_differs_between_seeds():
    assert numbers(7, 100) == numbers(7, 100)
    assert len({numbers(seed, 1)[0] for seed in range(1000)}) == 1000
    assert all(0 <= number < 1 for number in numbers(-3, 1000) + numbers(1_700_000_000_000, 1000))


def test_every_nth_number_is_as_even_as_all_of_them():
    for step in range(1, 9):
        for first in range(step):
            some = numbers(1_700_000_000_000, 1000 * step)[first::step]
            tenths = Counter(int(10 * number) for number in some)
            assert len(tenths) == 10 and max(tenths.values()) <= 2 * min(tenths.values())


def test_the_next_number_is_not_told_by_the_one_before():
    some = numbers(5, 10_001)
    pairs = Counter((int(5 * one), int(5 * other)) for one, other in pairwise(some))
    assert len(pairs) == 25 and max(pairs.values()) <= 1.5 * min(pairs.values())
