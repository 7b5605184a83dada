"""One classic consumer group: its members, its leader and its assignment. Pure.

Every call takes the time and returns effects: answers, and memberships to store. An assignment is
handed out only after its `Persist` has succeeded. So a restarted coordinator knows every generation
whose assignment a member has received.

Source: Kafka's ClassicGroup and GroupMetadataManager; KIP-134 (initial delay), KIP-345 (static
members), KIP-394 (member id required), KIP-814 (static leader skips the assignment).
"""

from __future__ import annotations

from collections.abc import Mapping

from kio.schema.errors import ErrorCode

from gateway.core.deadlines import Deadlines
from gateway.core.group_members import (
    TRANSITIONS,
    AnswerJoin,
    AnswerSync,
    Effect,
    GroupMember,
    GroupMembership,
    GroupSettings,
    Joined,
    Joining,
    Later,
    Leaving,
    MemberView,
    Persist,
    State,
    Synced,
    Syncing,
    new_member_id,
)
from gateway.core.join_deadline import JoinDeadline
from gateway.core.roster import Roster
from gateway.core.sync_phase import SyncPhase


class Group:
    """A classic group. Times are milliseconds since an arbitrary origin and never decrease."""

    __slots__ = (
        "_join",
        "_roster",
        "_sessions",
        "_settings",
        "_sync",
        "generation",
        "protocol",
        "protocol_type",
        "state",
    )

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self.state = State.EMPTY  # changes along TRANSITIONS only; Dead is final
        self.generation = 0  # rises by one when a join completes; never falls
        # Protocol type of all members; None before the first member
        self.protocol_type: str | None = None
        self.protocol: str | None = None  # the assignor of this generation; None while Empty
        self._roster = Roster()
        # Session deadlines by member id, including pending ids.
        self._sessions: Deadlines[str] = Deadlines()
        self._join = JoinDeadline(settings.initial_rebalance_delay_ms)
        self._sync = SyncPhase()

    @classmethod
    def restore(cls, membership: GroupMembership, settings: GroupSettings, now_ms: int) -> Group:
        """Create the group as it was stored, with fresh sessions.

        Members without a protocol come from a group of another protocol, and have to join again.
        """
        group = cls(settings)
        group.generation = membership.generation
        group.protocol_type = membership.protocol_type
        group.protocol = membership.protocol
        group._roster.leader = membership.leader
        for record in membership.members:
            member = GroupMember(*record)
            group._roster.add(member)
            group._extend_session(member, now_ms)
        if group.members and group.protocol is None:
            group.state = State.PREPARING_REBALANCE
            group._join.begin(now_ms, group._roster.rebalance_timeout_ms())
        elif group.members:
            group.state = State.STABLE
        return group

    # -- state that callers read ----------------------------------------------------------------

    @property
    def deadline_ms(self) -> int | None:
        """Return the time when `tick` is due, or None. An earlier `tick` is harmless."""
        times = (self._sessions.next(), self._join.at_ms, self._sync.at_ms)
        return min((at for at in times if at is not None), default=None)

    @property
    def members(self) -> Mapping[str, GroupMember]:
        return self._roster.members

    @property
    def leader(self) -> str | None:
        return self._roster.leader

    def take_byte_changes(self) -> Mapping[str, int]:
        """Return by how much each client host's bytes have changed since the last call."""
        return self._roster.take_byte_changes()

    def growth_bytes(self, joining: Joining) -> Mapping[str, int]:
        """Return by how many bytes, by client host, this JoinGroup would increase the members'."""
        return self._roster.growth_bytes(joining)

    @property
    def idle(self) -> bool:
        """True if the group has no member and no member is about to join."""
        return self.state is State.EMPTY and not self._roster.pending

    def membership(self, assignments: Mapping[str, bytes] | None = None) -> GroupMembership:
        """Return the membership to store, with these assignments or the members' own."""
        known = (self.generation, self.protocol_type, self.protocol, self.leader)
        return GroupMembership(*known, self._roster.records(assignments))

    def views(self) -> tuple[MemberView, ...]:
        return self._roster.views(self.protocol, stable=self.state is State.STABLE)

    # -- requests of members --------------------------------------------------------------------

    def join(self, joining: Joining, waiter: object, now_ms: int) -> list[Effect]:
        """Handle a JoinGroup. Its waiter is answered now or by a later effect."""
        if self.state is State.DEAD:
            return self._refuse_join(joining, waiter, ErrorCode.coordinator_not_available)
        if not self._has_room_for(joining.member_id):
            if joining.member_id in self.members:
                self._remove(joining.member_id)
            return [AnswerJoin(waiter, Joined(ErrorCode.group_max_size_reached))]
        growth = sum(self.growth_bytes(joining).values())
        size_bytes = self._roster.size_bytes + self._roster.pending_bytes
        if growth > 0 and size_bytes + growth > self._settings.bytes_max:
            return self._refuse_join(joining, waiter, ErrorCode.group_max_size_reached)
        if not self._speaks(joining):
            return self._refuse_join(joining, waiter, ErrorCode.inconsistent_group_protocol)
        if not joining.member_id:
            return self._join_new(joining, waiter, now_ms)
        if joining.member_id in self._roster.pending and joining.instance_id is None:
            return self._enter(joining, joining.member_id, waiter, now_ms)
        error = self._roster.check(joining.member_id, joining.instance_id)
        if error is not ErrorCode.none:
            return self._refuse_join(joining, waiter, error)
        return self._rejoin(joining, waiter, now_ms)

    def sync(self, syncing: Syncing, waiter: object, now_ms: int) -> list[Effect]:
        """Handle a SyncGroup. The leader sends the assignments of all members."""
        error = self._check_sync(syncing)
        if error is not ErrorCode.none:
            return [AnswerSync(waiter, Synced(error))]
        member = self.members[syncing.member_id]
        self._sync.on_sync(member.member_id)
        if self.state is State.STABLE:
            return [AnswerSync(waiter, self._synced(member))]
        member.sync_waiters.append(waiter)
        if member.member_id != self.leader or self._sync.assigning:
            return []
        return self._assign(dict(syncing.assignments))

    def heartbeat(
        self, member_id: str, generation: int, instance_id: str | None, now_ms: int
    ) -> ErrorCode:
        """Handle a heartbeat: extend the session of the member."""
        error = self._check_generation(member_id, generation, instance_id)
        if error is not ErrorCode.none:
            return error
        self._extend_session(self.members[member_id], now_ms)
        if self.state is State.PREPARING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def leave(
        self, leavings: tuple[Leaving, ...], now_ms: int
    ) -> tuple[list[ErrorCode], list[Effect]]:
        """Remove members, and let the remaining members rebalance.

        Returns an error code for each leaving member, and the effects.
        """
        effects: list[Effect] = []
        errors = [self._leave_one(leaving, effects) for leaving in leavings]
        if ErrorCode.none in errors:
            if self.state in (State.STABLE, State.COMPLETING_REBALANCE):
                effects += self._prepare_rebalance(now_ms)
            elif self.state is State.PREPARING_REBALANCE:
                effects += self._complete_join_if_all_are_here(now_ms)
        return errors, effects

    def check_commit(
        self, member_id: str, generation: int, instance_id: str | None, now_ms: int | None
    ) -> ErrorCode:
        """Check a commit. A member's commit counts as a heartbeat.

        Without a member id and generation it is valid only while the group is Empty. If `now_ms` is
        None, it is part of a transaction: always valid then, also in a rebalance, and no heartbeat.
        """
        if self.state is State.DEAD:
            return ErrorCode.coordinator_not_available
        if generation < 0 and self.state is State.EMPTY:
            return ErrorCode.none
        if generation < 0 and not member_id and instance_id is None:
            return ErrorCode.none if now_ms is None else ErrorCode.unknown_member_id
        error = self._check_generation(member_id, generation, instance_id)
        if error is not ErrorCode.none or now_ms is None:
            return error
        if self.state is State.COMPLETING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        self._extend_session(self.members[member_id], now_ms)
        return ErrorCode.none

    # -- time and the coordinator ---------------------------------------------------------------

    def tick(self, now_ms: int) -> list[Effect]:
        """Handle all deadlines up to now."""
        effects: list[Effect] = []
        for member_id in self._sessions.due(now_ms):
            effects += self._expire(member_id, now_ms)
        if self._join.at_ms is not None and self._join.at_ms <= now_ms:
            effects += self._on_join_timeout(now_ms)
        if self._sync.at_ms is not None and self._sync.at_ms <= now_ms:
            effects += self._on_sync_timeout(now_ms)
        return effects

    def extend_sessions(self, now_ms: int) -> None:
        """Extend all sessions after a time in which members could not reach the coordinator."""
        for member in self.members.values():
            if not member.new:
                self._extend_session(member, now_ms)
        again_ms = now_ms + self._roster.rebalance_timeout_ms()
        self._join.extend(again_ms)
        self._sync.extend(again_ms)

    def abandon(self, error: ErrorCode) -> list[Effect]:
        """Make the group Dead here (deleted, or moved to another coordinator); fail all waiters."""
        effects: list[Effect] = []
        for member in self.members.values():
            effects += self._answer_join(member, Joined(error, member.member_id))
            effects += self._answer_sync(member, Synced(error))
        self.state = State.DEAD
        self._sessions = Deadlines()
        self._join.at_ms = self._sync.at_ms = None
        return effects

    # -- joining --------------------------------------------------------------------------------

    def _refuse_join(self, joining: Joining, waiter: object, error: ErrorCode) -> list[Effect]:
        return [AnswerJoin(waiter, Joined(error, joining.member_id))]

    def _has_room_for(self, member_id: str) -> bool:
        """Return True if there is room. In a rebalance, only members that wait to join count."""
        member = self.members.get(member_id)
        if self.state is State.EMPTY:
            return True
        if self.state is State.PREPARING_REBALANCE:
            here = member is not None and bool(member.join_waiters)
            return here or self._roster.awaiting_join < self._settings.members_max
        return member is not None or len(self.members) < self._settings.members_max

    def _speaks(self, joining: Joining) -> bool:
        """Return True if the member has the protocol type and a protocol of all members."""
        if self.state is State.EMPTY:
            return bool(joining.protocol_type and joining.protocols)
        if joining.protocol_type != self.protocol_type:
            return False
        return any(self._roster.known_to_all(name) for name, _ in joining.protocols)

    def _join_new(self, joining: Joining, waiter: object, now_ms: int) -> list[Effect]:
        if joining.instance_id is not None:
            member_id = new_member_id(joining.instance_id, joining.fresh_id)
            if joining.instance_id in self._roster.instances:
                return self._replace_static(joining, member_id, waiter, now_ms)
            return self._enter(joining, member_id, waiter, now_ms)
        member_id = new_member_id(joining.client_id, joining.fresh_id)
        if not joining.id_required:
            return self._enter(joining, member_id, waiter, now_ms)
        if len(self._roster.pending) >= self._settings.members_max:
            return [AnswerJoin(waiter, Joined(ErrorCode.group_max_size_reached))]
        self._roster.add_pending(member_id, joining.client_host)
        self._sessions.set(member_id, now_ms + joining.session_timeout_ms)
        return [AnswerJoin(waiter, Joined(ErrorCode.member_id_required, member_id))]

    def _enter(self, joining: Joining, member_id: str, waiter: object, now_ms: int) -> list[Effect]:
        """Add a new member and rebalance."""
        member = GroupMember(
            member_id,
            joining.instance_id,
            joining.client_id,
            joining.client_host,
            joining.session_timeout_ms,
            joining.rebalance_timeout_ms,
            joining.protocols,
            new=True,
        )
        if not self.members:
            self.protocol_type = joining.protocol_type
        self._join.on_member_added()
        self._roster.end_pending(member_id)
        self._roster.add(member)
        self._roster.await_join(member, waiter)
        # Before it receives its id, it sends no heartbeats. A client that gave up must not remain.
        self._sessions.set(member_id, now_ms + self._settings.new_member_timeout_ms)
        return self._rebalance_or_complete(now_ms)

    def _rejoin(self, joining: Joining, waiter: object, now_ms: int) -> list[Effect]:
        member = self.members[joining.member_id]
        unchanged = joining.protocols == member.protocols
        leads = member.member_id == self.leader
        if self.state is State.EMPTY:
            return self._refuse_join(joining, waiter, ErrorCode.unknown_member_id)
        # An unchanged JoinGroup may follow a lost answer. But a leader has seen topics change.
        if unchanged and (
            self.state is State.COMPLETING_REBALANCE or (self.state is State.STABLE and not leads)
        ):
            return [AnswerJoin(waiter, self._joined(member))]
        self._roster.update(member, joining)
        self._roster.await_join(member, waiter)
        return self._rebalance_or_complete(now_ms)

    def _replace_static(
        self, joining: Joining, member_id: str, waiter: object, now_ms: int
    ) -> list[Effect]:
        """Give a returning static member a new id; the process with the old id is fenced."""
        assert joining.instance_id is not None
        old_id = self._roster.instances[joining.instance_id]
        old_leader = self.leader or ""
        effects, member = self._rename(old_id, member_id)
        self._roster.update(member, joining)
        self._extend_session(member, now_ms)
        self._roster.await_join(member, waiter)
        if self.state is State.COMPLETING_REBALANCE:  # the leader may use the old id
            return effects + self._prepare_rebalance(now_ms)
        if self.state is not State.STABLE:
            return effects + self._complete_join_if_all_are_here(now_ms)
        # Kafka compares the protocol, not the metadata, which may contain what the member owned
        # before its restart. Static members are meant to survive one without a rebalance.
        if self._roster.most_wanted_protocol() != self.protocol:
            return effects + self._rebalance_or_complete(now_ms)

        def then(now_ms: int) -> list[Effect]:
            if self.state is not State.STABLE or self.members.get(member_id) is not member:
                return []
            joined = self._joined(member)
            if joining.skip_supported:
                joined = joined._replace(skip_assignment=self.leader == member_id)
            else:  # an old client would assign again if it were named as leader
                joined = joined._replace(leader=old_leader, members=())
            return self._answer_join(member, joined)

        def refuse(now_ms: int) -> list[Effect]:
            if self.state is not State.STABLE or self.members.get(member_id) is not member:
                return []
            refused = self._answer_join(member, Joined(ErrorCode.unknown_server_error))
            return refused + self._prepare_rebalance(now_ms)

        return [*effects, self._persist(then, refuse)]

    def _rename(self, old_id: str, new_id: str) -> tuple[list[Effect], GroupMember]:
        member = self._roster.rename(old_id, new_id)
        fenced = ErrorCode.fenced_instance_id
        effects = [
            *self._answer_join(member, Joined(fenced, old_id)),
            *self._answer_sync(member, Synced(fenced)),
        ]
        self._sessions.clear(old_id)
        self._sync.rename(old_id, new_id)
        return effects, member

    # -- rebalancing ----------------------------------------------------------------------------

    def _rebalance_or_complete(self, now_ms: int) -> list[Effect]:
        if self.state is State.PREPARING_REBALANCE:
            return self._complete_join_if_all_are_here(now_ms)
        return self._prepare_rebalance(now_ms)

    def _prepare_rebalance(self, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        if self.state is State.COMPLETING_REBALANCE:
            for member in self.members.values():
                self._roster.assign(member, b"")
                answers = self._answer_sync(member, Synced(ErrorCode.rebalance_in_progress))
                effects += answers
                if answers:
                    self._extend_session(member, now_ms)
        self._sync.end()
        self._join.initial = self.state is State.EMPTY
        self._become(State.PREPARING_REBALANCE)
        if self._join.initial:
            self._join.begin_initial(now_ms, self._roster.rebalance_timeout_ms())
        elif self._all_are_here():
            effects += self._complete_join(now_ms)
        else:
            self._join.begin(now_ms, self._roster.rebalance_timeout_ms())
        return effects

    def _all_are_here(self) -> bool:
        return self._roster.awaiting_join == len(self.members) and not self._roster.pending

    def _complete_join_if_all_are_here(self, now_ms: int) -> list[Effect]:
        """Complete the join if every member has joined. The initial join always runs to its end."""
        if self.state is not State.PREPARING_REBALANCE or self._join.initial:
            return []
        return self._complete_join(now_ms) if self._all_are_here() else []

    def _on_join_timeout(self, now_ms: int) -> list[Effect]:
        return [] if self._join.begin_next_round(now_ms) else self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> list[Effect]:
        """Begin the next generation with the members that joined and with absent static members."""
        self._join.at_ms = None
        for member in list(self.members.values()):
            if not member.join_waiters and member.instance_id is None:
                self._remove(member.member_id)
        if self.members and not self._roster.elect_leader():
            self._join.begin(now_ms, self._roster.rebalance_timeout_ms())
            return []
        self._join.initial = False
        self.generation += 1
        if not self.members:
            self.protocol = None
            self._become(State.EMPTY)
            return [self._persist(lambda _: [], lambda _: [])]
        self.protocol = self._roster.most_wanted_protocol()
        self._become(State.COMPLETING_REBALANCE)
        effects: list[Effect] = []
        for member in self.members.values():
            effects += self._answer_join(member, self._joined(member))
            member.new = False
            self._extend_session(member, now_ms)
        self._sync.begin(self.members, now_ms + self._roster.rebalance_timeout_ms())
        return effects

    def _assign(self, assignments: dict[str, bytes]) -> list[Effect]:
        self._sync.assigning = True
        generation = self.generation

        def then(now_ms: int) -> list[Effect]:
            if not self._sync.assigning or self.generation != generation:
                return []  # another rebalance has begun, and stores its own result
            self._sync.assigning = False
            self._become(State.STABLE)
            effects: list[Effect] = []
            for member in self.members.values():
                self._roster.assign(member, assignments.get(member.member_id, b""))
                answers = self._answer_sync(member, self._synced(member))
                effects += answers
                # The session may have expired meanwhile. It starts again.
                if answers:
                    self._extend_session(member, now_ms)
            return effects

        def refuse(now_ms: int) -> list[Effect]:
            if not self._sync.assigning or self.generation != generation:
                return []
            return self._refuse_assignment(now_ms)

        return [self._persist(then, refuse, assignments)]

    def _refuse_assignment(self, now_ms: int) -> list[Effect]:
        """Answer all members that wait with UNKNOWN_SERVER_ERROR, as Kafka does, and rebalance."""
        effects: list[Effect] = []
        for member in self.members.values():
            answers = self._answer_sync(member, Synced(ErrorCode.unknown_server_error))
            effects += answers
            if answers:
                self._extend_session(member, now_ms)
        return effects + self._prepare_rebalance(now_ms)

    def _on_sync_timeout(self, now_ms: int) -> list[Effect]:
        absent = self._sync.time_out(self.members)
        if not absent or self.state not in (State.COMPLETING_REBALANCE, State.STABLE):
            return []
        for member_id in absent:
            self._remove(member_id)
        return self._prepare_rebalance(now_ms)

    # -- leaving --------------------------------------------------------------------------------

    def _leave_one(self, leaving: Leaving, effects: list[Effect]) -> ErrorCode:
        if self.state is State.DEAD:
            return ErrorCode.coordinator_not_available
        member_id = leaving.member_id
        if not member_id:
            member_id = self._roster.instances.get(leaving.instance_id or "", "")
            if not member_id:
                return ErrorCode.unknown_member_id
        elif member_id in self._roster.pending:
            self._roster.end_pending(member_id)
            self._sessions.clear(member_id)
            return ErrorCode.none
        else:
            error = self._roster.check(member_id, leaving.instance_id)
            if error is not ErrorCode.none:
                return error
        effects += self._dismiss(member_id)
        return ErrorCode.none

    def _expire(self, member_id: str, now_ms: int) -> list[Effect]:
        member = self.members.get(member_id)
        effects: list[Effect] = []
        if member is None:
            self._roster.end_pending(member_id)
        elif (member.join_waiters or member.sync_waiters) and not member.new:
            # A member that waits for an answer is alive. Its session starts again with the answer.
            return []
        else:
            effects += self._dismiss(member_id)
            if self.state in (State.STABLE, State.COMPLETING_REBALANCE):
                return effects + self._prepare_rebalance(now_ms)
        if self.state is State.PREPARING_REBALANCE and self._all_are_here():
            effects += self._complete_join(now_ms)
        return effects

    def _dismiss(self, member_id: str) -> list[Effect]:
        """Remove the member, and answer its waiters with an error."""
        member = self.members[member_id]
        gone = ErrorCode.unknown_member_id
        effects = [
            *self._answer_join(member, Joined(gone)),
            *self._answer_sync(member, Synced(gone)),
        ]
        self._remove(member_id)
        return effects

    # -- bookkeeping ----------------------------------------------------------------------------

    def _become(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state = state

    def _remove(self, member_id: str) -> None:
        self._roster.remove(member_id)
        self._sync.remove(member_id)
        self._sessions.clear(member_id)

    def _extend_session(self, member: GroupMember, now_ms: int) -> None:
        self._sessions.set(member.member_id, now_ms + member.session_timeout_ms)

    def _answer_join(self, member: GroupMember, joined: Joined) -> list[Effect]:
        return [AnswerJoin(each, joined) for each in self._roster.take_join_waiters(member)]

    def _answer_sync(self, member: GroupMember, synced: Synced) -> list[Effect]:
        waiters, member.sync_waiters = member.sync_waiters, []
        return [AnswerSync(each, synced) for each in waiters]

    def _joined(self, member: GroupMember) -> Joined:
        return self._roster.joined(member, self.generation, self.protocol_type, self.protocol)

    def _synced(self, member: GroupMember) -> Synced:
        return Synced(ErrorCode.none, self.protocol_type, self.protocol, member.assignment)

    def _persist(
        self, then: Later, refuse: Later, assignments: Mapping[str, bytes] | None = None
    ) -> Persist:
        membership = self.membership(assignments)
        assigned = sum(len(member.assignment) for member in membership.members)
        return Persist(membership, self._roster.size_bytes + assigned, then, refuse)

    # -- checks ---------------------------------------------------------------------------------

    def _check_generation(
        self, member_id: str, generation: int, instance_id: str | None
    ) -> ErrorCode:
        if self.state is State.DEAD:
            return ErrorCode.coordinator_not_available
        error = self._roster.check(member_id, instance_id)
        if error is ErrorCode.none and generation != self.generation:
            return ErrorCode.illegal_generation
        return error

    def _check_sync(self, syncing: Syncing) -> ErrorCode:
        error = self._check_generation(syncing.member_id, syncing.generation, syncing.instance_id)
        if error is not ErrorCode.none:
            return error
        pairs = ((syncing.protocol_type, self.protocol_type), (syncing.protocol, self.protocol))
        # After a change of the protocol there is no assignor yet: members have to join again.
        if any(sent != own for sent, own in pairs if None not in (sent, own)):
            return ErrorCode.inconsistent_group_protocol
        if self.state is State.PREPARING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none
