"""The requests of members of the consumer protocol (KIP-848), and of operators about their groups.

    heartbeat ─▶ ConsumerGroup (pure) ─▶ records, durable ─▶ answer

A heartbeat that changes nothing writes nothing, but waits for the changes before it: its answer may
show them. A group is one of this protocol from its first member on, and while it is empty. A
classic group with members becomes one, and a group of classic members alone a classic one, by one
change of all its records (`group_migration`).
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from kio.schema.errors import ErrorCode

from gateway.config import CONSUMER_MEMBERS_CEILING, DOWNGRADING, UPGRADING, GroupLimits
from gateway.core.classic_members import joined_as, subscription_of
from gateway.core.consumer_commits import mismatch_code
from gateway.core.consumer_group import ConsumerGroup
from gateway.core.consumer_members import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    Changes,
    ConsumerHeartbeat,
    ConsumerMember,
    ConsumerRefused,
    ConsumerSettings,
    ConsumerState,
    ConsumerTiming,
    HeartbeatAnswer,
    Now,
    Partitions,
    Steps,
)
from gateway.core.group_members import (
    GroupMembership,
    Joined,
    Joining,
    Leaving,
    State,
    Synced,
    Syncing,
)
from gateway.core.shown_text import shown
from gateway.errors import coordinator_code
from gateway.groups.stored_consumer_group import decode_notes
from gateway.groups.stored_membership import NOTE_BYTES_MAX, StoredMembership, encode_membership
from gateway.groups.topic_patterns import pattern_fault, resolve
from gateway.groups.views import CLASSIC_GROUP, CONSUMER_GROUP, Refused
from gateway.log import logger
from gateway.settings.group_timing import standard_timing
from gateway.wire.steps import result_with_pauses
from ledger.errors import LedgerError
from ledger.tasks import start_once
from subscriptions.committed_offset import CommittedOffset, TopicIdPartition

if TYPE_CHECKING:
    from gateway.groups.loaded_group import LoadedGroup
    from gateway.groups.loaded_groups import LoadedGroups
    from gateway.topics.catalog import Catalog
    from subscriptions.store import Subscription

Allows = Callable[[str], bool]
"""Returns whether the client of a request may describe a topic."""


class DescribedMember(NamedTuple):
    """A member, and the target that it moves to."""

    member: ConsumerMember
    target: Partitions


class DescribedGroup(NamedTuple):
    """A group as ConsumerGroupDescribe returns it."""

    state: ConsumerState
    epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[DescribedMember, ...]


class ConsumerGroups:
    """The groups of the consumer protocol among the loaded groups of this broker."""

    def __init__(self, loaded_groups: LoadedGroups, catalog: Catalog, limits: GroupLimits) -> None:
        self._loaded_groups = loaded_groups
        self._catalog = catalog
        self._settings = ConsumerSettings(
            members_max=min(limits.consumer_members_max, CONSUMER_MEMBERS_CEILING),
            bytes_max=limits.group_bytes_max,
            regexes_max=limits.consumer_regexes_max,
            assignors=limits.consumer_assignors,
            regex_fault=pattern_fault,
            upgrades=limits.migration_policy in UPGRADING,
            downgrades=limits.migration_policy in DOWNGRADING,
            classic_members_max=limits.members_max,
            classic_bytes_max=min(limits.group_bytes_max, NOTE_BYTES_MAX),
        )
        # Returns the times of a group. Replaced once the configs of groups are known.
        standard = standard_timing(limits)
        self.timing_of: Callable[[str], ConsumerTiming] = lambda _: standard
        # Returns whether the members of a client host may take this amount of memory in addition.
        self.admits: Callable[[str, Mapping[str, int]], bool] = lambda _, __: True

    def now(self, group_id: str) -> Now:
        """Return what a group sees of this broker now."""
        return Now(self._loaded_groups.now_ms(), self._catalog, self.timing_of(group_id))

    async def restore(self, group_id: str, found: Subscription) -> ConsumerGroup | None:
        """Return the group of stored records, or None if it is no group of this protocol.

        Raises CorruptFormat.
        """
        if not found.keyed:
            return None
        records = await decode_notes(found.keyed, f"group {group_id!r}")
        now = self.now(group_id)
        timeout_ms = now.timing.session_timeout_ms
        return ConsumerGroup.restore(group_id, self._settings, records, now.ms, timeout_ms)

    # -- members --------------------------------------------------------------------------------

    async def heartbeat(
        self, group_id: str, request: ConsumerHeartbeat, allows: Allows
    ) -> HeartbeatAnswer:
        """Take a heartbeat of a member. Raises ConsumerRefused, and Refused."""
        loaded = await self._loaded_groups.find(group_id, create=request.epoch == JOIN_EPOCH)
        group, converted = self._group(group_id, loaded, request)
        assert loaded is not None
        if not self.admits(group_id, _growth(group, request)):
            raise Refused(ErrorCode.coordinator_not_available)
        with self._unload_on_errors(loaded):
            outcome = group.heartbeat(request, self.now(group_id))
            note = None
            if loaded.consumer is None:
                if converted:
                    self._loaded_groups.begin_classic(loaded, GroupMembership())
                    _log_change(group_id, CONSUMER_GROUP)
                loaded.consumer, note = group, b""  # the membership of the classic group ends
            self.write(loaded, converted | outcome.changes, note)
        if outcome.resolve is not None:
            start_once(
                "the resolution of regular expressions",
                self._resolve(loaded, group, outcome.resolve, allows),
            )
        self._assign_soon(loaded, group, outcome.assign)
        await self.settle(loaded)
        return outcome.answer

    def _group(
        self, group_id: str, loaded: LoadedGroup | None, request: ConsumerHeartbeat
    ) -> tuple[ConsumerGroup, Changes]:
        """Return the group of a heartbeat, or a new one, and the records of a conversion.

        Raises ConsumerRefused and Refused.
        """
        joins = request.epoch == JOIN_EPOCH
        if loaded is None or loaded.group.state is State.DEAD:
            if joins:
                raise Refused(ErrorCode.coordinator_not_available)
            kind = "Group" if request.epoch <= LEAVE_EPOCH else "Consumer group"
            raise ConsumerRefused(ErrorCode.group_id_not_found, f"{kind} {group_id} not found.")
        if loaded.consumer is not None:
            return loaded.consumer, {}
        if not joins:
            text = f"Group {group_id} is not a consumer group."
            raise ConsumerRefused(ErrorCode.group_id_not_found, text)
        if loaded.encoding is not None:  # its membership would be written after our records
            raise Refused(ErrorCode.coordinator_load_in_progress)
        if loaded.group.state is State.EMPTY:
            return ConsumerGroup(group_id, self._settings), {}
        return ConsumerGroup.upgrade(group_id, loaded.group, self._settings, self.now(group_id))

    @contextmanager
    def _unload_on_errors(self, loaded: LoadedGroup) -> Generator[None]:
        """Unload the group after an error: its memory may have what was not written."""
        try:
            yield
        except ConsumerRefused:
            raise
        except BaseException:
            self._loaded_groups.unload(loaded, ErrorCode.coordinator_not_available)
            raise

    async def settle(self, loaded: LoadedGroup) -> None:
        """Wait until all accepted changes of the group's records are durable. Raises Refused."""
        if loaded.last_change is not None:
            try:
                await asyncio.shield(loaded.last_change)
            except LedgerError as error:
                raise Refused(coordinator_code(error)) from error
        if not self._loaded_groups.is_loaded(loaded) or not self._loaded_groups.serves():
            raise Refused(ErrorCode.not_coordinator)

    def write(
        self, loaded: LoadedGroup, changes: Changes, note: bytes | None = None
    ) -> Future[None] | None:
        """Write the records of a change. Returns None if there is none.

        If the group has become a classic one, its membership is part of the change.
        """
        group = loaded.consumer
        if group is not None and group.ended is not None:
            note = encode_membership(StoredMembership(group.ended))
            loaded.consumer, loaded.empty_since_ms = None, 0
            self._loaded_groups.begin_classic(loaded, group.ended)
            _log_change(loaded.group_id, CLASSIC_GROUP)
        if not changes and note is None:
            self._loaded_groups.note_deadline(loaded)
            return None
        return self._loaded_groups.write_records(loaded, changes, note)

    async def _resolve(
        self, loaded: LoadedGroup, group: ConsumerGroup, patterns: frozenset[str], allows: Allows
    ) -> None:
        """Find the topics of regular expressions, with the rights of the member that asked."""
        created, at_ms = self._catalog.created, self._loaded_groups.now_ms()
        found: dict[str, frozenset[str]] | None = None
        try:
            found = await resolve(patterns, [each.name for each in self._catalog.all()], allows)
        finally:
            if self._is_still(loaded, group):
                with self._unload_on_errors(loaded):
                    changes = group.on_resolved(found, created, at_ms, self.now(loaded.group_id))
                    self.write(loaded, changes)

    def _assign_soon(self, loaded: LoadedGroup, group: ConsumerGroup, steps: Steps | None) -> None:
        """Begin to make a target that takes long. None means that none is due."""
        if steps is not None:
            start_once("the assignment of a group", self._assign(loaded, group, steps))

    async def _assign(self, loaded: LoadedGroup, group: ConsumerGroup, steps: Steps) -> None:
        """Make the target of a group, and let other tasks run meanwhile."""
        found: Mapping[str, Partitions] | None = None
        try:
            found = await result_with_pauses(self._while_still(loaded, group, steps))
        finally:
            if self._is_still(loaded, group):
                with self._unload_on_errors(loaded):
                    self.write(loaded, group.on_assigned(found))

    def _while_still(
        self, loaded: LoadedGroup, group: ConsumerGroup, steps: Steps
    ) -> Generator[None, None, Mapping[str, Partitions] | None]:
        """Run the steps of a target while its group exists. Otherwise they end with None."""
        while self._is_still(loaded, group):
            try:
                next(steps)
            except StopIteration as end:
                return end.value
            yield
        return None

    def _is_still(self, loaded: LoadedGroup, group: ConsumerGroup) -> bool:
        """Return whether this is still the group of its name, and of the consumer protocol."""
        here = self._loaded_groups.is_loaded(loaded) and loaded.group.state is not State.DEAD
        return here and loaded.consumer is group

    def on_due(self, loaded: LoadedGroup) -> None:
        """Fence the members of a group whose time is over."""
        if loaded.consumer is not None:
            with self._unload_on_errors(loaded):
                self.write(loaded, loaded.consumer.tick(self.now(loaded.group_id)))

    def extend_sessions(self, loaded: LoadedGroup) -> None:
        """Begin the sessions of all members of a group anew."""
        if loaded.consumer is not None:
            now = self.now(loaded.group_id)
            loaded.consumer.extend_sessions(now.ms, now.timing.session_timeout_ms)

    # -- classic members ------------------------------------------------------------------------

    async def join(self, loaded: LoadedGroup, joining: Joining) -> Joined | None:
        """Take a JoinGroup. Returns None if the group is a classic one now, which has to take it.

        Raises Refused.
        """
        group = loaded.consumer
        assert group is not None
        try:
            if not self.admits(loaded.group_id, _join_growth(group, joining)):
                raise Refused(ErrorCode.coordinator_not_available)
            with self._unload_on_errors(loaded):
                outcome = group.join(joining, self.now(loaded.group_id))
                self.write(loaded, outcome.changes)
            self._assign_soon(loaded, group, outcome.assign)
        except ConsumerRefused as refused:
            return Joined(refused.code)  # without the id of the member, as in Kafka
        if outcome.joined is not None:
            await self.settle(loaded)
        return outcome.joined

    async def sync(self, loaded: LoadedGroup, syncing: Syncing) -> Synced:
        """Take a SyncGroup of a classic member. Raises Refused."""
        group = loaded.consumer
        assert group is not None
        try:
            synced = group.sync(syncing, self.now(loaded.group_id))
        except ConsumerRefused as refused:
            synced = Synced(refused.code)
        self._loaded_groups.note_deadline(loaded)
        await self.settle(loaded)
        member = group.members.get(syncing.member_id)
        stays = member is not None and member.epoch == syncing.generation
        if synced.error is ErrorCode.none and not (stays and loaded.consumer is group):
            return Synced(ErrorCode.rebalance_in_progress)  # it was fenced meanwhile
        return synced

    def classic_heartbeat(
        self, loaded: LoadedGroup, member_id: str, generation: int, instance_id: str | None
    ) -> ErrorCode:
        """Take a Heartbeat of a classic member. The code shows no change that is not durable."""
        group = loaded.consumer
        assert group is not None
        try:
            with self._unload_on_errors(loaded):
                beat = group.classic_heartbeat(
                    member_id, generation, instance_id, self.now(loaded.group_id)
                )
                self.write(loaded, beat.changes)
        except ConsumerRefused as refused:
            return refused.code
        self._assign_soon(loaded, group, beat.assign)
        return beat.code

    async def leave(self, loaded: LoadedGroup, leavings: Iterable[Leaving]) -> list[ErrorCode]:
        """Remove members whom a LeaveGroup names. Returns a code for each. Raises Refused."""
        group = loaded.consumer
        assert group is not None
        codes: list[ErrorCode] = []
        gone: dict[str, None] = {}
        for each in leavings:
            member_id = each.member_id
            if each.instance_id is not None:
                member_id = group.roster.instances.get(each.instance_id, "")
            code = ErrorCode.none
            if member_id not in group.members:
                code = ErrorCode.unknown_member_id
            elif each.member_id not in ("", member_id):
                code = ErrorCode.fenced_instance_id
            else:
                gone[member_id] = None
            codes.append(code)
        with self._unload_on_errors(loaded):
            self.write(loaded, group.remove(list(gone), self.now(loaded.group_id)))
        await self.settle(loaded)
        return codes

    def become_classic(self, loaded: LoadedGroup) -> None:
        """Make a group without members one of the classic protocol.

        A group that is being deleted stays as it is: a write would create it again.
        """
        group = loaded.consumer
        if group is None or loaded.group.state is State.DEAD:  # being deleted: it refuses the join
            return
        assert not group.members
        loaded.consumer = None
        self._loaded_groups.write_records(loaded, dict.fromkeys(group.roster.records()))
        self._loaded_groups.begin_classic(loaded, GroupMembership())

    # -- offsets --------------------------------------------------------------------------------

    def commit_code(
        self,
        group: ConsumerGroup,
        member_id: str,
        epoch: int,
        keys: Iterable[TopicIdPartition],
        *,
        new_version: bool,
        transactional: bool = False,
    ) -> ErrorCode:
        """Return whether a member may commit these offsets: NONE, or the code of the refusal."""
        try:
            may = group.check_commit(
                member_id, epoch, transactional=transactional, new_version=new_version
            )
        except ConsumerRefused as refused:
            code = refused.code
        else:
            code = ErrorCode.none
            if not all(may(key.topic_id, key.partition) for key in keys):
                code = mismatch_code(group.members[member_id])
        if transactional and code is ErrorCode.stale_member_epoch:
            return ErrorCode.illegal_generation
        return code

    def offsets(
        self, loaded: LoadedGroup, member_id: str | None, epoch: int
    ) -> Mapping[TopicIdPartition, CommittedOffset]:
        """Return the committed offsets for a member. Raises Refused."""
        if loaded.consumer is not None:
            try:
                loaded.consumer.check_fetch(member_id, epoch)
            except ConsumerRefused as refused:
                raise Refused(refused.code) from None
        return loaded.offsets

    # -- operators ------------------------------------------------------------------------------

    async def describe(self, group_id: str) -> DescribedGroup:
        """Return the group as it is stored. Raises ConsumerRefused and Refused."""
        loaded = await self._loaded_groups.find(group_id)
        if loaded is None or loaded.group.state is State.DEAD:
            text = f"Group {group_id} not found."
            raise ConsumerRefused(ErrorCode.group_id_not_found, text)
        group = loaded.consumer
        if group is None:
            text = f"Group {group_id} is not a consumer group."
            raise ConsumerRefused(ErrorCode.group_id_not_found, text)
        found = DescribedGroup(
            group.state,
            group.epoch,
            group.assignment_epoch,
            group.assignor,
            tuple(
                DescribedMember(member, group.roster.targets.get(name, {}))
                for name, member in group.members.items()
            ),
        )
        await self.settle(loaded)
        return found


def _growth(group: ConsumerGroup, request: ConsumerHeartbeat) -> dict[str, int]:
    """Return the change of the memory of the client's host."""
    before = group.members.get(request.member_id)
    if before is not None and not request.changes_texts_of(before):
        return {}
    fresh = ConsumerMember(member_id=request.member_id) if before is None else before
    after = request.applied_to(fresh)
    return {request.client_host: after.size_bytes - (0 if before is None else before.size_bytes)}


def _join_growth(group: ConsumerGroup, joining: Joining) -> dict[str, int]:
    """Return the change of the memory of the client's host by a JoinGroup."""
    before = group.members.get(joining.member_id)
    fresh = ConsumerMember(member_id=joining.fresh_id) if before is None else before
    if not joining.protocols or (not joining.member_id and joining.id_required):
        return {}  # it is refused, or answered with an id
    try:
        after = joined_as(fresh, joining, subscription_of(joining))
    except ConsumerRefused:
        return {}  # the group refuses it, too, but has other reasons that come first
    return {joining.client_host: after.size_bytes - (0 if before is None else before.size_bytes)}


def _log_change(group_id: str, kind: str) -> None:
    logger().info("a group with members has changed its protocol", group=shown(group_id), type=kind)
