"""The members of a consumer group, as the state machine keeps them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from kio.schema.errors import ErrorCode

from gateway.core.group_members import (
    GroupMember,
    Joined,
    JoinedMember,
    Joining,
    MemberRecord,
    MemberView,
    protocols_bytes,
    text_bytes,
)


def assignment_growth(
    members: Iterable[GroupMember], assignments: Mapping[str, bytes]
) -> Mapping[str, int]:
    """Return by how many bytes these assignments, by member id, would increase each host's part."""
    growth: Counter[str] = Counter()
    for member in members:
        more = len(assignments.get(member.member_id, b"")) - len(member.assignment)
        growth[member.client_host] += more
    return growth


class Roster:
    """Members in order of arrival, their leader, and the protocols that they share.

    There is a leader whenever there is a member.
    """

    __slots__ = (
        "_changes",
        "_supported",
        "assigned_bytes",
        "awaiting_join",
        "instances",
        "leader",
        "members",
        "pending",
        "pending_bytes",
        "size_bytes",
    )

    def __init__(self) -> None:
        self.members: dict[str, GroupMember] = {}
        self.leader: str | None = None
        self.instances: dict[str, str] = {}  # member id of each static member, by instance id
        self.awaiting_join = 0  # members whose JoinGroup is unanswered
        self.size_bytes = 0  # sum of the members' `size_bytes`
        self.assigned_bytes = 0  # size of the members' assignments
        # Ids of new members that have not joined with them yet, with the hosts of their clients.
        self.pending: dict[str, str] = {}
        self.pending_bytes = 0  # size of the ids in `pending`
        # Changes of these three sizes together, by client host, since `take_byte_changes`.
        self._changes: Counter[str] = Counter()
        # Number of members that support each protocol, by protocol name.
        self._supported: Counter[str] = Counter()

    def add(self, member: GroupMember) -> None:
        self.members[member.member_id] = member
        self._resize(member, member.size_bytes)
        self._count_assigned(member, len(member.assignment))
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self._supported.update({name for name, _ in member.protocols})

    def add_pending(self, member_id: str, host: str) -> None:
        self.pending[member_id] = host
        self.pending_bytes += text_bytes(member_id)
        self._changes[host] += text_bytes(member_id)

    def end_pending(self, member_id: str) -> None:
        """Forget a pending id. Does nothing for another id."""
        host = self.pending.pop(member_id, None)
        if host is not None:
            self.pending_bytes -= text_bytes(member_id)
            self._changes[host] -= text_bytes(member_id)

    def assign(self, member: GroupMember, assignment: bytes) -> None:
        self._count_assigned(member, len(assignment) - len(member.assignment))
        member.assignment = assignment

    def take_byte_changes(self) -> Mapping[str, int]:
        """Return by how much each client host's bytes have changed since the last call."""
        changes, self._changes = self._changes, Counter()
        return changes

    def growth_bytes(self, joining: Joining) -> Mapping[str, int]:
        """Return by how many bytes this JoinGroup would increase `size_bytes`, at most.

        They count for the host that created the member, even if another one sends the request.
        """
        member_id = joining.member_id or self.instances.get(joining.instance_id or "", "")
        member = self.members.get(member_id)
        if member is None:
            return {joining.client_host: joining.size_bytes}
        return {member.client_host: joining.size_bytes - member.size_bytes}

    def remove(self, member_id: str) -> None:
        """Remove the member. If it was the leader, the next member leads."""
        member = self.members.pop(member_id)
        self._resize(member, -member.size_bytes)
        self._count_assigned(member, -len(member.assignment))
        self._supported.subtract({name for name, _ in member.protocols})
        if member.join_waiters:
            self.awaiting_join -= 1
        if member.instance_id is not None:
            del self.instances[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def update(self, member: GroupMember, joining: Joining) -> None:
        """Update the member from its new JoinGroup."""
        self._supported.subtract({name for name, _ in member.protocols})
        more = protocols_bytes(joining.protocols) - protocols_bytes(member.protocols)
        self._resize(member, more)
        member.protocols = joining.protocols
        self._supported.update({name for name, _ in member.protocols})
        member.session_timeout_ms = joining.session_timeout_ms
        member.rebalance_timeout_ms = joining.rebalance_timeout_ms

    def rename(self, old_id: str, new_id: str) -> GroupMember:
        """Give the static member a new id. The member keeps its place and its role."""
        member = self.members[old_id]
        assert member.instance_id is not None
        self._resize(member, text_bytes(new_id) - text_bytes(old_id))
        member.member_id = new_id
        self.members = {
            (new_id if known == old_id else known): each for known, each in self.members.items()
        }
        self.instances[member.instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        return member

    def _resize(self, member: GroupMember, more: int) -> None:
        self.size_bytes += more
        self._changes[member.client_host] += more

    def _count_assigned(self, member: GroupMember, more: int) -> None:
        self.assigned_bytes += more
        self._changes[member.client_host] += more

    def await_join(self, member: GroupMember, waiter: object) -> None:
        if not member.join_waiters:
            self.awaiting_join += 1
        member.join_waiters.append(waiter)

    def take_join_waiters(self, member: GroupMember) -> list[object]:
        """Remove and return the waiters of this member's JoinGroup."""
        if member.join_waiters:
            self.awaiting_join -= 1
        waiters, member.join_waiters = member.join_waiters, []
        return waiters

    def elect_leader(self) -> bool:
        """Elect a member that has joined. Returns False if no member has joined."""
        leader = self.members.get(self.leader or "")
        if leader is not None and leader.join_waiters:
            return True
        here = next((m.member_id for m in self.members.values() if m.join_waiters), None)
        if here is not None:
            self.leader = here
        return here is not None

    def known_to_all(self, name: str) -> bool:
        """Return whether every member supports this protocol."""
        return self._supported[name] == len(self.members)

    def most_wanted_protocol(self) -> str:
        """Return the protocol with most votes among those that all members support.

        The first vote wins a tie.
        """
        candidates = {name for name in self._supported if self.known_to_all(name)}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def check(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Check that the member id and the instance id belong together."""
        if instance_id is not None:
            current = self.instances.get(instance_id)
            if current is None:
                return ErrorCode.unknown_member_id
            if current != member_id:
                return ErrorCode.fenced_instance_id
        return ErrorCode.none if member_id in self.members else ErrorCode.unknown_member_id

    def joined(
        self,
        member: GroupMember,
        generation: int,
        protocol_type: str | None,
        protocol: str | None,
    ) -> Joined:
        """Return the answer to the JoinGroup of this member. Only the leader gets all members."""
        leads = member.member_id == self.leader
        return Joined(
            ErrorCode.none,
            member.member_id,
            generation,
            protocol_type,
            protocol,
            self.leader or "",
            self._for_leader(protocol) if leads else (),
        )

    def _for_leader(self, protocol: str | None) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(each.member_id, each.instance_id, each.metadata(protocol))
            for each in self.members.values()
        )

    def records(self, assignments: Mapping[str, bytes] | None) -> tuple[MemberRecord, ...]:
        """Return all members with these assignments. None means their own ones."""
        return tuple(
            member.record(
                member.assignment if assignments is None else assignments.get(member.member_id, b"")
            )
            for member in self.members.values()
        )

    def views(self, protocol: str | None, *, stable: bool) -> tuple[MemberView, ...]:
        return tuple(
            MemberView(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.metadata(protocol) if stable else b"",
                member.assignment if stable else b"",
            )
            for member in self.members.values()
        )
