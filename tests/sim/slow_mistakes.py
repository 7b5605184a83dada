"""Mistakes in what a process makes of slow bookies, planted into the product for `mutations`."""

from ledger.core.bookie_health import Greylist
from tests.sim.planting import Mutation, patched
from tests.sim.slow_families import Slowness

_others = Greylist._others


def all_of_a_write_set(self, bookies, down, now_s, most, kind):
    return self.suspects(now_s).intersection(bookies)


def no_samples_are_fast(self, bookie, which, began_s, now_s):
    """Bookies that were never measured count as if they answered at once."""
    known = _others(self, bookie, which, began_s, now_s)
    return dict.fromkeys(("unmeasured 1", "unmeasured 2"), 0.0) | known


def by_averages_alone(self, bookie, which, began_s, now_s):
    """What the others did before this process was busy is their measure."""
    return {
        name: samples.average_s(now_s)
        for name, samples in self._samples[which].items()
        if name != bookie and samples.count(now_s)
    }


def never_probes(self, bookie, kind, replicas, now_s):
    return None


MUTATIONS = (
    Mutation(
        "L45",
        "a whole write set is greylisted",
        patched(Greylist, ask_last=all_of_a_write_set),
        Slowness,
    ),
    Mutation(
        "L45",
        "a bookie is judged against others without samples",
        patched(Greylist, _others=no_samples_are_fast),
        Slowness,
    ),
    Mutation(
        "L45",
        "a bookie is judged by what others did before",
        patched(Greylist, _others=by_averages_alone),
        Slowness,
    ),
    Mutation(
        "L45",
        "a lack of samples protects a slow bookie",
        patched(Greylist, choose_probe=never_probes),
        Slowness,
    ),
)
