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

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum
from typing import NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from gateway.core.consumer_assignors import ASSIGNORS, AssignmentSpec, MemberSpec
from gateway.core.consumer_members import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    Changes,
    ConsumerHeartbeat,
    ConsumerMember,
    ConsumerRefused,
    ConsumerSettings,
    ConsumerState,
    HeartbeatAnswer,
    MemberState,
    Now,
    Outcome,
    Partitions,
    Record,
    RecordKey,
    RecordKind,
    ResolvedRegex,
)
from gateway.core.consumer_reconciliation import Reconciliation, reconciled
from gateway.core.consumer_roster import GROUP_KEY, ConsumerRoster
from gateway.core.deadlines import Deadlines
from gateway.core.java_map import in_map_order

REFRESH_MS_MIN = 10_000
"""The least time between two resolutions of a group's regular expressions."""
_RECORD_ORDER = (
    RecordKind.GROUP,
    RecordKind.MEMBER,
    RecordKind.TARGET,
    RecordKind.CURRENT,
    RecordKind.REGEX,
)


class _Regex(Enum):
    """What a heartbeat has done to the regular expression of its member."""

    SAME = 0
    CHANGED = 1
    CHANGED_AND_RESOLVED = 2


class _RegexChange(NamedTuple):
    """The effect of a heartbeat on regular expressions."""

    status: _Regex
    unused: str = ""  # the expression that no member has any more, or ""
    resolve: frozenset[str] | None = None


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
        for member in group.roster.members.values():
            group._sessions.set(member.member_id, now_ms + session_timeout_ms)
            if member.state is MemberState.UNREVOKED_PARTITIONS:
                group._watch_rebalance(member, now_ms)
        return group

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
        """The assignor that most members prefer. As in Kafka, the order of a map breaks ties."""
        counts: dict[str, int] = {}
        for member in self.members.values():
            if member.assignor is not None:
                counts[member.assignor] = counts.get(member.assignor, 0) + 1
        order = in_map_order(list(counts))
        return max(order, key=counts.__getitem__, default=self._settings.default_assignor)

    @property
    def deadline_ms(self) -> int | None:
        """The time of the next `tick`, or None if the group waits for nothing."""
        times = (self._sessions.next(), self._rebalances.next())
        return min((each for each in times if each is not None), default=None)

    # -- requests -------------------------------------------------------------------------------

    def heartbeat(self, request: ConsumerHeartbeat, now: Now) -> Outcome:
        """Take a heartbeat, a join or a leave. Raises ConsumerRefused."""
        if request.epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return self._leave(request, now)
        roster = self.roster
        if len(self.members) >= self._settings.members_max:
            self._refuse_if_full(request.member_id)
        found, replaced = self._find(request)
        updated = request.applied_to(found)
        regex = self._regex_change(found, updated, now)
        if regex.resolve is not None:
            self._resolving = True
        changes: Changes = {}
        if replaced is not None:
            self._replace(changes, replaced, found)
        if found.member_id not in self.members or not found.subscribes_as(updated):
            self._put(changes, RecordKey(RecordKind.MEMBER, found.member_id), updated)
        if regex.unused and regex.unused in roster.resolved:
            self._put(changes, RecordKey(RecordKind.REGEX, regex.unused), None)
        renamed = found.topics != updated.topics
        bump = renamed or regex.status is _Regex.CHANGED_AND_RESOLVED
        if bump or self._seen_version != now.topics.version:
            self._see_topics(changes, now, bump=bump)
        self._maybe_assign(changes, now)
        changed = renamed or regex.status is not _Regex.SAME
        updated = self._reconcile(changes, found.member_id, request.owned, changed, now)
        self._sessions.set(found.member_id, now.ms + now.timing.session_timeout_ms)
        shows = request.epoch == JOIN_EPOCH or request.is_full
        answer = HeartbeatAnswer(
            updated.member_id,
            updated.epoch,
            now.timing.heartbeat_interval_ms,
            updated.assigned if shows or updated.assigned != found.assigned else None,
        )
        return Outcome(answer, changes, regex.resolve)

    def on_resolved(
        self, found: Mapping[str, frozenset[str]] | None, created: int, at_ms: int, now: Now
    ) -> Changes:
        """Take the topics of regular expressions, or None if they could not be resolved.

        `created` and `at_ms` are those of the begin of the resolution.
        """
        self._resolving = False
        changes: Changes = {}
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

    def tick(self, now: Now) -> Changes:
        """Fence the members whose session or rebalance timeout has passed."""
        changes: Changes = {}
        for member_id in self._sessions.due(now.ms):
            if member_id in self.members:
                self._fence(changes, [member_id], now)
        for member_id in self._rebalances.due(now.ms):
            member = self.members.get(member_id)
            if member is not None and member.epoch == self._rebalance_epochs.get(member_id):
                self._fence(changes, [member_id], now)
        return changes

    def extend_sessions(self, now_ms: int, session_timeout_ms: int) -> None:
        """Begin all sessions and rebalance timeouts anew: heartbeats could not arrive."""
        for member in self.members.values():
            self._sessions.set(member.member_id, now_ms + session_timeout_ms)
            if member.state is MemberState.UNREVOKED_PARTITIONS:
                self._watch_rebalance(member, now_ms)

    def remove(self, member_ids: list[str], now: Now) -> Changes:
        """Remove members whom an operator names. All of them must exist."""
        changes: Changes = {}
        if member_ids:
            self._fence(changes, member_ids, now)
        return changes

    # -- offsets --------------------------------------------------------------------------------

    def check_commit(
        self, member_id: str, epoch: int, *, transactional: bool, new_version: bool
    ) -> Callable[[UUID, int], bool]:
        """Return whether a member may commit offsets of a partition. Raises ConsumerRefused.

        `new_version` is True from OffsetCommit v9. An epoch before the member's own may commit
        partitions that the member has had since then.
        """
        if epoch < 0 and not self.members:
            return _any_partition
        if transactional and epoch == -1 and not member_id:
            return _any_partition
        member = self._member(member_id)
        if not transactional and not new_version:
            raise ConsumerRefused(
                ErrorCode.unsupported_version,
                "OffsetCommit version 9 or above must be used by members using the consumer group "
                "protocol",
            )
        if epoch == member.epoch:
            return _any_partition
        if epoch > member.epoch:
            raise ConsumerRefused(
                ErrorCode.stale_member_epoch,
                f"Received member epoch {epoch} is newer than current member epoch {member.epoch}.",
            )

        def had_since(topic: UUID, partition: int) -> bool:
            since = member.assigned.get(topic, {}).get(partition)
            if since is None:
                since = member.revoking.get(topic, {}).get(partition)
            return since is not None and epoch >= since

        return had_since

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Raise ConsumerRefused unless this member may read the committed offsets."""
        if member_id is None and epoch < 0:
            return
        member = self._member(member_id or "")
        if epoch != member.epoch:
            raise ConsumerRefused(
                ErrorCode.stale_member_epoch,
                f"The received member epoch {epoch} does not match the expected member epoch "
                f"{member.epoch}.",
            )

    # -- members --------------------------------------------------------------------------------

    def _member(self, member_id: str) -> ConsumerMember:
        member = self.members.get(member_id)
        if member is None:
            raise ConsumerRefused(
                ErrorCode.unknown_member_id,
                f"Member {member_id} is not a member of group {self.group_id}.",
            )
        return member

    def _refuse_if_full(self, member_id: str) -> None:
        if member_id not in self.members:
            raise ConsumerRefused(
                ErrorCode.group_max_size_reached,
                "The consumer group has reached its maximum capacity of "
                f"{self._settings.members_max} members.",
            )

    def _find(self, request: ConsumerHeartbeat) -> tuple[ConsumerMember, str | None]:
        """Return the member of a heartbeat, and the id of the static member that it replaces."""
        joins = request.epoch == JOIN_EPOCH
        if request.instance_id is not None:
            return self._find_static(request, joins=joins)
        if joins and request.member_id not in self.members:
            return ConsumerMember(member_id=request.member_id), None
        member = self._member(request.member_id)
        _check_epoch(member, request)
        return member, None

    def _find_static(
        self, request: ConsumerHeartbeat, *, joins: bool
    ) -> tuple[ConsumerMember, str | None]:
        assert request.instance_id is not None
        if not joins:
            member = self._static(request)
            _check_epoch(member, request)
            return member, None
        known = self.roster.instances.get(request.instance_id)
        if known is None:
            found = self.members.get(request.member_id)
            return found or ConsumerMember(member_id=request.member_id), None
        before = self.members[known]
        if before.epoch != STATIC_LEAVE_EPOCH:
            raise ConsumerRefused(
                ErrorCode.unreleased_instance_id,
                f"Static member {request.member_id} with instance id {request.instance_id} cannot "
                f"join the group because the instance id is owned by {known} member.",
            )
        return replace(before, member_id=request.member_id, epoch=0, previous_epoch=0), known

    def _static(self, request: ConsumerHeartbeat) -> ConsumerMember:
        """Return the static member of a request that is no join."""
        known = self.roster.instances.get(request.instance_id or "")
        if known is None:
            raise ConsumerRefused(
                ErrorCode.unknown_member_id, f"Instance id {request.instance_id} is unknown."
            )
        if known != request.member_id:
            raise ConsumerRefused(
                ErrorCode.fenced_instance_id,
                f"Static member {request.member_id} with instance id {request.instance_id} was "
                f"fenced by member {known}.",
            )
        return self.members[known]

    def _replace(self, changes: Changes, before: str, after: ConsumerMember) -> None:
        """Give the place of a static member to its new member id."""
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
            member = self._static(request)
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
        """Remove members. Their partitions are free, and the group epoch rises by one."""
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

    def _maybe_assign(self, changes: Changes, now: Now) -> None:
        """Make a new target for the group epoch, but not more often than the interval permits."""
        group = self.roster.group
        interval_ms = now.timing.assignment_interval_ms
        if group.assignment_epoch >= group.epoch:
            return
        at_ms = self._assigned_at_ms
        if at_ms is not None and interval_ms and now.ms < at_ms + interval_ms:
            return
        for name, target in ASSIGNORS[self.assignor](self._spec(now)).items():
            if target != self.roster.targets.get(name):
                self._put(changes, RecordKey(RecordKind.TARGET, name), target)
        self._put(changes, GROUP_KEY, group._replace(assignment_epoch=group.epoch))
        self._assigned_at_ms = now.ms

    def _spec(self, now: Now) -> AssignmentSpec:
        roster = self.roster
        counts: dict[UUID, int] = {}
        ids: dict[frozenset[str], frozenset[UUID]] = {}
        members: dict[str, MemberSpec] = {}
        for name, member in roster.members.items():
            names = roster.subscribed(member)
            if names not in ids:
                known = [now.topics.by_name(each) for each in in_map_order(names)]
                found = {each.topic_id: each.partitions for each in known if each is not None}
                counts.update(found)
                ids[names] = frozenset(found)
            target = roster.targets.get(name, {})
            members[name] = MemberSpec(ids[names], target, member.instance_id)
        return AssignmentSpec(members, counts, roster.is_homogeneous)

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
        self._rebalances.set(member.member_id, now_ms + member.rebalance_timeout_ms)
        self._rebalance_epochs[member.member_id] = member.epoch

    # -- regular expressions --------------------------------------------------------------------

    def _regex_change(
        self, before: ConsumerMember, after: ConsumerMember, now: Now
    ) -> _RegexChange:
        """Return the effect of a member's new expression. Raises ConsumerRefused; changes nothing.

        All expressions of a group are resolved together, so that they cause one rebalance.
        """
        counts = self.roster.regexes
        old, new = before.regex, after.regex
        status, unused, due = _Regex.SAME, "", False
        if old != new:
            status = _Regex.CHANGED
            unused = old if counts[old] == 1 else ""
            if not new or new in self.roster.resolved:
                status = _Regex.CHANGED_AND_RESOLVED
            if new and not counts[new]:
                self._check_regex(new)
                status, due = _Regex.CHANGED, True
        if not due and not counts:
            return _RegexChange(status, unused)
        patterns = frozenset(counts + _counted(new) - _counted(old))
        if self._resolving or not patterns or not self._must_resolve(patterns, due, now):
            return _RegexChange(status, unused)
        return _RegexChange(status, unused, patterns)

    def _must_resolve(self, patterns: frozenset[str], due: bool, now: Now) -> bool:
        """Return whether the expressions are to be resolved now."""
        last = next(iter(self.roster.resolved.values()), None)
        if last is None:
            return True
        if last.at_ms >= 0 and now.ms <= last.at_ms + REFRESH_MS_MIN:
            return False
        return (
            due
            or len(patterns) != len(self.roster.resolved)
            or last.created < now.topics.created
            or now.ms > last.at_ms + now.timing.regex_refresh_ms
        )

    def _check_regex(self, regex: str) -> None:
        fault = self._settings.regex_fault(regex)
        if fault is not None:
            raise ConsumerRefused(
                ErrorCode.invalid_regular_expression,
                f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {fault}.",
            )


def _counted(regex: str) -> Counter[str]:
    return Counter([regex] if regex else [])


def _any_partition(topic: UUID, partition: int) -> bool:
    return True


def _check_epoch(member: ConsumerMember, request: ConsumerHeartbeat) -> None:
    """Raise ConsumerRefused unless the epoch is the member's, or the one whose answer was lost."""
    received, known = request.epoch, member.epoch
    if received in (JOIN_EPOCH, known):
        return
    if known > received == member.previous_epoch and _owns_only_assigned(member, request):
        return
    than = "greater" if received > known else "smaller"
    raise ConsumerRefused(
        ErrorCode.fenced_member_epoch,
        f"The consumer group member has a {than} member epoch ({received}) than the one known by "
        f"the group coordinator ({known}). The member must abandon all its partitions and rejoin.",
    )


def _owns_only_assigned(member: ConsumerMember, request: ConsumerHeartbeat) -> bool:
    """Return whether the member reports its partitions, and all of them are assigned to it."""
    if request.owned is None:
        return False
    return all(
        partition in member.assigned.get(topic, {})
        for topic, partitions in request.owned.items()
        for partition in partitions
    )
