"""The assignors of the consumer protocol: `range` and `uniform`. Pure.

Both return what Apache Kafka's return for the same members and the same assignment before. Where
Kafka's depends on the order of a Java map, that order is computed.
Source: Kafka, RangeAssignor, UniformAssignor and UniformHomogeneousAssignmentBuilder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    order = sorted(spec.members, key=lambda name: _range_order(name, spec.members[name]))
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


def _range_order(name: str, member: MemberSpec) -> tuple[bool, bytes]:
    """Static members come first. Java compares the UTF-16 units of strings."""
    text = name if member.instance_id is None else member.instance_id
    return member.instance_id is None, text.encode("utf-16-be", "surrogatepass")


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


class _Homogeneous:
    """The balance of members that all subscribe to the same topics."""

    def __init__(self, spec: AssignmentSpec, names: list[str], topics: frozenset[UUID]) -> None:
        self._spec = spec
        self._names = names
        self._topics = topics  # a set: each partition of each member is looked up in it
        total = sum(spec.partition_counts[topic] for topic in topics)
        # Each member gets at least `_least` partitions, and `_extra` of them get one more.
        self._least, self._extra = divmod(total, len(names))
        # The partitions that no member keeps, in the order in which they are given away.
        self._free = self._unassigned()
        # The members that lack partitions, with the number that they lack.
        self._unfilled: list[tuple[str, int]] = []
        self._kept: dict[str, dict[UUID, set[int]]] = {}

    def result(self) -> dict[str, Partitions]:
        for index, name in enumerate(self._names):
            self._keep(index, name)
        free = iter(self._free)
        for name, lacks in self._unfilled:
            for topic, partition in (place for _, place in zip(range(lacks), free, strict=False)):
                self._kept[name].setdefault(topic, set()).add(partition)
        assert next(free, None) is None, "partitions were left unassigned"
        return {
            name: {topic: frozenset(some) for topic, some in own.items()}
            for name, own in self._kept.items()
        }

    def _unassigned(self) -> list[_Place]:
        counts = self._spec.partition_counts
        had: dict[UUID, set[int]] = {}
        for member in self._spec.members.values():
            for topic, partitions in member.target.items():
                had.setdefault(topic, set()).update(partitions)
        order = in_id_order([topic for topic in counts if topic in self._topics], copied=True)
        return [
            (topic, partition)
            for topic in order
            for partition in range(counts[topic])
            if partition not in had.get(topic, ())
        ]

    def _keep(self, index: int, name: str) -> None:
        """Let a member keep its partitions up to its quota."""
        target = self._spec.members[name].target
        takes_extra = self._extra > 0
        quota = self._least + takes_extra
        own = self._kept[name] = {}
        known = [topic for topic in target if topic in self._topics]
        for topic in in_id_order(known) if len(known) > 1 else known:
            had = target[topic]
            if len(had) <= quota:  # most members keep all, in whatever order
                own[topic] = set(had)
                quota -= len(had)
                continue
            order = in_number_order(had)
            if quota:
                own[topic] = set(order[:quota])
            self._free += [(topic, partition) for partition in order[quota:]]
            quota = 0
        # A member that has room leaves the extra partition to one that has it already, unless
        # all members from here on must take one.
        if quota and takes_extra and len(self._names) - index > self._extra:
            quota -= 1
            takes_extra = False
        if quota:
            self._unfilled.append((name, quota))
        self._extra -= takes_extra


ASSIGNORS: Final[Mapping[str, Assign]] = {"uniform": assign_uniform, "range": assign_range}
"""The assignors by name, the default one first, as in Kafka's group.consumer.assignors."""


def result_of(steps: Steps) -> dict[str, Partitions]:
    """Return the targets of an assignment, made without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return dict(end.value)
