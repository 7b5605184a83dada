"""The balance of a group whose members subscribe to different topics. Pure.

Partitions without a member go to the member with the fewest. Then partitions move from the member
with the most to the one with the fewest, topic by topic, until no move makes the balance better.
Source: Kafka, UniformHeterogeneousAssignmentBuilder.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from functools import cmp_to_key
from typing import Final
from uuid import UUID

from gateway.core.consumer_members import Partitions
from gateway.core.java_map import java_id_key

_ROUNDS_MAX: Final = 16
_STEP_SUBSCRIBERS: Final = 2_000  # members of the topics that are balanced between two pauses


def heterogeneous_steps(
    subscriptions: Sequence[frozenset[UUID]],
    targets: Sequence[Partitions],
    partition_counts: Mapping[UUID, int],
) -> Generator[None, None, list[Partitions]]:
    """Return the partitions of each member. `targets` are those of the assignment before.

    Yields after every few milliseconds of work.
    """
    builder = _Heterogeneous(subscriptions, partition_counts)
    yield
    builder.keep(targets)
    yield
    yield from builder.give_unassigned()
    yield from builder.balance()
    return builder.result()


class _Heterogeneous:
    """An assignment that is being made. Members are numbers."""

    def __init__(
        self, subscriptions: Sequence[frozenset[UUID]], partition_counts: Mapping[UUID, int]
    ) -> None:
        self._subscriptions = subscriptions
        self._subscribers: dict[UUID, list[int]] = {}
        for number, topics in enumerate(subscriptions):
            for topic in topics:
                self._subscribers.setdefault(topic, []).append(number)
        self._counts = partition_counts
        # The member of each partition, -1 without one.
        self._owners = {topic: [-1] * partition_counts[topic] for topic in self._subscribers}
        # The number of partitions of each member.
        self.sizes = [0] * len(subscriptions)
        # The members of the topics since the last pause.
        self._unpaused = 0
        self._topics = sorted(self._subscribers, key=cmp_to_key(self._compare))

    def _compare(self, one: UUID, other: UUID) -> int:
        """Order topics by partitions for each subscriber, most first, then by subscribers."""
        subscribers, others = len(self._subscribers[one]), len(self._subscribers[other])
        load, other_load = self._counts[one] / subscribers, self._counts[other] / others
        first = (-load, subscribers, java_id_key(one))
        second = (-other_load, others, java_id_key(other))
        return (first > second) - (first < second)

    def keep(self, targets: Sequence[Partitions]) -> None:
        """Let members keep the partitions of topics to which they still subscribe."""
        for number, target in enumerate(targets):
            for topic, partitions in target.items():
                if topic not in self._subscriptions[number]:
                    continue
                self.sizes[number] += len(partitions)
                for partition in partitions:
                    self._owners[topic][partition] = number

    def _is_step_over(self, topic: UUID) -> bool:
        """Count the work for a topic. Returns True if it is time for a pause."""
        self._unpaused += 1 + len(self._subscribers[topic])
        if self._unpaused < _STEP_SUBSCRIBERS:
            return False
        self._unpaused = 0
        return True

    def give_unassigned(self) -> Generator[None]:
        """Give each partition without a member to the subscriber with the fewest."""
        for topic in self._topics:
            if self._is_step_over(topic):
                yield
            free = [each for each, owner in enumerate(self._owners[topic]) if owner < 0]
            if free:
                levels = _Levels(self.sizes, self._subscribers[topic])
                for partition in free:
                    self._move(topic, partition, levels.next_least())

    def balance(self) -> Generator[None]:
        """Move partitions until a round over all topics moves none, or `_ROUNDS_MAX` rounds."""
        topics = [topic for topic in self._topics if len(self._subscribers[topic]) > 1]
        last = -1  # the last topic that was balanced
        for _ in range(_ROUNDS_MAX):
            for number, topic in enumerate(topics):
                if number == last:
                    return
                if self._is_step_over(topic):
                    yield
                if self._balance_topic(topic) or last < 0:
                    last = number

    def _balance_topic(self, topic: UUID) -> int:
        """Move partitions of one topic. Returns how many."""
        levels = _Levels(self.sizes, self._subscribers[topic])
        if levels.imbalance <= 1:
            return 0
        owned: dict[int, list[int]] = {}
        for partition, owner in enumerate(self._owners[topic]):
            owned.setdefault(owner, []).append(partition)
        moved = 0
        while not levels.is_balanced:
            source = levels.next_most()
            while source >= 0 and not owned.get(source):
                levels.exclude_most()
                source = levels.next_most()
            if source < 0:
                break
            partition = owned[source].pop()
            sink = levels.next_least()
            if levels.is_balanced:
                break
            self._move(topic, partition, sink)
            moved += 1
        return moved

    def _move(self, topic: UUID, partition: int, member: int) -> None:
        before = self._owners[topic][partition]
        if before >= 0:
            self.sizes[before] -= 1
        self._owners[topic][partition] = member
        self.sizes[member] += 1

    def result(self) -> list[Partitions]:
        found: list[dict[UUID, set[int]]] = [{} for _ in self.sizes]
        for topic, owners in self._owners.items():
            for partition, owner in enumerate(owners):
                found[owner].setdefault(topic, set()).add(partition)
        return [{topic: frozenset(some) for topic, some in own.items()} for own in found]


class _Levels:
    """Two ranges of members, sorted by their number of partitions: the least and the most loaded.

    All members of a range have had the same number when it began or grew. Each call takes the next
    member of its range. At the end of a range its level moves by one, and the range grows by the
    members of that level.
    """

    __slots__ = (
        "_least_end",
        "_least_level",
        "_most_begin",
        "_most_end",
        "_most_level",
        "_next_least",
        "_next_most",
        "_order",
        "_sizes",
        "imbalance",
    )

    def __init__(self, sizes: list[int], members: Sequence[int]) -> None:
        order = sorted(members, key=lambda number: (sizes[number], number))
        self._sizes, self._order = sizes, order
        # The difference between the most and the least loaded member.
        self.imbalance = sizes[order[-1]] - sizes[order[0]]
        self._least_end, self._next_least = 0, 0
        self._least_level = sizes[order[0]] - 1
        self._most_begin = self._most_end = len(order)
        self._most_level = sizes[order[-1]] + 1
        self._next_most = len(order) - 1

    @property
    def is_balanced(self) -> bool:
        return self._most_level - self._least_level <= 1

    def next_least(self) -> int:
        """Return the member that gets a partition next."""
        if self._next_least >= self._least_end:
            self._least_level += 1
            while self._least_end < len(self._order) and (
                self._sizes[self._order[self._least_end]] == self._least_level
            ):
                self._least_end += 1
            self._next_least = 0
        self._next_least += 1
        return self._order[self._next_least - 1]

    def next_most(self) -> int:
        """Return the member that gives up a partition next, or -1."""
        if self._next_most < self._most_begin:
            if self._most_end <= self._most_begin and self._most_begin > 0:
                self._most_level = self._sizes[self._order[self._most_begin - 1]]
            else:
                self._most_level -= 1
            while self._most_begin > 0 and (
                self._sizes[self._order[self._most_begin - 1]] == self._most_level
            ):
                self._most_begin -= 1
            self._next_most = self._most_end - 1
        if self._next_most < 0:
            return -1
        self._next_most -= 1
        return self._order[self._next_most + 1]

    def exclude_most(self) -> None:
        """Leave out the member that `next_most` returned last, because it has nothing to give."""
        at, end = self._next_most + 1, self._most_end - 1
        self._order[at], self._order[end] = self._order[end], self._order[at]
        self._most_end = end
