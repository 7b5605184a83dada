"""What a cluster of group coordinators must never do, held against all that its stores accepted.

Each gateway's store is a `RecordingStore`. So the oracle has the state of the group after every
write that a coordinator's log accepted, and knows which of them are durable. It reports

    lost       a coordinator took the group over and found a state that was never written, or one
               that is older than what was durable
    zombie     a write became durable after another coordinator had taken the group over
    unsafe     a member was shown an epoch, an assignment or a commit that was not durable
    two        two members read one partition, both within their epochs
    foreign    a member committed an offset of a partition that another member read
    fell       an epoch of the group or of a member fell
    register   the committed offsets are no register: see `tests.histories.register`
    never      the group did not come to its target after all was well
    refused    an answer that no client understands
    handler    an exception
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from functools import cached_property
from typing import NamedTuple

from gateway.core.consumer_members import STATIC_LEAVE_EPOCH, MemberState
from gateway.core.consumer_protocol import decode_assignment
from gateway.groups.stored_consumer_group import decode_note
from gateway.groups.stored_membership import decode_membership
from ledger.sealed import unseal
from tests.histories.register import Access, stale_accesses

GROUP, TOPIC = "g", "t"
NEVER_S = float("inf")
_STATES = {
    MemberState.STABLE: "stable",
    MemberState.UNREVOKED_PARTITIONS: "revoking",
    MemberState.UNRELEASED_PARTITIONS: "unreleased",
}
MEMBER_STATES = ("joining", "stable", "revoking", "unreleased", "leaving", "left for a while")


class Stored(NamedTuple):
    """One member as a record has it. A member of a classic group has no state."""

    epoch: int
    assigned: frozenset[int]
    state: str
    classic: bool


class GroupState:
    """All that one group has stored, after a write."""

    def __init__(self, keyed, note, offsets):
        self.keyed, self.note, self.offsets = keyed, note, offsets

    @classmethod
    def of(cls, found):
        """Return what a store loaded. A copy, because that is a view."""
        offsets = {key.partition: each.offset for key, each in found.offsets.items()}
        return cls(dict(found.keyed), bytes(found.note), offsets)

    def after(self, keyed, note, offsets):
        """Return the state after one more write."""
        keyed, offsets = self.keyed | keyed, self.offsets | offsets
        return GroupState(
            {key: each for key, each in keyed.items() if each is not None},
            self.note if note is None else bytes(note),
            {key: each for key, each in offsets.items() if each is not None},
        )

    def __eq__(self, other):
        mine = self.keyed, self.note, self.offsets
        return mine == (other.keyed, other.note, other.offsets)

    __hash__ = None

    @cached_property
    def membership(self):
        return decode_membership(self.note, "the oracle").membership

    @property
    def is_classic(self):
        return "group" not in self.keyed

    @cached_property
    def epoch(self):
        """The group epoch, or the generation of a classic group."""
        if self.is_classic:
            return self.membership.generation
        return unseal(self.keyed["group"], "group")["epoch"]

    @cached_property
    def members(self):
        """Return the stored members by id."""
        if self.is_classic:
            return {
                each.member_id: Stored(self.epoch, _named(each.assignment), "classic group", True)
                for each in self.membership.members
            }
        found = {}
        for key, note in self.keyed.items():
            kind, _, name = key.partition("/")
            if kind == "member":
                found[name] = self._consumer(name, unseal(note, key))
        return found

    def _consumer(self, name, subscription):
        note = self.keyed.get(f"current/{name}")
        classic = subscription.get("classic") is not None
        if note is None:
            return Stored(0, frozenset(), "joining", classic)
        _, current = decode_note(f"current/{name}", note, "the oracle")
        assigned = frozenset(each for some in current.assigned.values() for each in some)
        state = _STATES[current.state]
        if f"target/{name}" not in self.keyed:
            state = "joining"
        if current.epoch == STATIC_LEAVE_EPOCH:
            state = "left for a while"
        return Stored(current.epoch, assigned, state, classic)


def _named(assignment):
    return frozenset(decode_assignment(assignment).partitions.get(TOPIC, ()))


class Holder:
    """One claim of the group by one gateway: the states after its writes, in their order."""

    def __init__(self, host, state):
        self.host = host
        self.states = [state]
        self.durable = 0  # the number of the last state that is known to be durable
        self.taken = None  # the number of the state that the next holder found
        self.foreign = {}  # by the number of a write: what was wrong with its offset


class RecordingStore:
    """The store of one gateway, which notes the loads and the writes of the group."""

    def __init__(self, store, host, oracle):
        self._store, self._host, self._oracle = store, host, oracle
        self._holder = None

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def load(self, subscriber):
        found = await self._store.load(subscriber)
        if subscriber == GROUP:
            claim = self._store._owned[subscriber].claim
            node = self._host.session.tree.nodes.get(claim.path)
            last = claim.version == (None if node is None else node.version)
            self._holder = self._oracle.on_load(self._host, GroupState.of(found), last=last)
        return found

    def advance(self, subscriber, offsets, note=None):
        durable = self._store.advance(subscriber, offsets, note)
        some = {key.partition: each and each.offset for key, each in offsets.items()}
        return self._noted(subscriber, durable, {}, note, some)

    def advance_keyed(self, subscriber, keyed, note=None):
        durable = self._store.advance_keyed(subscriber, keyed, note)
        return self._noted(subscriber, durable, keyed, note, {})

    def _noted(self, subscriber, durable, keyed, note, offsets):
        if subscriber == GROUP:
            holder = self._holder
            number = self._oracle.on_accepted(holder, keyed, note, offsets)

            def on_done(future):
                if not future.cancelled() and future.exception() is None:
                    self._oracle.on_durable(holder, number)

            durable.add_done_callback(on_done)
        return durable


class Operation:
    """One commit or fetch of a partition's offset, as its client sees it."""

    def __init__(self, value, writes):
        self.value, self.writes = value, writes
        self.start_s, self.end_s = now(), NEVER_S
        self.failed = False

    def access(self):
        return Access(
            self.writes,
            self.value,
            self.start_s,
            self.end_s,
            sure=self.end_s < NEVER_S,
            failed=self.failed,
        )


class GroupsOracle:
    """Everything that is known of the group, and what was wrong."""

    def __init__(self, world):
        self.world = world
        self.violations = []
        self.seen = Counter()  # faults, answers and the states of members at takeovers
        self.holder = None  # the last gateway that took the group over
        self.shown = defaultdict(set)  # by member id: durable epochs with the partitions of each
        self.values = set()  # durable offsets, with their partition
        self.operations = defaultdict(list)  # by partition
        self.writers = {}  # the member that commits an offset, by partition and offset
        self._next_offsets = Counter()

    def report(self, kind, why):
        self.violations.append(f"{kind}: at {now():.3f} s: {why}")

    @property
    def durable(self):
        """The last state that is known to be durable."""
        return GroupState({}, b"", {}) if self.holder is None else self._last(self.holder)

    @staticmethod
    def _last(holder):
        return holder.states[holder.durable]

    # -- what stores say ------------------------------------------------------------------------

    def on_load(self, host, found, *, last):
        """Return the holder for a claim. `last` is False if another gateway's came after it."""
        after = Holder(host, found)
        if not last:
            after.taken = 0
            return after
        before, self.holder = self.holder, after
        if before is not None:
            self._check_taken(before, found)
            if before.host is not host:
                self._count_takeover(before, found)
        self._note(found)
        return after

    def _check_taken(self, before, found):
        for number in range(len(before.states) - 1, before.durable - 1, -1):
            if before.states[number] == found:
                for each in before.states[before.durable + 1 : number + 1]:
                    self._note(each)
                before.taken = number
                return
        before.taken = before.durable
        what = "older than what was durable"
        if found not in before.states:
            what = "never written"
        self.report("lost", f"{self.holder.host.name} found a state that was {what}")

    def _count_takeover(self, before, found):
        seen = self.seen
        seen["takeovers"] += 1
        for member in found.members.values():
            seen[f"takeover: {member.state}"] += 1
            if member.classic and not found.is_classic:
                seen["takeover: classic member"] += 1
        for each in self.world.members:
            if each.doing in ("joining", "leaving"):
                seen[f"takeover: {each.doing}"] += 1
        if before.host.serving:
            seen["takeover of a gateway that lives"] += 1
        if len(before.states) - 1 > before.durable:
            seen["takeover with writes in flight"] += 1

    def on_accepted(self, holder, keyed, note, offsets):
        """Return the number of a write. Its state is the one after all before it."""
        before = holder.states[-1]
        state = before.after(keyed, note, offsets)
        holder.states.append(state)
        number = len(holder.states) - 1
        if before.members:
            self._check_epochs(before, state)
            if before.is_classic != state.is_classic and state.members:
                self.seen["upgrade" if before.is_classic else "downgrade"] += 1
        if holder is self.holder:
            for partition, offset in offsets.items():
                self._check_writer(holder, number, partition, offset)
        return number

    def _check_epochs(self, before, state):
        if state.members and state.epoch < before.epoch:
            self.report("fell", f"the group's epoch from {before.epoch} to {state.epoch}")
        for name, member in state.members.items():
            old = before.members.get(name)
            if old is not None and 0 < member.epoch < old.epoch:
                self.report("fell", f"the epoch of {name} from {old.epoch} to {member.epoch}")

    def _check_writer(self, holder, number, partition, offset):
        writer = self.writers.get((partition, offset))
        for other in self._within(holder.states[number]):
            if writer is not None and other is not writer and partition in other.owned:
                why = f"{writer.name} committed {partition}, which {other.name} reads"
                holder.foreign[number] = why

    def on_durable(self, holder, number):
        """A gateway learned that its write is durable."""
        if holder is not self.holder:
            if holder.taken is None or number > holder.taken:
                self.report("zombie", f"write {number} of {holder.host.name} became durable")
            return
        for each in range(holder.durable + 1, number + 1):
            if each in holder.foreign:
                self.report("foreign", holder.foreign[each])
            self._note(holder.states[each])
        holder.durable = max(holder.durable, number)
        self.check_owners()

    def _note(self, state):
        """A state is durable, and members may be shown what it has."""
        for name, member in state.members.items():
            self.shown[name].add((member.epoch, member.assigned))
        self.values.update(state.offsets.items())

    # -- what members see -----------------------------------------------------------------------

    def _within(self, state):
        """Yield the members that read, and are members within their epochs."""
        for each in self.world.members:
            stored = state.members.get(each.member_id)
            if each.owned and stored is not None and each.epoch <= stored.epoch:
                yield each

    def check_owners(self):
        """No partition is read by two members within their epochs."""
        readers = {}
        for each in self._within(self.durable):
            for partition in each.owned:
                other = readers.setdefault(partition, each)
                if other is not each:
                    self.report("two", f"{other.name} and {each.name} read {partition}")

    def on_shown(self, member, epoch, assigned=None):
        """An answer shows a member its epoch, and perhaps its partitions."""
        known = self.shown[member.member_id]
        if assigned is None:
            safe = any(epoch == each for each, _ in known)
        else:
            safe = (epoch, frozenset(assigned)) in known
        if not safe:
            self.report("unsafe", f"{member.name} was shown {epoch}, {assigned}")

    def begin_commit(self, member, partition):
        """Return the operation of a commit. Its offset is a new one."""
        self._next_offsets[partition] += 1
        operation = Operation(self._next_offsets[partition], writes=True)
        self.writers[partition, operation.value] = member
        self.operations[partition].append(operation)
        return operation

    def end_commit(self, member, partition, operation, *, stored):
        """A commit was answered. `stored` is False if it was refused for good."""
        operation.end_s, operation.failed = now(), not stored
        self.seen["commits" if stored else "commits refused"] += 1
        if stored and (partition, operation.value) not in self.values:
            self.report("unsafe", f"a commit of {member.name} was acknowledged")

    def on_fetched(self, start_s, partition, offset):
        """A client read the committed offset of a partition."""
        operation = Operation(offset, writes=False)
        operation.start_s, operation.end_s = start_s, now()
        self.operations[partition].append(operation)
        self.seen["fetches"] += 1

    def check_register(self):
        for partition, operations in self.operations.items():
            for kind, why in stale_accesses([each.access() for each in operations]):
                self.report("register", f"{kind} of partition {partition}: {why}")


def now():
    return asyncio.get_running_loop().time()
