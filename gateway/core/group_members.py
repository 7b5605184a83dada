"""The values of a consumer group: members, their requests and answers, and effects. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from kio.schema.errors import ErrorCode

NO_GENERATION = -1
Protocols = tuple[tuple[str, bytes], ...]
"""Assignors that a member supports, preferred first, each with the member's metadata for it."""


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
    """One JoinGroup. `fresh_id` is the end of a new member's id, and must be unique for ever."""

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


class Persist(NamedTuple):
    """The effect of storing the membership. The caller then calls `then(now_ms)`.

    If the membership cannot be stored, the caller calls `abandon` instead.
    """

    membership: GroupMembership
    then: Callable[[int], list[Effect]]


Effect = AnswerJoin | AnswerSync | Persist


class GroupSettings(NamedTuple):
    """The limits that the state machine needs, in milliseconds."""

    initial_rebalance_delay_ms: int = 3_000
    new_member_timeout_ms: int = 300_000
    members_max: int = 10_000
