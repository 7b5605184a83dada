"""Which bookies hold a new fragment, and which one takes the place of a failed one.

Pure: racks, loads and random are arguments. In this order: a bookie to avoid is used only when
there are too few others; copies are spread over as many racks as there are, so that losing one
takes as few of them as possible; then the least loaded, by random among near-equals, so that many
clients that see the same do not all run to the same bookie.
Source: BookKeeper, `RackawareEnsemblePlacementPolicyImpl.java`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain, zip_longest

from ledger.core.quorum import write_sets
from ledger.errors import NotEnoughBookies
from ledger.ids import BookieId

Racks = Mapping[BookieId, str]
RandomSource = Callable[[], float]
"""Each call gives a new number from 0 up to, not including, 1."""

RACKS_PER_WRITE_QUORUM = 2
"""Source: BookKeeper, `minNumRacksPerWriteQuorum`."""

NEAR_EQUAL = 0.05
"""Loads that differ by less than this part of their mean count as equal."""


def choose_ensemble(
    candidates: Racks,
    *,
    ensemble_size: int,
    write_quorum: int,
    load: Mapping[BookieId, float],
    avoid: Collection[BookieId] = (),
    local_rack: str | None = None,
    enforce_racks: bool = False,
    random: RandomSource,
) -> tuple[BookieId, ...]:
    """E distinct `candidates`, in the order of the ensemble; the first is in `local_rack` if any.

    Their racks are as even as the candidates allow, and every write quorum spans two where such
    an order exists. `load` may be in any unit; a bookie that it does not name has none. Raises
    NotEnoughBookies: fewer than E, or with `enforce_racks` no ensemble that spans two racks in
    every write quorum (then racks come before what is to be avoided).
    """
    assert ensemble_size >= write_quorum >= 1
    if len(candidates) < ensemble_size:
        raise NotEnoughBookies(f"{ensemble_size} bookies are wanted, {len(candidates)} are live")
    picker = _Picker(candidates, load, local_rack, random)
    ensemble = _ordered(picker.pick(ensemble_size, avoid), candidates, write_quorum)
    wanted = min(write_quorum, RACKS_PER_WRITE_QUORUM)
    if enforce_racks and span(ensemble, candidates, write_quorum) < wanted:
        ensemble = _ordered(picker.pick(ensemble_size, ()), candidates, write_quorum)
        if span(ensemble, candidates, write_quorum) < wanted:
            raise NotEnoughBookies(f"the live bookies cannot span {wanted} racks per write quorum")
    return _turned(ensemble, candidates, local_rack, random)


def choose_replacement(
    candidates: Racks,
    ensemble: Sequence[BookieId],
    index: int,
    *,
    write_quorum: int,
    racks: Racks | None = None,
    load: Mapping[BookieId, float],
    avoid: Collection[BookieId] = (),
    enforce_racks: bool = False,
    random: RandomSource,
) -> BookieId | None:
    """The one of `candidates` to take place `index`; None when there is none.

    Never a member of `ensemble`; leave out of `candidates` whatever else has failed. `racks`
    tells where members are that are no candidates; a member whose rack is unknown counts for
    none. The rack of the failed one comes first where it spreads the copies as well as any
    other, then racks that the ensemble does not have.
    """
    known = {**(racks or {}), **candidates}
    wanted = min(write_quorum, RACKS_PER_WRITE_QUORUM)
    ranks: dict[BookieId, tuple[int, int, int, int]] = {}
    for candidate, rack in candidates.items():
        if candidate in ensemble:
            continue
        changed = (*ensemble[:index], candidate, *ensemble[index + 1 :])
        spans = _spans(changed, known, write_quorum)
        if enforce_racks and min(spans) < wanted:
            continue
        ranks[candidate] = (
            candidate in avoid,
            -min(spans),
            -sum(spans),
            rack != known.get(ensemble[index]),
        )
    if not ranks:
        return None
    best = min(ranks.values())
    equals = [bookie for bookie in sorted(ranks) if ranks[bookie] == best]
    return _least_loaded(equals, load, _near(candidates, load), random)


def span(ensemble: Sequence[BookieId], racks: Racks, write_quorum: int) -> int:
    """The fewest racks that any write quorum of `ensemble` lies in; unknown ones count for none."""
    return min(_spans(ensemble, racks, write_quorum))


def _spans(ensemble: Sequence[BookieId], racks: Racks, write_quorum: int) -> list[int]:
    places = [racks.get(bookie) for bookie in ensemble]
    return [
        len({places[index] for index in one} - {None})
        for one in write_sets(len(ensemble), write_quorum)
    ]


class _Picker:
    """Picks bookies one by one, each in a rack that has the fewest so far."""

    def __init__(
        self,
        candidates: Racks,
        load: Mapping[BookieId, float],
        local_rack: str | None,
        random: RandomSource,
    ) -> None:
        self._candidates = candidates
        self._load = load
        self._near = _near(candidates, load)
        self._local_rack = local_rack
        self._random = random

    def pick(self, count: int, avoid: Collection[BookieId]) -> list[BookieId]:
        # Sorted: what random picks from must not depend on the order of the caller's mapping.
        clean = [bookie for bookie in sorted(self._candidates) if bookie not in avoid]
        others = [bookie for bookie in sorted(self._candidates) if bookie in avoid]
        picked: list[BookieId] = []
        used = Counter[str]()
        while len(picked) < count:
            left = clean or others
            bookie = self._pick_one(left, used)
            left.remove(bookie)
            picked.append(bookie)
            used[self._candidates[bookie]] += 1
        return picked

    def _pick_one(self, left: list[BookieId], used: Counter[str]) -> BookieId:
        racks = self._candidates
        if not used:
            equals = [bookie for bookie in left if racks[bookie] == self._local_rack] or left
        else:
            fewest = min(used[racks[bookie]] for bookie in left)
            equals = [bookie for bookie in left if used[racks[bookie]] == fewest]
        return _least_loaded(equals, self._load, self._near, self._random)


def _near(candidates: Racks, load: Mapping[BookieId, float]) -> float:
    """Loads less than this apart are the same to us."""
    return NEAR_EQUAL * sum(load.get(bookie, 0.0) for bookie in candidates) / len(candidates)


def _least_loaded(
    bookies: list[BookieId], load: Mapping[BookieId, float], near: float, random: RandomSource
) -> BookieId:
    limit = min(load.get(bookie, 0.0) for bookie in bookies) + near
    equals = [bookie for bookie in bookies if load.get(bookie, 0.0) <= limit]
    return equals[int(random() * len(equals))]


def _ordered(bookies: list[BookieId], racks: Racks, write_quorum: int) -> list[BookieId]:
    """The order whose write quorums span most racks: the poorest of them, then all together."""
    by_rack: dict[str, list[BookieId]] = {}
    for bookie in bookies:
        by_rack.setdefault(racks[bookie], []).append(bookie)
    groups = sorted(by_rack.values(), key=len, reverse=True)

    def worth(order: list[BookieId]) -> tuple[int, int]:
        spans = _spans(order, racks, write_quorum)
        return min(spans), sum(spans)

    return max(_in_turn(groups), _every_other(groups), _between_runs(groups), key=worth)


def _in_turn(groups: list[list[BookieId]]) -> list[BookieId]:
    """One of each rack, then a second of each: A B C A B C. Best when racks are even."""
    rounds = zip_longest(*groups)
    return [bookie for bookie in chain.from_iterable(rounds) if bookie is not None]


def _every_other(groups: list[list[BookieId]]) -> list[BookieId]:
    """No rack twice in a row, also around the end, when none has more than half: A B A B A C."""
    bookies = list(chain.from_iterable(groups))
    half = (len(bookies) + 1) // 2
    rounds = zip_longest(bookies[:half], bookies[half:])
    return [bookie for bookie in chain.from_iterable(rounds) if bookie is not None]


def _between_runs(groups: list[list[BookieId]]) -> list[BookieId]:
    """The largest rack in even runs between the others, when it has more than half: A A B A A C."""
    most, others = groups[0], list(chain.from_iterable(groups[1:]))
    order: list[BookieId] = []
    for at, other in enumerate(others):
        order += most[len(most) * at // len(others) : len(most) * (at + 1) // len(others)]
        order.append(other)
    return order or most


def _turned(
    ensemble: list[BookieId], racks: Racks, local_rack: str | None, random: RandomSource
) -> tuple[BookieId, ...]:
    """The same ring of write quorums, begun elsewhere: reads ask the first one first."""
    starts = [at for at, bookie in enumerate(ensemble) if racks[bookie] == local_rack]
    if not starts:
        starts = list(range(len(ensemble)))
    start = starts[int(random() * len(starts))]
    return tuple(ensemble[start:] + ensemble[:start])
