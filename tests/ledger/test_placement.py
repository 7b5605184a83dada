"""Goal: copies lie in as many racks as there are, on bookies that share the load.

Method: Hypothesis draws clusters; a dumb twin tries every choice and every order. Spread is
counted over many ledgers with seeded chance.
"""

from collections import Counter
from itertools import combinations, permutations, product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.placement import choose_ensemble, choose_replacement, span
from ledger.errors import NotEnoughBookies

RACKS = st.sampled_from(["/a", "/b", "/c"])


@st.composite
def clusters(draw, spare=0):
    """(racks by bookie, E, Qw): at least E + spare bookies in one to three racks."""
    size = draw(st.integers(1, 5))
    count = draw(st.integers(size + spare, 7))
    racks = {f"b{n}": draw(RACKS) for n in range(count)}
    return racks, size, draw(st.integers(1, size))


def spans(ensemble, racks, quorum):
    """(fewest, all together) racks of the write quorums."""
    turns = [ensemble[at:] + ensemble[:at] for at in range(len(ensemble))]
    each = [len({racks[bookie] for bookie in turn[:quorum]}) for turn in turns]
    return min(each), sum(each)


SEEDS = st.integers(0, 999)
LOADS = st.dictionaries(st.sampled_from([f"b{n}" for n in range(7)]), st.floats(0, 1e9))
AVOIDED = st.sets(st.sampled_from([f"b{n}" for n in range(7)]))


def choose(racks, size, quorum, *, load=None, avoid=(), local_rack=None, enforce=False, seed=0):
    return choose_ensemble(
        racks,
        ensemble_size=size,
        write_quorum=quorum,
        load=load or {},
        avoid=avoid,
        local_rack=local_rack,
        enforce_racks=enforce,
        random=Random(seed).random,
    )


def replace(racks, ensemble, index, quorum, *, load=None, avoid=(), enforce=False, seed=0):
    return choose_replacement(
        {bookie: rack for bookie, rack in racks.items() if bookie != ensemble[index]},
        ensemble,
        index,
        write_quorum=quorum,
        racks=racks,
        load=load or {},
        avoid=avoid,
        enforce_racks=enforce,
        random=Random(seed).random,
    )


@given(clusters(), LOADS, AVOIDED, st.none() | RACKS, SEEDS)
def test_an_ensemble_is_distinct_bookies_with_as_few_to_avoid_as_possible(
    cluster, load, avoid, local_rack, seed
):
    racks, size, quorum = cluster
    chosen = choose(racks, size, quorum, load=load, avoid=avoid, local_rack=local_rack, seed=seed)
    assert len(set(chosen)) == size and set(chosen) <= set(racks)
    clean = len(set(racks) - avoid)
    assert len(avoid.intersection(chosen)) == max(0, size - clean)


@given(clusters(), LOADS, st.none() | RACKS, SEEDS)
def test_every_write_quorum_spans_two_racks_if_any_ensemble_can(cluster, load, local_rack, seed):
    racks, size, quorum = cluster
    chosen = choose(racks, size, quorum, load=load, local_rack=local_rack, seed=seed)
    best = max(
        span(order, racks, quorum)
        for picked in combinations(sorted(racks), size)
        for order in permutations(picked)
    )
    assert span(chosen, racks, quorum) >= min(best, 2)


def test_large_write_quorums_span_two_racks_whenever_the_largest_rack_leaves_room():
    for sizes in product(range(5), repeat=4):
        racks = {f"{rack}{n}": rack for rack, size in enumerate(sizes) for n in range(size)}
        count, most = len(racks), max(sizes)
        for quorum in range(2, count + 1):
            chosen = choose(racks, count, quorum)
            # Each bookie of another rack ends one run of the largest, of Qw - 1 at most.
            possible = most <= (count - most) * (quorum - 1)
            assert (span(chosen, racks, quorum) >= 2) == possible, (sizes, quorum, chosen)


@given(clusters(), LOADS, st.none() | RACKS, SEEDS)
def test_an_ensemble_lies_in_as_many_racks_as_there_are(cluster, load, local_rack, seed):
    racks, size, quorum = cluster
    chosen = choose(racks, size, quorum, load=load, local_rack=local_rack, seed=seed)
    copies = Counter(racks[bookie] for bookie in chosen)
    assert len(copies) == min(size, len(set(racks.values())))
    sizes = Counter(racks.values())
    most = max(copies.values())
    assert all(copies[rack] >= min(most - 1, sizes[rack]) for rack in sizes), "as even as can be"


@given(clusters(), RACKS, SEEDS)
def test_the_first_bookie_is_in_the_rack_of_the_client(cluster, local_rack, seed):
    racks, size, quorum = cluster
    chosen = choose(racks, size, quorum, local_rack=local_rack, seed=seed)
    assert racks[chosen[0]] == local_rack or local_rack not in racks.values()


def test_too_few_bookies_are_an_error():
    with pytest.raises(NotEnoughBookies):
        choose({"b0": "/a", "b1": "/b"}, 3, 3)


def test_one_rack_is_enough_unless_two_are_enforced():
    racks = {"b0": "/a", "b1": "/a", "b2": "/a"}
    assert set(choose(racks, 3, 3)) == set(racks)
    with pytest.raises(NotEnoughBookies):
        choose(racks, 3, 3, enforce=True)
    assert choose(racks, 3, 1, enforce=True), "a write quorum of one needs one rack"


def test_enforced_racks_come_before_what_is_to_be_avoided():
    racks = {"b0": "/a", "b1": "/a", "b2": "/a", "b3": "/b"}
    assert "b3" not in choose(racks, 3, 3, avoid={"b3"})
    assert "b3" in choose(racks, 3, 3, avoid={"b3"}, enforce=True)


@given(clusters(spare=1), LOADS, AVOIDED, SEEDS, st.data())
def test_a_replacement_spreads_the_copies_as_well_as_any_other_would(
    cluster, load, avoid, seed, data
):
    racks, size, quorum = cluster
    ensemble = choose(racks, size, quorum, seed=seed)
    index = data.draw(st.integers(0, size - 1))
    chosen = replace(racks, ensemble, index, quorum, load=load, avoid=avoid, seed=seed)
    assert chosen in racks and chosen not in ensemble
    spares = set(racks) - set(ensemble)
    assert (chosen in avoid) == (spares <= avoid)

    def worth(bookie):
        changed = (*ensemble[:index], bookie, *ensemble[index + 1 :])
        return spans(changed, racks, quorum)

    rivals = spares - avoid or spares
    assert worth(chosen) == max(worth(bookie) for bookie in rivals)


def test_a_failed_bookie_is_replaced_from_its_own_rack_when_the_spread_stays():
    racks = {"b0": "/a", "b1": "/b", "b2": "/c", "b3": "/a", "b4": "/d"}
    assert replace(racks, ("b0", "b1", "b2"), 0, 3) == "b3"


def test_another_rack_is_taken_when_it_spreads_the_copies_better():
    racks = {"b0": "/a", "b1": "/a", "b2": "/b", "b3": "/a", "b4": "/c"}
    assert replace(racks, ("b0", "b1", "b2"), 0, 3) == "b4"


def test_of_equally_poor_ensembles_the_one_with_more_racks_is_taken():
    racks = {"b0": "/a", "b1": "/a", "b2": "/b", "b3": "/c", "b4": "/b", "b5": "/d"}
    ensemble = ("b0", "b1", "b2", "b3")
    assert replace(racks, ensemble, 3, 2, load={"b5": 100.0}) == "b5"


def test_a_member_of_an_unknown_rack_counts_for_none():
    racks = {"b1": "/a", "b3": "/a", "b4": "/b"}
    chosen = choose_replacement(
        racks, ("b0", "b1", "b2"), 0, write_quorum=3, load={}, random=Random(0).random
    )
    assert chosen == "b4"
    assert span(("b0", "b1", "b2"), {"b0": "/a", "b2": "/a"}, 3) == 1


def test_without_a_spare_there_is_no_replacement():
    racks = {"b0": "/a", "b1": "/b", "b2": "/c"}
    assert replace(racks, ("b0", "b1", "b2"), 1, 3) is None


def test_a_replacement_in_the_last_rack_left_is_refused_when_two_are_enforced():
    racks = {"b0": "/b", "b1": "/a", "b2": "/a", "b3": "/a"}
    assert replace(racks, ("b0", "b1", "b2"), 0, 3) == "b3"
    assert replace(racks, ("b0", "b1", "b2"), 0, 3, enforce=True) is None


def assigned(racks, ledgers, streams=2):
    """(copies, ledgers first asked) by bookie; each stream is a client with its own counts."""
    copies, first = Counter(), Counter()
    for stream in range(streams):
        load, random = Counter(), Random(stream).random
        for _ in range(ledgers):
            chosen = choose_ensemble(
                racks, ensemble_size=3, write_quorum=3, load=load, random=random
            )
            load.update(chosen)
            first[chosen[0]] += 1
        copies.update(load)
    return copies, first


@pytest.mark.parametrize(
    "racks", ["/x /x /x /x /x", "/a /a /b /b /c /c", "/a /a /b /b", "/a /a /b"]
)
def test_segments_are_spread_over_the_bookies_and_reads_too(racks):
    racks = {f"b{n}": rack for n, rack in enumerate(racks.split())}
    copies, first = assigned(racks, 100)
    assert len(copies) == len(first) == len(racks)
    assert max(copies.values()) <= 1.2 * min(copies.values())
    assert max(first.values()) <= 2 * min(first.values())


def test_many_clients_that_see_the_same_do_not_run_to_the_same_bookies():
    racks = {f"b{n}": "/x" for n in range(12)}
    load = {bookie: 1000.0 + at for at, bookie in enumerate(sorted(racks))}
    chosen = Counter()
    for client in range(200):
        chosen.update(choose(racks, 3, 3, load=load, seed=client))
    assert len(chosen) == 12 and max(chosen.values()) <= 2 * min(chosen.values())


def test_a_bookie_with_much_less_load_is_taken_first():
    racks = {f"b{n}": "/x" for n in range(5)}
    load = dict.fromkeys(racks, 1000.0) | {"b3": 10.0}
    assert all("b3" in choose(racks, 3, 3, load=load, seed=seed) for seed in range(20))
    ensemble = ("b0", "b1", "b2")
    assert all(replace(racks, ensemble, 0, 3, load=load, seed=seed) == "b3" for seed in range(20))
