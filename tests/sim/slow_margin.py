"""Measures which margin finds slow bookies and spares healthy ones, on drawn latencies.

    python -m tests.sim.slow_margin [--reads N] [--seeds N]

Six bookies are read in turn. Their latencies are those of the simulated network, both ways, and of
a bookie that takes half a millisecond. Decision 0017 shows the table.
"""

import argparse
from random import Random

from ledger.client.config import LedgerClientConfig
from ledger.core.bookie_health import Greylist
from ledger.core.latency import SampleKind
from tests.sim.network import Network, Weather

BOOKIES = [f"b{n}" for n in range(6)]
SLOW = "b3"
MARGINS = (1.0, 2.0, 3.0, 5.0, 10.0)
WITHIN = 10
WEATHERS = {
    "calm": Weather(tail_rate=0.0),
    "1 in 50 takes 20 times as long": Weather(tail_rate=0.02, tail_factor=20),
    "1 in 10 takes 50 times as long": Weather(tail_rate=0.1, tail_factor=50),
    "1 in 3 takes 100 times as long": Weather(tail_rate=0.35, tail_factor=100),
}
SLOWNESS = {  # (mean latency of a message, factor of the slow bookie, seconds on top)
    "3 times slower": (0.001, 3, 0.0),
    "5 times slower": (0.001, 5, 0.0),
    "10 times slower": (0.001, 10, 0.0),
    "20 times slower": (0.001, 20, 0.0),
    "2.5 ms, one of them +50 ms": (0.001, 1, 0.05),
    "5 ms, one of them +50 ms": (0.00225, 1, 0.05),
    "10 ms, one of them +50 ms": (0.00475, 1, 0.05),
}


class Reads:
    """Reads of all bookies in turn, by seed."""

    def __init__(self, seed, margin, weather):
        self.draw = Random(f"{seed}:margin")
        self.network = Network(self.draw, weather, {})
        rules = LedgerClientConfig(slow_margin=margin).health_rules()
        self.greylist = Greylist(rules)
        self.now_s = 0.0
        self.more_s = {}

    def read(self, bookie):
        """Return whether this read was the one that made the bookie slow."""
        both_ways = [self.network.delay_s("reader", bookie) for _ in range(2)]
        seconds = sum(both_ways) + self.draw.expovariate(2000) + self.more_s.get(bookie, 0.0)
        self.now_s += seconds
        one, before = self.greylist, self.greylist.catches
        if one.on_sample(bookie, SampleKind.READ, 100, seconds, self.now_s, BOOKIES):
            one.judge(bookie, SampleKind.READ, 100, self.now_s, BOOKIES)
        return one.catches > before


def wrongly_caught(margin, weather, count):
    """How many healthy bookies were found slow in so many reads."""
    reads = Reads(0, margin, weather)
    return sum(reads.read(BOOKIES[number % len(BOOKIES)]) for number in range(count))


def found_within(margin, slowness, seeds):
    """The share of seeds in which the slow bookie, and no other, is found within ten reads."""
    latency_s, factor, more_s = slowness
    found = 0
    for seed in range(seeds):
        reads = Reads(seed, margin, Weather(latency_s=latency_s, tail_rate=0.0))
        for number in range(40 * len(BOOKIES)):
            reads.read(BOOKIES[number % len(BOOKIES)])
        reads.network.slow["reader", SLOW] = factor
        reads.more_s[SLOW] = more_s
        caught = [name for _ in range(WITHIN) for name in BOOKIES if reads.read(name)]
        found += caught == [SLOW]
    return found / seeds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--reads", type=int, default=1_000_000)
    parser.add_argument("--seeds", type=int, default=1_000)
    arguments = parser.parse_args()
    print("| margin |", " | ".join(f"{margin:g}" for margin in MARGINS), "|")
    for name, weather in WEATHERS.items():
        cells = [wrongly_caught(margin, weather, arguments.reads) for margin in MARGINS]
        print(f"| healthy, {name} |", " | ".join(map(str, cells)), "|", flush=True)
    for name, slowness in SLOWNESS.items():
        cells = [found_within(margin, slowness, arguments.seeds) for margin in MARGINS]
        print(f"| {name} |", " | ".join(f"{100 * cell:.0f} %" for cell in cells), "|", flush=True)


if __name__ == "__main__":
    main()
