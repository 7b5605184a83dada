"""The assignors of the consumer protocol: `range` and `uniform`. Pure.

Both return what Apache Kafka's return for the same members and the same assignment before. Where
Kafka's depends on the order of a Java map, that order is computed.
Source: Kafka, RangeAssignor, UniformAssignor and UniformHomogeneousAssignmentBuilder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise, starmap
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
    static = any(each.instance_id is not None for each in members.values())
    if not static and all(map(str.isascii, members)):
        return sorted(members)
    return sorted(members, key=lambda name: _range_order(name, members[name]))


def _range_order(name: str, member: MemberSpec) -> tuple[bool, bytes]:
    text = name if member.instance_id is None else member.instance_id
    return member.instance_id is None, text.encode("utf-16-be", "surrogatepass")


def _equal_ranges(spec: AssignmentSpec, order: list[str]) -> dict[str, Partitions]:
    """Return ranges of members that all subscribe to the same topics."""
    topics = spec.members[order[0]].topics if order else ()
    found: dict[str, dict[UUID, frozenset[int]]] = {name: {} for name in order}
    for topic in topics:
        count = spec.partition_counts[topic]
        if count <= len(order):
            ranges = zip(range(count))  # one partition each, as long as there are some
        else:
            least, extra = divmod(count, len(order))
            larger = extra * (least + 1)  # partitions of the members that get one more
            begins = [*range(0, larger, least + 1), *range(larger, count, least)]
            ranges = starmap(range, pairwise([*begins, count]))
        for own, partitions in zip(found.values(), map(frozenset, ranges), strict=False):
            own[topic] = partitions
    return dict(found)


def assign_uniform(spec: AssignmentSpec) -> Steps:
    """Balance the partitions over the members, and move as few of them as possible."""
    names = list(in_map_order(list(spec.members)))
    if not spec.homogeneous:
        subscriptions = [spec.members[name].topics for name in names]
        targets = [spec.members[name].target for name in names]
        found = yield from heterogeneous_steps(subscriptions, targets, spec.partition_counts)
        return dict(zip(names, found, strict=True))
    topics = spec.members[names[0]].topics if names else frozenset[UUID]()
    if not topics:
        return {name: {} for name in names}
    return _Homogeneous(spec, names, topics).result()


_Place = tuple[UUID, int]
_NONE: Final = frozenset[int]()
_TOO_MANY: Final = 1 << 62  # more partitions than any quota


class _Homogeneous:
    """The balance of members that all subscribe to the same topics."""

    def __init__(self, spec: AssignmentSpec, names: list[str], topics: frozenset[UUID]) -> None:
        self._spec = spec
        self._names = names
        self._topics = topics
        # The partitions that each member of `names` had: their number, huge if a topic is gone.
        self._sizes: list[int] = []
        # The partitions that no member keeps, in the order in which they are given away.
        self._free = self._unassigned()
        # The partitions that each member keeps, then has. A target that stays is the same object.
        self._found: dict[str, Partitions] = {}

    def result(self) -> dict[str, Partitions]:
        begin, found, free = 0, self._found, self._free
        for name, lacks in self._keep():
            if lacks == 1 and not found[name] and begin < len(free):
                topic, partition = free[begin]
                found[name] = {topic: frozenset((partition,))}
            else:
                self._give(name, free[begin : begin + lacks])
            begin += lacks
        assert begin >= len(free), "partitions were left unassigned"
        return found

    def _unassigned(self) -> list[_Place]:
        """Return the partitions without a member, and note the sizes of the targets before."""
        counts, members, sizes = self._spec.partition_counts, self._spec.members, self._sizes
        had: dict[UUID, set[int]] = {}
        # The hash of a UUID takes long, so that a topic is compared with the last one first.
        met: UUID | None = None
        bag: set[int] = set()
        gone = 0
        for name in self._names:
            size = 0
            for topic, partitions in members[name].target.items():
                if topic is not met:
                    met, bag = topic, had.setdefault(topic, set())
                    gone = 0 if topic in self._topics else _TOO_MANY
                bag |= partitions
                size += len(partitions) + gone
            sizes.append(size)
        order = in_id_order([topic for topic in counts if topic in self._topics], copied=True)
        free: list[_Place] = []
        for topic in order:
            taken = had.get(topic, _NONE)
            free += [(topic, each) for each in range(counts[topic]) if each not in taken]
        return free

    def _keep(self) -> list[tuple[str, int]]:
        """Let members keep their partitions up to their quota. Returns what some of them lack.

        Each member gets at least `least` partitions, and `extra` of them get one more. A member
        that has room leaves the extra partition to one that has it already, unless all members
        from here on must take one.
        """
        members, found, count = self._spec.members, self._found, len(self._names)
        total = sum(self._spec.partition_counts[topic] for topic in self._topics)
        least, extra = divmod(total, count)
        unfilled: list[tuple[str, int]] = []
        left = count + 1
        for name, size in zip(self._names, self._sizes, strict=True):
            left -= 1
            target = found[name] = members[name].target  # most keep all, in whatever order
            takes_extra = extra > 0
            lacks = least + takes_extra - size
            if lacks < 0:
                lacks = self._keep_some(name, target, least + takes_extra)
            if lacks and takes_extra and left > extra:
                lacks -= 1
                takes_extra = False
            if lacks:
                unfilled.append((name, lacks))
            extra -= takes_extra
        return unfilled

    def _keep_some(self, name: str, target: Partitions, quota: int) -> int:
        """Let a member keep its partitions up to its quota. Returns how many more it may get."""
        own: dict[UUID, frozenset[int]] = {}
        known = [topic for topic in target if topic in self._topics]
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
            return dict(end.value)
