"""The choice of bookies for a new fragment, and of a replacement for a failed bookie.

Pure: racks, loads and random numbers are arguments. The criteria, in this order:
1. A bookie to avoid is used only if there are too few others.
2. Copies are spread over as many racks as there are: losing a rack loses as few as possible.
3. The least loaded bookie is chosen, at random among nearly equal ones. Many clients with the same
   view thus do not all choose the same bookie.
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
"""Each call returns a new number from 0 up to, not including, 1."""

RACKS_PER_WRITE_QUORUM = 2
"""Source: BookKeeper, `minNumRacksPerWriteQuorum`."""

NEAR_EQUAL = 0.05
"""Loads that differ by less than this fraction of their mean count as equal."""


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
    """Return E distinct `candidates`, in the order of the ensemble.

    The first one is in `local_rack` if possible. The racks are as even as the candidates allow,
    and every write quorum spans two racks if such an order exists. `load` may be in any unit; a
    bookie missing there has no load.

    Raises NotEnoughBookies if there are fewer than E candidates. With `enforce_racks`, also if no
    ensemble spans two racks in every write quorum; then racks matter more than `avoid`.
    """
    assert ensemble_size >= write_quorum >= 1
    if len(candidates) < ensemble_size:
        raise NotEnoughBookies(
            f"the ensemble needs {ensemble_size} bookies, {len(candidates)} are live"
        )
    picker = _Picker(candidates, load, local_rack, random)
    ensemble = _ordered(picker.pick(ensemble_size, avoid), candidates, write_quorum)
    wanted = min(write_quorum, RACKS_PER_WRITE_QUORUM)
    if enforce_racks and span(ensemble, candidates, write_quorum) < wanted:
        ensemble = _ordered(picker.pick(ensemble_size, ()), candidates, write_quorum)
        if span(ensemble, candidates, write_quorum) < wanted:
            raise NotEnoughBookies(f"the live bookies do not span {wanted} racks per write quorum")
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
    """Return the candidate that takes `index` of `ensemble`, or None if there is none.

    It is never a member of `ensemble`; leave other failed bookies out of `candidates`. `racks`
    gives the racks of members that are no candidates; a member of an unknown rack counts for none.
    The rack of the failed bookie is preferred if it spreads the copies as well as any other, then
    racks outside the ensemble.
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
    """Return the fewest racks that a write quorum of `ensemble` spans, unknown ones not counted."""
    return min(_spans(ensemble, racks, write_quorum))


def _spans(ensemble: Sequence[BookieId], racks: Racks, write_quorum: int) -> list[int]:
    places = [racks.get(bookie) for bookie in ensemble]
    return [
        len({places[index] for index in one} - {None})
        for one in write_sets(len(ensemble), write_quorum)
    ]


class _Picker:
    """Picks bookies one by one, each in a rack with the fewest picks so far."""

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
        # Sorted, so that a random pick does not depend on the order of the caller's mapping.
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
    """Return the difference below which two loads count as equal."""
    return NEAR_EQUAL * sum(load.get(bookie, 0.0) for bookie in candidates) / len(candidates)


def _least_loaded(
    bookies: list[BookieId], load: Mapping[BookieId, float], near: float, random: RandomSource
) -> BookieId:
    limit = min(load.get(bookie, 0.0) for bookie in bookies) + near
    equals = [bookie for bookie in bookies if load.get(bookie, 0.0) <= limit]
    return equals[int(random() * len(equals))]


def _ordered(bookies: list[BookieId], racks: Racks, write_quorum: int) -> list[BookieId]:
    """Return the order with the most racks in its poorest write quorum, then in all together."""
    by_rack: dict[str, list[BookieId]] = {}
    for bookie in bookies:
        by_rack.setdefault(racks[bookie], []).append(bookie)
    groups = sorted(by_rack.values(), key=len, reverse=True)

    def worth(order: list[BookieId]) -> tuple[int, int]:
        spans = _spans(order, racks, write_quorum)
        return min(spans), sum(spans)

    return max(_in_turn(groups), _every_other(groups), _between_runs(groups), key=worth)


def _in_turn(groups: list[list[BookieId]]) -> list[BookieId]:
    """Return one of each rack, then a second of each: A B C A B C. Best if racks are even."""
    rounds = zip_longest(*groups)
    return [bookie for bookie in chain.from_iterable(rounds) if bookie is not None]


def _every_other(groups: list[list[BookieId]]) -> list[BookieId]:
    """Return no rack twice in a row, even around the end, if none has over half: A B A B A C."""
    bookies = list(chain.from_iterable(groups))
    half = (len(bookies) + 1) // 2
    rounds = zip_longest(bookies[:half], bookies[half:])
    return [bookie for bookie in chain.from_iterable(rounds) if bookie is not None]


def _between_runs(groups: list[list[BookieId]]) -> list[BookieId]:
    """Return the largest rack in even runs between the others, if it has over half: A A B A A C."""
    most, others = groups[0], list(chain.from_iterable(groups[1:]))
    order: list[BookieId] = []
    for at, other in enumerate(others):
        order += most[len(most) * at // len(others) : len(most) * (at + 1) // len(others)]
        order.append(other)
    return order or most


def _turned(
    ensemble: list[BookieId], racks: Racks, local_rack: str | None, random: RandomSource
) -> tuple[BookieId, ...]:
    """Return the same ring of write quorums from another start: readers ask its first bookie."""
    starts = [at for at, bookie in enumerate(ensemble) if racks[bookie] == local_rack]
    if not starts:
        starts = list(range(len(ensemble)))
    start = starts[int(random() * len(starts))]
    return tuple(ensemble[start:] + ensemble[:start])
