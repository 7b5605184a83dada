"""The state of a group of the consumer protocol, which consists of its records. Pure.

The records of a group, applied in any order that ends with the last one of each key, make the same
state. Indexes that follow from the records are kept beside them.
Source: Kafka, ConsumerGroup and ModernGroup.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from uuid import UUID

from gateway.core.consumer_members import (
    Changes,
    ConsumerMember,
    ConsumerState,
    Epochs,
    GroupRecord,
    Partitions,
    Record,
    RecordKey,
    RecordKind,
    ResolvedRegex,
    TopicView,
)

GROUP_KEY = RecordKey(RecordKind.GROUP)


class ConsumerRoster:
    """The members, assignments and epochs of one group. `apply` makes every change."""

    __slots__ = (
        "_byte_changes",
        "_names",
        "_owners",
        "_regex_hosts",
        "_resolved_bytes",
        "consumers",
        "group",
        "instances",
        "members",
        "regexes",
        "resolved",
        "size_bytes",
        "targets",
    )

    def __init__(self) -> None:
        # The epochs. No epoch ever falls.
        self.group = GroupRecord()
        # The members by id, in the order in which they joined.
        self.members: dict[str, ConsumerMember] = {}
        # The member id of each static member by its instance id.
        self.instances: dict[str, str] = {}
        # The target of each member. A member that joined after the last assignment has none.
        self.targets: dict[str, Partitions] = {}
        # The topics of each regular expression that was resolved.
        self.resolved: dict[str, ResolvedRegex] = {}
        # The number of members that subscribe to each regular expression. No count is 0.
        self.regexes: Counter[str] = Counter()
        # The number of members that subscribe to each topic by its name. No count is 0.
        self._names: Counter[str] = Counter()
        # The member that has each partition, assigned or still to be revoked.
        self._owners: dict[UUID, dict[int, str]] = {}
        # The client host of the member that brought each regular expression of `regexes`.
        self._regex_hosts: dict[str, str] = {}
        # The host and the bytes that were counted for each expression of `resolved`.
        self._resolved_bytes: dict[str, tuple[str, int]] = {}
        # The number of members of the consumer protocol. The others are classic members.
        self.consumers = 0
        # The memory of all members, without their assignments.
        self.size_bytes = 0
        # Changes of the memory of members and of resolved expressions by client host, since
        # `take_byte_changes`.
        self._byte_changes: Counter[str] = Counter()

    # -- questions ------------------------------------------------------------------------------

    @property
    def state(self) -> ConsumerState:
        """The state, as it follows from the epochs and the members."""
        if not self.members:
            return ConsumerState.EMPTY
        if self.group.epoch > self.group.assignment_epoch:
            return ConsumerState.ASSIGNING
        epoch = self.group.assignment_epoch
        if all(each.is_reconciled_to(epoch) for each in self.members.values()):
            return ConsumerState.STABLE
        return ConsumerState.RECONCILING

    def owner(self, topic: UUID, partition: int) -> str | None:
        """Return the id of the member that has a partition, or None if it is free."""
        return self._owners.get(topic, {}).get(partition)

    def subscribed(self, member: ConsumerMember) -> frozenset[str]:
        """Return the topics of a member. An expression that is not resolved matches none."""
        resolved = self.resolved.get(member.regex) if member.regex else None
        return member.topics if resolved is None else member.topics | resolved.topics

    def subscribed_topics(self) -> set[str]:
        """Return the topics to which at least one member subscribes."""
        return set(self._names).union(*(each.topics for each in self.resolved.values()))

    def subscribed_ids(self, member: ConsumerMember, topics: TopicView) -> frozenset[UUID]:
        """Return the ids of the existing topics of a member."""
        return topic_ids(self.subscribed(member), topics)

    @property
    def is_homogeneous(self) -> bool:
        """True if all members subscribe to the same topics, as Kafka decides it from counts."""
        count = len(self.members)
        if not self.regexes:
            return all(each == count for each in self._names.values())
        if next(iter(self.regexes.values())) != count:
            return False
        return not self._names

    def topics_hash(self, topics: TopicView) -> int:
        """Return a number that changes if a subscribed topic appears, grows or disappears.

        The number is 0 if none of them exists.
        """
        known = [topics.by_name(name) for name in sorted(self.subscribed_topics())]
        found = [each for each in known if each is not None]
        if not found:
            return 0
        digest = hashlib.blake2b(digest_size=8)
        for each in found:
            digest.update(f"{each.name}:{each.topic_id.hex}:{each.partitions};".encode())
        return int.from_bytes(digest.digest()) >> 1

    def records(self) -> Changes:
        """Return all records of the group."""
        found: Changes = {GROUP_KEY: self.group}
        for name, member in self.members.items():
            found[RecordKey(RecordKind.MEMBER, name)] = member
            found[RecordKey(RecordKind.CURRENT, name)] = member
        for name, target in self.targets.items():
            found[RecordKey(RecordKind.TARGET, name)] = target
        for name, resolved in self.resolved.items():
            found[RecordKey(RecordKind.REGEX, name)] = resolved
        return found

    def take_byte_changes(self) -> Counter[str]:
        """Return the changes of the memory of members by client host since the last call."""
        found, self._byte_changes = self._byte_changes, Counter()
        return found

    # -- changes --------------------------------------------------------------------------------

    def apply(self, key: RecordKey, record: Record | None) -> None:
        """Apply one record. A subscription or an assignment alone leaves the other as it is."""
        kind, name = key
        match kind:
            case RecordKind.GROUP:
                assert isinstance(record, GroupRecord) and record.epoch >= self.group.epoch
                self.group = record
            case RecordKind.TARGET:
                self._set_target(name, record)
            case RecordKind.REGEX:
                assert record is None or isinstance(record, ResolvedRegex)
                self._set_resolved(name, record)
            case RecordKind.MEMBER:
                assert record is None or isinstance(record, ConsumerMember)
                self._set_subscription(name, record)
            case RecordKind.CURRENT:
                assert record is None or isinstance(record, ConsumerMember)
                self._set_current(name, record)

    def _set_target(self, name: str, record: Record | None) -> None:
        self.targets.pop(name, None)
        if record is not None:
            assert isinstance(record, dict)
            self.targets[name] = record

    def _set_resolved(self, name: str, record: ResolvedRegex | None) -> None:
        self.resolved.pop(name, None)
        host, size_bytes = self._resolved_bytes.pop(name, ("", 0))
        self._byte_changes[host] -= size_bytes
        if record is not None:
            self.resolved[name] = record
            counted = self._regex_hosts.get(name, ""), record.size_bytes
            self._resolved_bytes[name] = counted
            self._byte_changes[counted[0]] += counted[1]

    def _set_subscription(self, name: str, record: ConsumerMember | None) -> None:
        before = self.members.get(name)
        after = record
        if record is not None and before is not None:
            after = before.subscription_of(record)
        self._count(before, -1)
        self._count(after, 1)
        instance_id = None if before is None else before.instance_id
        if instance_id is not None and self.instances.get(instance_id) == name:
            del self.instances[instance_id]
        if after is None:
            self._disown(before)
            self.members.pop(name, None)
            return
        self.members[name] = after
        if after.instance_id is not None:
            self.instances[after.instance_id] = name
        if before is None:
            self._own(after)

    def _set_current(self, name: str, record: ConsumerMember | None) -> None:
        before = self.members.get(name)
        if before is None:  # it goes, or its subscription was removed before
            assert record is None
            return
        fresh = ConsumerMember(member_id=name) if record is None else record
        after = fresh.subscription_of(before)
        self._disown(before)
        self.members[name] = after
        self._own(after)

    def _count(self, member: ConsumerMember | None, more: int) -> None:
        if member is None:
            return
        self._byte_changes[member.client_host] += more * member.size_bytes
        self.size_bytes += more * member.size_bytes
        self.consumers += more * (member.classic is None)
        for counter, names in ((self._names, member.topics), (self.regexes, _regexes(member))):
            for each in names:
                counter[each] += more
                if not counter[each]:
                    del counter[each]
        if member.regex:
            self._note_host(member)

    def _note_host(self, member: ConsumerMember) -> None:
        """Note from which host the expression of a member came first, or forget it."""
        if member.regex in self.regexes:
            self._regex_hosts.setdefault(member.regex, member.client_host)
        else:
            self._regex_hosts.pop(member.regex, None)

    def _own(self, member: ConsumerMember) -> None:
        for topic, partition in _places(member.assigned, member.revoking):
            owners = self._owners.setdefault(topic, {})
            assert partition not in owners, f"{topic}-{partition} would have two members"
            owners[partition] = member.member_id

    def _disown(self, member: ConsumerMember | None) -> None:
        if member is None:
            return
        for topic, partition in _places(member.assigned, member.revoking):
            owners = self._owners[topic]
            assert owners[partition] == member.member_id
            del owners[partition]
            if not owners:
                del self._owners[topic]


def topic_ids(names: Iterable[str], topics: TopicView) -> frozenset[UUID]:
    """Return the ids of those of the topics that exist."""
    known = (topics.by_name(name) for name in names)
    return frozenset(each.topic_id for each in known if each is not None)


def _regexes(member: ConsumerMember) -> tuple[str, ...]:
    return (member.regex,) if member.regex else ()


def _places(*several: Epochs) -> Iterable[tuple[UUID, int]]:
    return ((topic, each) for epochs in several for topic, some in epochs.items() for each in some)
