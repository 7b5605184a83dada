"""The assignors of the consumer protocol: `range` and `uniform`. Pure.

Both return what Apache Kafka's return for the same members and the same assignment before. Where
Kafka's depends on the order of a Java map, that order is computed.
Source: Kafka, RangeAssignor, UniformAssignor and UniformHomogeneousAssignmentBuilder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, compress, filterfalse, islice, pairwise, repeat, starmap
from typing import Final, NamedTuple
from uuid import UUID

from gateway.core.consumer_members import Partitions, Steps
from gateway.core.consumer_uniform import heterogeneous_steps
from gateway.core.java_map import in_id_order, in_map_order, in_number_order


class MemberSpec(NamedTuple):
    """One member as an assignor sees it."""

    topics: frozenset[UUID]  # that exist
    target: Partitions  # of the assignment before
    instance_id: str | None = None


class AssignmentSpec(NamedTuple):
    """The members of a group and the partitions of their topics."""

    members: Mapping[str, MemberSpec]
    # Of each topic to which a member subscribes. If `homogeneous`, in the order of a Java set of
    # their names.
    partition_counts: Mapping[UUID, int]
    homogeneous: bool  # all members subscribe to the same topics


Assign = Callable[[AssignmentSpec], Steps]
"""An assignor: its steps yield after every few milliseconds of work, and return all targets."""

COSTLY_PAIRS: Final = 20_000
"""Pairs of a member and a topic from which on an assignment is not made without a pause."""
_STEP_PAIRS: Final = 5_000  # between two pauses


def is_costly(spec: AssignmentSpec) -> bool:
    """Return whether an assignment takes long. The work for equal subscriptions is small."""
    pairs = sum(len(each.topics) for each in spec.members.values())
    return pairs > COSTLY_PAIRS and not spec.homogeneous


def assign_range(spec: AssignmentSpec) -> Steps:
    """Give each member a range of each of its topics, in the order of their names."""
    order = _in_range_order(spec.members)
    if spec.homogeneous:
        return _equal_ranges(spec, order)
    waiting: dict[UUID, int] = {}  # members that have no range of the topic yet
    for member in spec.members.values():
        for topic in member.topics:
            waiting[topic] = waiting.get(topic, 0) + 1
    begins = dict.fromkeys(waiting, 0)
    found: dict[str, Partitions] = {}
    unpaused = 0
    for name in order:
        unpaused += len(spec.members[name].topics)
        if unpaused > _STEP_PAIRS:
            unpaused = 0
            yield
        own: dict[UUID, frozenset[int]] = {}
        for topic in spec.members[name].topics:
            begin = begins[topic]
            left = spec.partition_counts[topic] - begin
            end = begin + -(-left // waiting[topic])
            waiting[topic] -= 1
            begins[topic] = end
            if begin < end:
                own[topic] = frozenset(range(begin, end))
        found[name] = own
    return found


def _in_range_order(members: Mapping[str, MemberSpec]) -> list[str]:
    """Return the names in Kafka's order: static members first. Java compares UTF-16 units."""
    dynamic = {each.instance_id for each in members.values()} == {None}
    if dynamic and "".join(members).isascii():
        return sorted(members)
    return sorted(members, key=lambda name: _range_order(name, members[name]))


def _range_order(name: str, member: MemberSpec) -> tuple[bool, bytes]:
    text = name if member.instance_id is None else member.instance_id
    return member.instance_id is None, text.encode("utf-16-be", "surrogatepass")


def _equal_ranges(spec: AssignmentSpec, order: list[str]) -> dict[str, Partitions]:
    """Return ranges of members that all subscribe to the same topics."""
    topics = iter(spec.members[order[0]].topics if order else ())
    found: list[dict[UUID, frozenset[int]]] = []
    for topic in islice(topics, 1):
        ranges = _ranges(spec.partition_counts[topic], len(order))
        found += map(_dict_of, repeat((topic,)), ranges)
    found += [{} for _ in range(len(order) - len(found))]
    for topic in topics:
        ranges = _ranges(spec.partition_counts[topic], len(order))
        for own, partitions in zip(found, ranges, strict=False):
            own[topic] = partitions
    return dict(zip(order, found, strict=True))


def _ranges(count: int, members: int) -> Iterable[frozenset[int]]:
    """Return the range of each member that has one, of a topic with `count` partitions."""
    least, extra = divmod(count, members)
    larger = extra * (least + 1)  # partitions of the members that get one more
    return chain(_pieces(0, larger, least + 1), _pieces(larger, count, least))


def _pieces(begin: int, end: int, size: int) -> Iterable[frozenset[int]]:
    """Return the partitions from `begin` to below `end` in sets of `size`."""
    if size <= 1:
        return _sets_of_one(begin, end)
    return map(frozenset, starmap(range, pairwise(range(begin, end + 1, size))))


_SETS_KEPT: Final = 4_096  # in one megabyte at most
_kept_sets: list[frozenset[int]] = []
"""The set of each partition alone, as far as they were needed. All members share them."""

_dict_of: Callable[[tuple[UUID], frozenset[int]], dict[UUID, frozenset[int]]] = dict.fromkeys
"""Return a dict with one key. From `map`, it is made without a step of Python."""


def _sets_of_one(begin: int, end: int) -> Sequence[frozenset[int]]:
    """Return a set for each partition from `begin` to below `end`."""
    if end > _SETS_KEPT:
        return [frozenset((partition,)) for partition in range(begin, end)]
    if end > len(_kept_sets):
        _kept_sets.extend(frozenset((each,)) for each in range(len(_kept_sets), end))
    return _kept_sets[begin:end]


def assign_uniform(spec: AssignmentSpec) -> Steps:
    """Balance the partitions over the members, and move as few of them as possible."""
    members = spec.members
    if not spec.homogeneous:
        names = in_map_order(members)
        subscriptions = [members[name].topics for name in names]
        targets = [members[name].target for name in names]
        found = yield from heterogeneous_steps(subscriptions, targets, spec.partition_counts)
        return dict(zip(names, found, strict=True))
    topics = next((each.topics for each in members.values()), frozenset[UUID]())
    if not topics:
        return {name: {} for name in members}
    if len(topics) == 1 and not any(each.target for each in members.values()):
        return _new_group(spec, next(iter(topics)))
    return _Homogeneous(spec, topics).result()


def _new_group(spec: AssignmentSpec, topic: UUID) -> dict[str, Partitions]:
    """Return the assignment of members without partitions: the last ones get one more."""
    count, order = spec.partition_counts[topic], in_map_order(spec.members)
    least, extra = divmod(count, len(order))
    smaller = count - extra * (least + 1)  # partitions of the members that get `least`
    ranges = chain(_pieces(0, smaller, least), _pieces(smaller, count, least + 1))
    idle = max(0, len(order) - count)
    found: dict[str, Partitions] = {name: {} for name in order[:idle]}
    found.update(zip(order[idle:], map(_dict_of, repeat((topic,)), ranges), strict=True))
    return found


_Place = tuple[UUID, int]
_NONE: Final = frozenset[int]()
_TOO_MANY: Final = 1 << 62  # more partitions than any quota


class _Homogeneous:
    """The balance of members that all subscribe to the same topics.

    Most assignments change the partitions of few members. Java's order is computed for these only,
    if that of the others does not matter.
    """

    def __init__(self, spec: AssignmentSpec, topics: frozenset[UUID]) -> None:
        self._counts = {
            topic: count for topic, count in spec.partition_counts.items() if topic in topics
        }
        targets = [each.target for each in spec.members.values()]
        # The partitions that each member keeps, then has. A target that stays is the same object.
        self._found: dict[str, Partitions] = dict(zip(spec.members, targets, strict=True))
        # The partitions that each member had: their number, huge if a topic is gone.
        self._sizes, taken = self._held(targets)
        # The partitions that no member keeps, in the order in which they are given away.
        self._free = self._unassigned(taken)

    def result(self) -> dict[str, Partitions]:
        begin, found, free = 0, self._found, self._free
        for name, lacks in self._keep():
            if lacks == 1 and not found[name] and begin < len(free):
                topic, partition = free[begin]
                found[name] = {topic: _sets_of_one(partition, partition + 1)[0]}
            else:
                self._give(name, free[begin : begin + lacks])
            begin += lacks
        assert begin >= len(free), "partitions were left unassigned"
        return found

    def _held(self, targets: list[Partitions]) -> tuple[list[int], dict[UUID, set[int]]]:
        """Return the size of each target, and all partitions of each topic that are in one."""
        topics = [*chain.from_iterable(targets)]
        if not topics:
            return [0] * len(targets), {}
        # The hash of a UUID takes long. Objects that are the same are counted without one.
        first = topics[0]
        if first not in self._counts or topics.count(first) < len(topics):
            return self._held_of_many(targets)
        sets = [partitions for target in targets for partitions in target.values()]
        size = map(len, sets)
        sizes = [next(size) if target else 0 for target in targets]
        return sizes, {first: set[int]().union(*sets)}

    def _held_of_many(self, targets: list[Partitions]) -> tuple[list[int], dict[UUID, set[int]]]:
        """Do the same for targets with several topics."""
        had: dict[UUID, set[int]] = {}
        sizes: list[int] = []
        met: UUID | None = None
        bag: set[int] = set()
        gone = 0
        for target in targets:
            size = 0
            for topic, partitions in target.items():
                if topic is not met:
                    met, bag = topic, had.setdefault(topic, set())
                    gone = 0 if topic in self._counts else _TOO_MANY
                bag |= partitions
                size += len(partitions) + gone
            sizes.append(size)
        return sizes, had

    def _unassigned(self, taken: Mapping[UUID, set[int]]) -> list[_Place]:
        """Return the partitions that no member had."""
        free: list[_Place] = []
        for topic in in_id_order(self._counts, copied=True):
            left: Iterable[int] = range(self._counts[topic])
            if topic in taken:
                left = filterfalse(taken[topic].__contains__, left)
            free += zip(repeat(topic), left)
        return free

    def _keep(self) -> list[tuple[str, int]]:
        """Let members keep their partitions up to their quota. Returns what some of them lack.

        Each member gets at least `least` partitions, and `extra` of them get one more. A member
        that has room leaves the extra partition to one that has it already, unless all members
        from here on must take one.
        """
        found = self._found
        least, extra = divmod(sum(self._counts.values()), len(found))
        sizes = self._changing(least, extra)
        unfilled: list[tuple[str, int]] = []
        left = len(found) + 1
        for name in in_map_order(sizes, len(found)):
            left -= 1
            size = sizes[name]
            if size == least and left > extra:
                continue
            takes_extra = extra > 0
            lacks = least + takes_extra - size
            if lacks < 0:
                lacks = self._keep_some(name, found[name], least + takes_extra)
            if lacks and takes_extra and left > extra:
                lacks -= 1
                takes_extra = False
            if lacks:
                unfilled.append((name, lacks))
            extra -= takes_extra
        return unfilled

    def _changing(self, least: int, extra: int) -> dict[str, int]:
        """Return the members that may change, with their sizes.

        If enough members have more than `least` partitions, no other one must take an extra one,
        and one with `least` keeps what it has.
        """
        sizes = self._sizes
        larger = sum(map(least.__lt__, sizes)) if extra else 0
        named = zip(self._found, sizes, strict=True)
        if larger < extra or max(sizes) >= _TOO_MANY:
            return dict(named)
        return dict(compress(named, map(least.__ne__, sizes)))

    def _keep_some(self, name: str, target: Partitions, quota: int) -> int:
        """Let a member keep its partitions up to its quota. Returns how many more it may get."""
        own: dict[UUID, frozenset[int]] = {}
        known = [topic for topic in target if topic in self._counts]
        for topic in in_id_order(known) if len(known) > 1 else known:
            had = target[topic]
            if len(had) <= quota:
                own[topic] = had
                quota -= len(had)
                continue
            order = in_number_order(had)
            if quota:
                own[topic] = frozenset(order[:quota])
            self._free += [(topic, partition) for partition in order[quota:]]
            quota = 0
        self._found[name] = own
        return quota

    def _give(self, name: str, places: list[_Place]) -> None:
        """Give a member more partitions."""
        own = dict(self._found[name])
        for topic, partition in places:
            own[topic] = own.get(topic, _NONE) | {partition}
        self._found[name] = own


ASSIGNORS: Final[Mapping[str, Assign]] = {"uniform": assign_uniform, "range": assign_range}
"""The assignors by name, the default one first, as in Kafka's group.consumer.assignors."""


def result_of(steps: Steps) -> dict[str, Partitions]:
    """Return the targets of an assignment, made without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: dict[str, Partitions] = end.value
            return found
