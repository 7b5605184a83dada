"""The values of a consumer group: members, their requests and answers, and effects. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from gateway.wire.bounds_check import STRING_BYTES_MAX

NO_GENERATION = -1
_MEMBER_BYTES = 256  # counted for each member besides its texts and bytes
_PROTOCOL_BYTES = 32  # counted for each protocol besides its name and metadata
Protocols = tuple[tuple[str, bytes], ...]
"""Assignors that a member supports, preferred first, each with the member's metadata for it."""


def protocols_bytes(protocols: Protocols) -> int:
    """Return the memory counted for the protocols of one member."""
    return sum(_PROTOCOL_BYTES + text_bytes(name) + len(metadata) for name, metadata in protocols)


def text_bytes(*texts: str | None) -> int:
    """Return the size of texts in a stored membership, at most. JSON escapes what is not ASCII."""
    return sum(len(text) * (1 if text.isascii() else 6) for text in texts if text)


class State(Enum):
    """The state of a group. The values are the names that Kafka's tools show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


TRANSITIONS = {
    State.EMPTY: (State.PREPARING_REBALANCE,),
    State.PREPARING_REBALANCE: (State.COMPLETING_REBALANCE, State.EMPTY),
    State.COMPLETING_REBALANCE: (State.STABLE, State.PREPARING_REBALANCE),
    State.STABLE: (State.PREPARING_REBALANCE,),
    State.DEAD: (),
}
"""The states that may follow each state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """One JoinGroup. `fresh_id` is the end of a new member's id, and must never repeat."""

    member_id: str
    protocol_type: str
    protocols: Protocols
    session_timeout_ms: int
    rebalance_timeout_ms: int
    fresh_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    id_required: bool = True  # True from JoinGroup v4: a new dynamic member must return with its id
    skip_supported: bool = True  # True from JoinGroup v9: a static leader may skip the assignment

    @property
    def size_bytes(self) -> int:
        """The memory counted for this member once it has joined."""
        own = text_bytes(self.client_id, self.client_host, self.instance_id)
        # The member id consists of the client id or the instance id, and of `fresh_id`.
        own += text_bytes(self.instance_id or self.client_id, self.fresh_id)
        return _MEMBER_BYTES + own + protocols_bytes(self.protocols)


def new_member_id(prefix: str, fresh_id: str) -> str:
    """Return the id of a new member: a client id or an instance id, as in Kafka, and `fresh_id`.

    The longest of these ids leave no room for `fresh_id` in a string of the protocol, and lose
    their end. Kafka closes the connection instead.
    """
    room = STRING_BYTES_MAX - len(fresh_id) - 1
    raw = prefix.encode()
    if len(raw) > room:
        prefix = raw[:room].decode(errors="ignore")
    return f"{prefix}-{fresh_id}"


class Syncing(NamedTuple):
    """One SyncGroup. Only the leader sends assignments."""

    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


class Leaving(NamedTuple):
    """One member of a LeaveGroup. An operator names static members by instance id alone."""

    member_id: str
    instance_id: str | None = None


class JoinedMember(NamedTuple):
    """One member in the JoinGroup answer to the leader."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class Joined(NamedTuple):
    """The answer to a JoinGroup."""

    error: ErrorCode
    member_id: str = ""
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


class Synced(NamedTuple):
    """The answer to a SyncGroup."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class MemberRecord(NamedTuple):
    """One stored member."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes


class GroupMembership(NamedTuple):
    """The membership after a finished rebalance, which survives a restart of the broker.

    Without members it describes an empty group.
    """

    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: tuple[MemberRecord, ...] = ()


class MemberView(NamedTuple):
    """One member as DescribeGroups shows it; metadata and assignment only while Stable."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(slots=True)
class GroupMember:
    """One member. Its waiters belong to the caller of the group, which only stores them."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    new: bool = False  # True until the member finishes a join; it cannot send heartbeats before
    join_waiters: list[object] = field(default_factory=list[object])
    sync_waiters: list[object] = field(default_factory=list[object])

    def metadata(self, protocol: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    @property
    def size_bytes(self) -> int:
        """The memory counted for this member, without its assignment."""
        own = text_bytes(self.member_id, self.instance_id, self.client_id, self.client_host)
        return _MEMBER_BYTES + own + protocols_bytes(self.protocols)

    def vote(self, candidates: set[str]) -> str:
        """Return the candidate that this member prefers."""
        return next(name for name, _ in self.protocols if name in candidates)

    def record(self, assignment: bytes) -> MemberRecord:
        return MemberRecord(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.session_timeout_ms,
            self.rebalance_timeout_ms,
            self.protocols,
            assignment,
        )


class AnswerJoin(NamedTuple):
    """The effect of answering a JoinGroup waiter. Each waiter is answered once."""

    waiter: object
    joined: Joined


class AnswerSync(NamedTuple):
    """The effect of answering a SyncGroup waiter. Each waiter is answered once."""

    waiter: object
    synced: Synced


Later = Callable[[int], "list[Effect]"]
"""A continuation of the group: it takes the time and returns effects."""


class Persist(NamedTuple):
    """The effect of storing the membership. The caller then calls `then(now_ms)`.

    If the membership is too large to be stored, the caller calls `refuse(now_ms)` instead. If it
    cannot be stored for another reason, the caller calls `abandon`. A membership may be left out if
    a later one of the same group is stored; its `then` is called after the later one is durable.
    """

    membership: GroupMembership
    size_bytes: int  # the memory counted for it, which is near the size of its stored form
    then: Later
    refuse: Later


Effect = AnswerJoin | AnswerSync | Persist


class GroupSettings(NamedTuple):
    """The limits that the state machine needs. Times are in milliseconds."""

    initial_rebalance_delay_ms: int = 3_000
    new_member_timeout_ms: int = 300_000
    members_max: int = 10_000
    bytes_max: int = 8 * 1024 * 1024  # of all members together, as `size_bytes` counts them
