"""The values of a group of the consumer protocol: members, records, requests and answers. Pure.

A group changes by records alone: `ConsumerGroup` returns those that it has applied, and a broker
that takes the group over applies the stored ones.
Source: Kafka, ConsumerGroupMember, MemberState and GroupCoordinatorRecordHelpers; KIP-848.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from kio.schema.errors import ErrorCode

from gateway.core.group_members import Joined, Protocols, protocols_bytes
from gateway.core.java_map import in_map_order

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2
"""The epochs that a member sends to join, to leave, and to leave for a while as a static member."""

INITIAL_EPOCH: Final = 1
"""The group epoch and the assignment epoch of a new group."""

PROTOCOLS_BYTES_MAX: Final = 256 * 1024
"""The largest protocols of a classic member of the group. Its record must fit into one entry."""

_MEMBER_BYTES: Final = 256  # counted for each member besides its texts
_RESOLVED_BYTES: Final = 64  # counted for each topic of a resolved expression: a place in a set

Partitions = Mapping[UUID, frozenset[int]]
"""Partitions by topic. No topic has an empty set."""
Steps = Generator[None, None, dict[str, Partitions]]
"""The steps of an assignment. They yield after a few milliseconds each, and return all targets."""
Epochs = Mapping[UUID, Mapping[int, int]]
"""Partitions by topic, each with the member epoch in which the member got it."""


class ConsumerState(Enum):
    """The state of a group. The values are the names that Kafka's tools show."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class MemberState(IntEnum):
    """The state of a member, with Kafka's numbers."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2


class ConsumerRefused(Exception):
    """The error that a request is refused, with Kafka's code and text. Nothing has changed."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class ClassicMetadata(NamedTuple):
    """What a member that joins by JoinGroup has besides: a classic member of the group."""

    session_timeout_ms: int
    protocols: Protocols


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """One member: its subscription, and its current assignment."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    regex: str = ""  # "" if the member subscribes by names alone
    assignor: str | None = None  # the assignor that the member prefers
    classic: ClassicMetadata | None = None  # None for a member of the consumer protocol
    epoch: int = JOIN_EPOCH
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Epochs = field(default_factory=dict[UUID, Mapping[int, int]])
    revoking: Epochs = field(default_factory=dict[UUID, Mapping[int, int]])

    @property
    def size_bytes(self) -> int:
        """The memory counted for this member, without its assignment."""
        texts = (self.member_id, self.instance_id, self.rack_id, self.client_id, self.client_host)
        own = sum(len(each) for each in (*texts, self.regex, self.assignor) if each)
        own += 0 if self.classic is None else protocols_bytes(self.classic.protocols)
        return _MEMBER_BYTES + own + sum(map(len, self.topics)) + 16 * len(self.topics)

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        """Return whether the member has all of its target of this epoch, and nothing else."""
        return self.state is MemberState.STABLE and self.epoch == assignment_epoch

    def subscribes_as(self, other: ConsumerMember) -> bool:
        """Return whether both have the same subscription record."""
        return self.subscription_of(other) == self

    def subscription_of(self, other: ConsumerMember) -> ConsumerMember:
        """Return this member with the subscription of another one."""
        return replace(
            self,
            instance_id=other.instance_id,
            rack_id=other.rack_id,
            rebalance_timeout_ms=other.rebalance_timeout_ms,
            client_id=other.client_id,
            client_host=other.client_host,
            topics=other.topics,
            regex=other.regex,
            assignor=other.assignor,
            classic=other.classic,
        )

    def session_timeout_ms(self, timing: ConsumerTiming) -> int:
        """Return the session timeout: of a classic member its own, else that of the group."""
        return (
            timing.session_timeout_ms if self.classic is None else self.classic.session_timeout_ms
        )

    def with_epoch(self, epoch: int) -> ConsumerMember:
        """Return the member in another epoch. The present epoch becomes the previous one."""
        return replace(self, epoch=epoch, previous_epoch=self.epoch)


class ResolvedRegex(NamedTuple):
    """The topics that match a regular expression, and when they were found.

    `created` and `at_ms` are unknown after a takeover, and are then -1.
    """

    topics: frozenset[str]
    created: int = -1  # `TopicView.created` at that time
    at_ms: int = -1

    @property
    def size_bytes(self) -> int:
        """The memory counted for the topics."""
        return _RESOLVED_BYTES * len(self.topics)


class GroupRecord(NamedTuple):
    """The epochs of a group, and the hash of its subscribed topics."""

    epoch: int = INITIAL_EPOCH
    assignment_epoch: int = INITIAL_EPOCH
    topics_hash: int = 0


class RecordKind(Enum):
    """The kinds of records. A record replaces the one of the same kind and name before it."""

    GROUP = "group"  # without a name: a `GroupRecord`
    MEMBER = "member"  # by member id: the subscription of a `ConsumerMember`
    TARGET = "target"  # by member id: `Partitions`
    CURRENT = "current"  # by member id: the epochs, the state and the partitions of the member
    REGEX = "regex"  # by regular expression: the topics of a `ResolvedRegex`


class RecordKey(NamedTuple):
    """The key of a record."""

    kind: RecordKind
    name: str = ""


Record = GroupRecord | ConsumerMember | Partitions | ResolvedRegex
Changes = dict[RecordKey, Record | None]
"""The last record of each key, in the order in which they apply; None removes the record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """One ConsumerGroupHeartbeat. None means that the member sends nothing new."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: frozenset[str] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""

    @property
    def is_full(self) -> bool:
        """True if the member sends all that it has, so that the answer has its assignment."""
        subscribes = self.topics is not None or self.regex is not None
        return self.rebalance_timeout_ms != -1 and subscribes and self.owned is not None

    def changes_texts_of(self, member: ConsumerMember) -> bool:
        """Return whether the member may take more or less memory after the request."""
        sent = (self.topics, self.regex, self.instance_id, self.rack_id, self.assignor)
        known = (member.client_id, member.client_host)
        if member.classic is not None:
            return True
        return any(each is not None for each in sent) or known != (self.client_id, self.client_host)

    def applied_to(self, member: ConsumerMember) -> ConsumerMember:
        """Return the member with the subscription that the request has."""
        timeout_ms = self.rebalance_timeout_ms
        return replace(
            member,
            instance_id=member.instance_id if self.instance_id is None else self.instance_id,
            rack_id=member.rack_id if self.rack_id is None else self.rack_id,
            rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
            topics=member.topics if self.topics is None else self.topics,
            regex=member.regex if self.regex is None else self.regex,
            assignor=member.assignor if self.assignor is None else self.assignor,
            classic=None,
            client_id=self.client_id,
            client_host=self.client_host,
        )


class HeartbeatAnswer(NamedTuple):
    """The answer to a heartbeat. `assigned` is None if the assignment has not changed."""

    member_id: str
    epoch: int
    interval_ms: int = 0
    assigned: Epochs | None = None


class Outcome(NamedTuple):
    """What a request has done. The answer may leave once `changes` and all before are durable."""

    answer: HeartbeatAnswer
    changes: Changes
    # Regular expressions to resolve now; `ConsumerGroup.on_resolved` takes the result. None if
    # nothing is due.
    resolve: frozenset[str] | None = None
    # The steps of an assignment that takes long, to be run with pauses;
    # `ConsumerGroup.on_assigned` takes the result. None if nothing is due.
    assign: Steps | None = None


class JoinOutcome(NamedTuple):
    """What a JoinGroup has done. `joined` may leave once `changes` and all before are durable.

    It is None if the group has become a classic one, which has to take the JoinGroup.
    """

    joined: Joined | None
    changes: Changes
    assign: Steps | None = None  # as in `Outcome`


class ClassicBeat(NamedTuple):
    """What the Heartbeat of a classic member has done, and its code."""

    code: ErrorCode
    changes: Changes
    assign: Steps | None = None  # as in `Outcome`


class KnownTopic(Protocol):
    """A topic of the catalog."""

    @property
    def name(self) -> str: ...
    @property
    def topic_id(self) -> UUID: ...
    @property
    def partitions(self) -> int: ...


class TopicView(Protocol):
    """The topics of the cluster, as a broker has them in memory."""

    @property
    def version(self) -> int:
        """A number that changes whenever a topic appears, grows or disappears."""
        ...

    @property
    def created(self) -> int:
        """A number that rises whenever a topic appears."""
        ...

    def by_name(self, name: str) -> KnownTopic | None: ...
    def by_id(self, topic_id: UUID) -> KnownTopic | None: ...


class ConsumerTiming(NamedTuple):
    """The times of a group in milliseconds, from its configs or the broker's."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    regex_refresh_ms: int = 600_000


class Now(NamedTuple):
    """What a group sees of its broker at the time of a call."""

    ms: int  # monotonic
    topics: TopicView
    timing: ConsumerTiming = ConsumerTiming()


class ConsumerSettings(NamedTuple):
    """The limits of a group."""

    members_max: int = 2**31 - 1
    bytes_max: int = 2**63 - 1  # of all members, as `ConsumerMember.size_bytes` counts them
    regexes_max: int = 2**31 - 1  # different regular expressions of all members
    assignors: tuple[str, ...] = ("uniform", "range")  # enabled; the first one is the default
    upgrades: bool = True  # a classic group with members may become one of this protocol
    downgrades: bool = True  # a group of classic members alone becomes a classic group
    classic_members_max: int = 10_000  # of a group that becomes a classic one
    classic_bytes_max: int = 512 * 1024  # of its membership as it is stored, at most
    # Returns what is wrong with a regular expression, or None.
    regex_fault: Callable[[str], str | None] = lambda _: None


def preferred_assignor(members: Iterable[ConsumerMember], enabled: tuple[str, ...]) -> str:
    """Return the assignor that most members prefer. As in Kafka, the order of a map breaks ties.

    A member that prefers one that is enabled no more, since a restart, counts as one without a
    preference. Without any preference it is the first one that is enabled.
    """
    counts: dict[str, int] = {}
    for member in members:
        if member.assignor in enabled:
            counts[member.assignor] = counts.get(member.assignor, 0) + 1
    return max(in_map_order(list(counts)), key=counts.__getitem__, default=enabled[0])
