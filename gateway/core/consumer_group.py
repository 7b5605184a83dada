"""A group of the consumer protocol (KIP-848): epochs, target assignment, members' epochs. Pure.

    subscription, membership or topics change ─▶ group epoch + 1
    group epoch > assignment epoch            ─▶ an assignor makes a target for every member
    a member's heartbeat                      ─▶ one step of this member towards its target

Each call that changes the group returns the records of the change. They are applied already; no
answer may leave before they are durable. A member repeats its last heartbeat if the answer was
lost: the epoch before is accepted while the member owns nothing but what it was given.
Source: Kafka 4.3, GroupMetadataManager; KIP-848, KIP-1082, KIP-1263.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from gateway.core.classic_members import (
    ClassicDeadlines,
    as_partitions,
    check_protocol,
    check_protocols,
    joined_as,
    must_rejoin,
    subscription_of,
)
from gateway.core.consumer_assignors import ASSIGNORS, is_costly, result_of
from gateway.core.consumer_commits import MayCommit, any_partition, check_fetch, committable
from gateway.core.consumer_lookup import (
    find_classic,
    find_for_heartbeat,
    find_for_join,
    member_of,
    static_member,
)
from gateway.core.consumer_members import (
    INITIAL_EPOCH,
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    Changes,
    ClassicBeat,
    ConsumerHeartbeat,
    ConsumerMember,
    ConsumerRefused,
    ConsumerSettings,
    ConsumerState,
    GroupRecord,
    HeartbeatAnswer,
    JoinOutcome,
    MemberState,
    Now,
    Outcome,
    Partitions,
    Record,
    RecordKey,
    RecordKind,
    ResolvedRegex,
    Steps,
    preferred_assignor,
)
from gateway.core.consumer_reconciliation import Reconciliation, reconciled
from gateway.core.consumer_regexes import RegexStatus, regex_change
from gateway.core.consumer_roster import GROUP_KEY, ConsumerRoster
from gateway.core.consumer_spec import spec_of
from gateway.core.deadlines import Deadlines
from gateway.core.group import Group
from gateway.core.group_members import GroupMembership, Joined, Joining, Synced, Syncing
from gateway.core.group_migration import assignment_of, downgraded, upgraded
from gateway.core.offset_expiry import CONSUMER

_RECORD_ORDER = (
    RecordKind.GROUP,
    RecordKind.MEMBER,
    RecordKind.TARGET,
    RecordKind.CURRENT,
    RecordKind.REGEX,
)


class _Step(NamedTuple):
    """A member before and after what it has sent, and what it says it owns."""

    found: ConsumerMember
    replaced: str | None  # the static member whose place it takes
    updated: ConsumerMember
    owned: Partitions | None


class _Advanced(NamedTuple):
    """A member after one step, the records, and what is to be done with pauses."""

    member: ConsumerMember
    changes: Changes
    resolve: frozenset[str] | None
    assign: Steps | None


class ConsumerGroup:
    """The state machine of one group. Times are monotonic milliseconds, and arguments."""

    def __init__(self, group_id: str, settings: ConsumerSettings) -> None:
        self.group_id = group_id
        self.roster = ConsumerRoster()
        self._settings = settings
        # When each member is fenced unless it sends a heartbeat. Every member has one.
        self._sessions: Deadlines[str] = Deadlines()
        # When each member in UNREVOKED_PARTITIONS is fenced, unless it has left this epoch.
        self._rebalances: Deadlines[str] = Deadlines()
        self._rebalance_epochs: dict[str, int] = {}
        # When the last target was made; None if that is unknown, and the next may be made at once.
        self._assigned_at_ms: int | None = None
        # `TopicView.version` at the last look at the subscribed topics; None before the first.
        self._seen_version: int | None = None
        # True while regular expressions are being resolved.
        self._resolving = False
        # The group epoch for which a target is being made, while that takes long. None otherwise.
        self._assigning: int | None = None
        # True if the target that is being made has a static member by an id that it has no more.
        self._outdated = False
        # True after an upgrade until the first heartbeat: even a member that subscribes to nothing
        # lets a target be made, because a rebalance may have been under way.
        self._upgraded = False
        # The times until which classic members have to join or to sync.
        self._classic = ClassicDeadlines()
        # The classic group that this group has become, or None. Once it is set, the records of the
        # group are removed by the changes that were returned, and no method may be called any more.
        self.ended: GroupMembership | None = None

    @staticmethod
    def restore(
        group_id: str,
        settings: ConsumerSettings,
        records: Mapping[RecordKey, Record],
        now_ms: int,
        session_timeout_ms: int,
    ) -> ConsumerGroup:
        """Return the group of these records. All sessions and rebalance timeouts begin anew."""
        group = ConsumerGroup(group_id, settings)
        for key in sorted(records, key=lambda each: _RECORD_ORDER.index(each.kind)):
            group.roster.apply(key, records[key])
        group.extend_sessions(now_ms, session_timeout_ms)
        return group

    @staticmethod
    def upgrade(
        group_id: str, classic: Group, settings: ConsumerSettings, now: Now
    ) -> tuple[ConsumerGroup, Changes]:
        """Return the group of the members of a classic group, and its records.

        The classic group stays as it is. Raises ConsumerRefused.
        """
        changes = upgraded(group_id, classic, settings, now.topics)
        group = ConsumerGroup(group_id, settings)
        for key, record in changes.items():
            group.roster.apply(key, record)
        epoch = max(classic.generation, INITIAL_EPOCH)
        epochs = GroupRecord(epoch, epoch, group.roster.topics_hash(now.topics))
        group._put(changes, GROUP_KEY, epochs)
        group._upgraded = True
        group.extend_sessions(now.ms, now.timing.session_timeout_ms)
        return group, changes

    # -- questions ------------------------------------------------------------------------------

    @property
    def state(self) -> ConsumerState:
        return self.roster.state

    @property
    def members(self) -> Mapping[str, ConsumerMember]:
        return self.roster.members

    @property
    def epoch(self) -> int:
        return self.roster.group.epoch

    @property
    def assignment_epoch(self) -> int:
        return self.roster.group.assignment_epoch

    @property
    def assignor(self) -> str:
        """The assignor of the next target."""
        return preferred_assignor(self.members.values(), self._settings.assignors)

    @property
    def deadline_ms(self) -> int | None:
        """The time of the next `tick`, or None if the group waits for nothing."""
        times = (self._sessions.next(), self._rebalances.next(), self._classic.next())
        return min((each for each in times if each is not None), default=None)

    # -- requests -------------------------------------------------------------------------------

    def heartbeat(self, request: ConsumerHeartbeat, now: Now) -> Outcome:
        """Take a heartbeat, a join or a leave. Raises ConsumerRefused."""
        if request.epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return self._leave(request, now)
        if len(self.members) >= self._settings.members_max:
            self._refuse_if_full(request.member_id)
        found, replaced = find_for_heartbeat(self.roster, self.group_id, request)
        step = _Step(found, replaced, request.applied_to(found), request.owned)
        updated, changes, resolve, assign = self._advance(step, now)
        self._classic.forget(updated.member_id)
        self._sessions.set(updated.member_id, now.ms + now.timing.session_timeout_ms)
        shows = request.epoch == JOIN_EPOCH or request.is_full
        answer = HeartbeatAnswer(
            updated.member_id,
            updated.epoch,
            now.timing.heartbeat_interval_ms,
            updated.assigned if shows or updated.assigned != found.assigned else None,
        )
        return Outcome(answer, changes, resolve, assign)

    def _advance(self, step: _Step, now: Now) -> _Advanced:
        """Take what a member has sent, and move the member. Raises ConsumerRefused before that."""
        found, updated = step.found, step.updated
        self._refuse_if_large(step.replaced or found.member_id, updated)
        # A classic member lets none be resolved: the next heartbeat of another member does.
        busy = self._resolving or updated.classic is not None
        regex = regex_change(
            self.roster, (found.regex, updated.regex), now, self._settings, busy=busy
        )
        if regex.resolve is not None:
            self._resolving = True
        changes: Changes = {}
        if step.replaced is not None:
            self._replace(changes, step.replaced, found)
        if found.member_id not in self.members or not found.subscribes_as(updated):
            self._put(changes, RecordKey(RecordKind.MEMBER, found.member_id), updated)
        if regex.unused and regex.unused in self.roster.resolved:
            self._put(changes, RecordKey(RecordKind.REGEX, regex.unused), None)
        renamed = found.topics != updated.topics
        resolved = regex.status is RegexStatus.CHANGED_AND_RESOLVED
        bump, self._upgraded = renamed or resolved or self._upgraded, False
        if bump or self._seen_version != now.topics.version:
            self._see_topics(changes, now, bump=bump)
        assign = self._maybe_assign(changes, now)
        changed = renamed or regex.status is not RegexStatus.SAME
        after = self._reconcile(changes, found.member_id, step.owned, changed, now)
        return _Advanced(after, changes, regex.resolve, assign)

    # -- requests of classic members -------------------------------------------------------------

    def join(self, joining: Joining, now: Now) -> JoinOutcome:
        """Take a JoinGroup. Its generation is the member's epoch. Raises ConsumerRefused.

        A static member may take the place of the last member of the consumer protocol. Then the
        group becomes a classic one, which takes this JoinGroup.
        """
        member_id = joining.member_id or joining.fresh_id
        if len(self.members) >= self._settings.members_max:
            self._refuse_if_full(member_id)
        check_protocols(self.members.values(), member_id, joining)
        is_new = not joining.member_id
        if is_new and joining.id_required and joining.instance_id is None:
            self._classic.on_given(member_id)
            return JoinOutcome(Joined(ErrorCode.member_id_required, member_id), {})
        subscription = subscription_of(joining)
        found, replaced = find_for_join(self.roster, member_id, joining.instance_id, new=is_new)
        before = self.roster.instances.get(joining.instance_id or "")
        if before is not None and self.members[before].classic is None:
            membership = self._classic_without([before], now)
            if membership is not None:
                changes: Changes = {}
                self._end(changes, membership)
                return JoinOutcome(None, changes)
        owned = as_partitions(subscription, now.topics)
        if owned and self._is_lost(joining.member_id):  # it may still read; let it forget that
            self._classic.on_given(member_id)
            raise ConsumerRefused(
                ErrorCode.unknown_member_id,
                f"Member {member_id} is not a member of group {self.group_id}.",
            )
        updated = joined_as(found, joining, subscription)
        updated, changes, _, assign = self._advance(_Step(found, replaced, updated, owned), now)
        self._rebalances.clear(member_id)
        self._sessions.set(member_id, now.ms + joining.session_timeout_ms)
        self._classic.on_joined(member_id, now.ms + joining.rebalance_timeout_ms)
        protocol = joining.protocols[0][0]
        joined = Joined(ErrorCode.none, member_id, updated.epoch, CONSUMER, protocol)
        return JoinOutcome(joined, changes, assign)

    def sync(self, syncing: Syncing, now: Now) -> Synced:
        """Take a SyncGroup: return what the member may read. Raises ConsumerRefused."""
        member = find_classic(
            self.roster, self.group_id, syncing.member_id, syncing.generation, syncing.instance_id
        )
        check_protocol(member, syncing)
        behind = self.assignment_epoch > member.epoch
        if behind and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._classic.await_join(member.member_id, now.ms + member.rebalance_timeout_ms)
            raise ConsumerRefused(
                ErrorCode.rebalance_in_progress,
                f"A new rebalance is triggered in group {self.group_id} and member "
                f"{member.member_id} should rejoin to catch up.",
            )
        self._classic.on_synced(member.member_id)
        self._sessions.set(member.member_id, now.ms + member.session_timeout_ms(now.timing))
        partitions = {topic: frozenset(some) for topic, some in member.assigned.items()}
        assignment = assignment_of(member, partitions, now.topics)
        return Synced(ErrorCode.none, syncing.protocol_type, syncing.protocol, assignment)

    def classic_heartbeat(
        self, member_id: str, generation: int, instance_id: str | None, now: Now
    ) -> ClassicBeat:
        """Take a Heartbeat of a classic member. Raises ConsumerRefused.

        REBALANCE_IN_PROGRESS means that the member has to join again, to give up partitions or to
        get more of them. As in a heartbeat of the consumer protocol, a target that is due is made.
        """
        member = find_classic(self.roster, self.group_id, member_id, generation, instance_id)
        self._sessions.set(member.member_id, now.ms + member.session_timeout_ms(now.timing))
        changes: Changes = {}
        if self._seen_version != now.topics.version:
            self._see_topics(changes, now, bump=False)
        assign = self._maybe_assign(changes, now)
        if not must_rejoin(self.roster, member):
            return ClassicBeat(ErrorCode.none, changes, assign)
        self._classic.await_join(member.member_id, now.ms + member.rebalance_timeout_ms)
        return ClassicBeat(ErrorCode.rebalance_in_progress, changes, assign)

    def on_resolved(
        self, found: Mapping[str, frozenset[str]] | None, created: int, at_ms: int, now: Now
    ) -> Changes:
        """Take the topics of regular expressions, or None if they could not be resolved.

        `created` and `at_ms` are those of the begin of the resolution.
        """
        self._resolving = False
        changes: Changes = {}
        if self.ended is not None:
            return changes
        bump = False
        for regex, topics in (found or {}).items():
            if regex not in self.roster.regexes:
                continue
            before = self.roster.resolved.get(regex)
            bump = bump or topics != (frozenset() if before is None else before.topics)
            key, resolved = (
                RecordKey(RecordKind.REGEX, regex),
                ResolvedRegex(topics, created, at_ms),
            )
            if before is None or before.topics != topics:
                self._put(changes, key, resolved)
            else:
                self.roster.apply(key, resolved)  # the stored record is the same
        if found is not None:
            self._see_topics(changes, now, bump=bump)
        return changes

    def on_assigned(self, found: Mapping[str, Partitions] | None) -> Changes:
        """Take the targets of an assignment that took long, or None if they could not be made.

        Members that have come since wait for the next target.
        """
        epoch, self._assigning = self._assigning, None
        outdated, self._outdated = self._outdated, False
        changes: Changes = {}
        if epoch is not None and found is not None and self.ended is None and not outdated:
            self._take_targets(changes, found, epoch)
        return changes

    def tick(self, now: Now) -> Changes:
        """Fence the members whose session or rebalance timeout has passed."""
        due = dict.fromkeys((*self._sessions.due(now.ms), *self._classic.due(now.ms)))
        for member_id in self._rebalances.due(now.ms):
            member = self.members.get(member_id)
            if member is not None and member.epoch == self._rebalance_epochs.get(member_id):
                due[member_id] = None
        return self.remove([each for each in due if each in self.members], now)

    def extend_sessions(self, now_ms: int, session_timeout_ms: int) -> None:
        """Begin all sessions and rebalance timeouts anew: heartbeats could not arrive."""
        for name, member in self.members.items():
            timeout_ms = session_timeout_ms
            if member.classic is not None:
                timeout_ms = member.classic.session_timeout_ms
                self._classic.extend(name, now_ms + member.rebalance_timeout_ms)
            self._sessions.set(name, now_ms + timeout_ms)
            if member.state is MemberState.UNREVOKED_PARTITIONS:
                self._watch_rebalance(member, now_ms)

    def remove(self, member_ids: list[str], now: Now) -> Changes:
        """Remove members, and raise the group epoch by one. All of them must exist."""
        changes: Changes = {}
        if member_ids:
            self._fence(changes, member_ids, now)
        return changes

    # -- offsets --------------------------------------------------------------------------------

    def check_commit(
        self, member_id: str, epoch: int, *, transactional: bool, new_version: bool
    ) -> MayCommit:
        """Return the partitions of which a member may commit offsets. Raises ConsumerRefused."""
        if epoch < 0 and not self.members:
            return any_partition
        if transactional and epoch == -1 and not member_id:
            return any_partition
        member = self._member(member_id)
        return committable(member, epoch, transactional=transactional, new_version=new_version)

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Raise ConsumerRefused unless this member may read the committed offsets."""
        if member_id is not None or epoch >= 0:
            check_fetch(self._member(member_id or ""), epoch)

    # -- members --------------------------------------------------------------------------------

    def _member(self, member_id: str) -> ConsumerMember:
        return member_of(self.roster, self.group_id, member_id)

    def _is_lost(self, member_id: str) -> bool:
        """Return whether the id of a JoinGroup is that of a fenced member, which need not know it.

        It may have been fenced by another broker. New members have no id, or one that was given.
        """
        known = member_id in self.members or self._classic.was_given(member_id)
        return bool(member_id) and not known

    def _refuse_if_full(self, member_id: str) -> None:
        if member_id not in self.members:
            raise ConsumerRefused(
                ErrorCode.group_max_size_reached,
                "The consumer group has reached its maximum capacity of "
                f"{self._settings.members_max} members.",
            )

    def _refuse_if_large(self, before: str, after: ConsumerMember) -> None:
        """Refuse a subscription with which the members of the group would be too large."""
        known, bytes_max = self.members.get(before), self._settings.bytes_max
        growth_bytes = after.size_bytes - (0 if known is None else known.size_bytes)
        if growth_bytes > 0 and self.roster.size_bytes + growth_bytes > bytes_max:
            raise ConsumerRefused(
                ErrorCode.group_max_size_reached,
                f"The members of the consumer group would take more than {bytes_max} bytes.",
            )

    def _replace(self, changes: Changes, before: str, after: ConsumerMember) -> None:
        """Give the place of a static member to its new member id."""
        self._outdated = self._assigning is not None
        target = self.roster.targets.get(before, {})
        self._forget(changes, before)
        for kind in (RecordKind.MEMBER, RecordKind.CURRENT):
            self._put(changes, RecordKey(kind, after.member_id), after)
        self._put(changes, RecordKey(RecordKind.TARGET, after.member_id), target)

    def _leave(self, request: ConsumerHeartbeat, now: Now) -> Outcome:
        changes: Changes = {}
        answer = HeartbeatAnswer(request.member_id, request.epoch)
        if request.instance_id is None:
            member = self._member(request.member_id)
        else:
            member = static_member(self.roster, request.member_id, request.instance_id)
            if request.epoch == STATIC_LEAVE_EPOCH:
                self._leave_for_a_while(changes, member)
                return Outcome(answer, changes)
        self._fence(changes, [member.member_id], now)
        return Outcome(answer, changes)

    def _leave_for_a_while(self, changes: Changes, member: ConsumerMember) -> None:
        """Keep the place of a static member until its session ends. It has revoked the rest."""
        assigned = {topic: dict.fromkeys(some, 0) for topic, some in member.assigned.items()}
        left = replace(member, epoch=STATIC_LEAVE_EPOCH, assigned=assigned, revoking={})
        self._put(changes, RecordKey(RecordKind.CURRENT, member.member_id), left)

    def _fence(self, changes: Changes, member_ids: list[str], now: Now) -> None:
        """Remove members. Their partitions are free, and the group epoch rises by one.

        If classic members alone remain, the group becomes a classic one in place of that.
        """
        if len(self.members) > len(member_ids):
            membership = self._classic_without(member_ids, now)
            if membership is not None:
                self._end(changes, membership)
                return
        for member_id in member_ids:
            regex = self.members[member_id].regex
            self._forget(changes, member_id)
            if regex and regex not in self.roster.regexes and regex in self.roster.resolved:
                self._put(changes, RecordKey(RecordKind.REGEX, regex), None)
        group = self.roster.group
        self._put(
            changes,
            GROUP_KEY,
            group._replace(epoch=group.epoch + 1, topics_hash=self.roster.topics_hash(now.topics)),
        )

    def _forget(self, changes: Changes, member_id: str) -> None:
        for kind in (RecordKind.CURRENT, RecordKind.TARGET, RecordKind.MEMBER):
            self._put(changes, RecordKey(kind, member_id), None)
        self._sessions.clear(member_id)
        self._rebalances.clear(member_id)
        self._rebalance_epochs.pop(member_id, None)
        self._classic.forget(member_id)

    def _classic_without(self, member_ids: list[str], now: Now) -> GroupMembership | None:
        """Return the classic group that the group becomes without these members, or None."""
        return downgraded(self.roster, member_ids, self._settings, now.topics)

    def _end(self, changes: Changes, membership: GroupMembership) -> None:
        """Become a classic group: all records go."""
        self.ended = membership
        for key in self.roster.records():
            changes.pop(key, None)
            changes[key] = None

    # -- epochs and assignments -----------------------------------------------------------------

    def _put(self, changes: Changes, key: RecordKey, record: Record | None) -> None:
        """Apply a record, and make it part of the change."""
        self.roster.apply(key, record)
        changes.pop(key, None)
        changes[key] = record

    def _see_topics(self, changes: Changes, now: Now, *, bump: bool) -> None:
        """Raise the group epoch if `bump` is True, or if subscribed topics have changed."""
        found = self.roster.topics_hash(now.topics)
        group = self.roster.group
        if bump or found != group.topics_hash:
            self._put(changes, GROUP_KEY, group._replace(epoch=group.epoch + 1, topics_hash=found))
        self._seen_version = now.topics.version

    def _maybe_assign(self, changes: Changes, now: Now) -> Steps | None:
        """Make a new target for the group epoch, but not more often than the interval permits.

        Returns the steps of an assignment that takes long. The group goes on by its last target
        until `on_assigned` is called.
        """
        group = self.roster.group
        interval_ms = now.timing.assignment_interval_ms
        if group.assignment_epoch >= group.epoch or self._assigning is not None:
            return None
        at_ms = self._assigned_at_ms
        if at_ms is not None and interval_ms and now.ms < at_ms + interval_ms:
            return None
        self._assigned_at_ms = now.ms
        spec = spec_of(self.roster, now.topics)
        steps = ASSIGNORS[self.assignor](spec)
        if is_costly(spec):
            self._assigning = group.epoch
            return steps
        self._take_targets(changes, result_of(steps), group.epoch)
        return None

    def _take_targets(self, changes: Changes, found: Mapping[str, Partitions], epoch: int) -> None:
        for name, target in found.items():
            before = self.roster.targets.get(name)
            if name in self.members and target is not before and target != before:
                self._put(changes, RecordKey(RecordKind.TARGET, name), target)
        self._put(changes, GROUP_KEY, self.roster.group._replace(assignment_epoch=epoch))

    def _reconcile(
        self,
        changes: Changes,
        member_id: str,
        owned: Partitions | None,
        subscription_changed: bool,
        now: Now,
    ) -> ConsumerMember:
        """Move the member one step towards its target. Returns it after the step."""
        roster = self.roster
        member = roster.members[member_id]
        epoch = roster.group.assignment_epoch
        if not subscription_changed and member.is_reconciled_to(epoch):
            return member
        step = Reconciliation(
            target_epoch=epoch,
            target=roster.targets.get(member_id, {}),
            subscribed=roster.subscribed_ids(member, now.topics),
            subscription_changed=subscription_changed,
            owned=owned,
            owner=roster.owner,
        )
        after = reconciled(member, step)
        if after != member:
            self._put(changes, RecordKey(RecordKind.CURRENT, member_id), after)
            if after.state is MemberState.UNREVOKED_PARTITIONS:
                self._watch_rebalance(after, now.ms)
            else:
                self._rebalances.clear(member_id)
        return after

    def _watch_rebalance(self, member: ConsumerMember, now_ms: int) -> None:
        """Fence the member unless it leaves its epoch in time. A classic one has to join again."""
        if member.classic is not None:
            return
        self._rebalances.set(member.member_id, now_ms + member.rebalance_timeout_ms)
        self._rebalance_epochs[member.member_id] = member.epoch
