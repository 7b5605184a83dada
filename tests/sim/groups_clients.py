"""Members of one group in a simulated cluster, of both protocols, readers and an operator.

They do what Kafka's clients do: they look up the coordinator, repeat what was not answered, and
give up what they read when they are asked to, or learn that they were fenced. A member of the
consumer protocol reports what it reads and what it is about to read: a heartbeat may be under way
when it begins.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from kio.schema.errors import ErrorCode

from gateway.core.consumer_protocol import decode_assignment
from tests.gateway.migration_members import LOST, assigned_by_leader
from tests.gateway.subscription_bytes import subscription
from tests.sim.groups_oracle import GROUP, TOPIC, now
from tests.sim.transacting_clients import Client

COMMIT, FETCH, DESCRIBE_CLASSIC, DESCRIBE = 8, 9, 15, 69
JOIN, HEARTBEAT, LEAVE, SYNC, BEAT = 11, 12, 13, 14, 68
SESSION_S, REBALANCE_S, BEAT_S = 3.0, 4.0, 0.3
REVOKING_S_MAX = 1.0
READ_S = 0.15  # mean, between two reads
_E = ErrorCode
_MOVED = frozenset((_E.not_coordinator, _E.coordinator_not_available))
_AGAIN = _MOVED | {_E.coordinator_load_in_progress}
# Commits that were refused for these reasons have changed nothing.
_REFUSED = frozenset(
    (
        *(_E.stale_member_epoch, _E.unknown_member_id, _E.illegal_generation),
        *(_E.fenced_instance_id, _E.rebalance_in_progress, _E.group_id_not_found),
    )
)


class GroupClient(Client):
    """What all clients of the group do to ask its coordinator."""

    def __init__(self, world, name):
        super().__init__(world)
        self.name = name
        self.host = None  # the coordinator as this client knows it
        self.silent_until_s = 0.0  # until then nothing that it sends arrives

    def _asking(self, *words, **fields):
        """Return the task of a request. It goes on if this client dies meanwhile."""
        asked = asyncio.ensure_future(super().ask(*words, **fields))
        self.world.tasks.add(asked)
        asked.add_done_callback(self.world.tasks.discard)
        return asked

    async def ask(self, *words, **fields):
        return await asyncio.shield(self._asking(*words, **fields))

    async def call(self, key, version, *, late=False, waits_s=None, **fields):
        """Ask the coordinator. Returns the answer, or None if none came."""
        if now() < self.silent_until_s:
            self.host = None
            await asyncio.sleep(BEAT_S)
            return None
        if self.host is None or not self.host.alive:
            self.host = await self.coordinator(0, GROUP)
        host = self.host
        if host is None:
            await self.pause()
            return None
        asked = self._asking(host, key, version, late=late, patience_s=waits_s, **fields)
        ended = asyncio.ensure_future(host.ended.wait())
        try:
            await asyncio.wait({asked, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
        reply = asked.result() if asked.done() else None
        if reply is None or now() < self.silent_until_s:
            self.host = None
            return None
        return reply

    def again(self, code):
        """Return whether a request is to be sent again, perhaps to another coordinator."""
        if code in _MOVED:
            self.host = None
        return code in _AGAIN

    async def fetch(self, partitions, member_id=None, epoch=-1):
        """Read committed offsets. Returns them by partition, or None if that failed."""
        start_s = now()
        topics = [{"name": TOPIC, "partition_indexes": sorted(partitions)}]
        asked = {"group_id": GROUP, "member_id": member_id, "member_epoch": epoch}
        groups = [asked | {"topics": topics}]
        reply = await self.call(FETCH, 9, groups=groups, require_stable=False)
        if reply is None:
            return None
        row = reply.groups[0]
        if row.error_code is not _E.none:
            self.again(row.error_code)
            return None
        rows = {each.partition_index: each for each in row.topics[0].partitions}
        for partition, each in rows.items():
            self.world.oracle.on_fetched(start_s, partition, each.committed_offset)
        return {partition: each.committed_offset for partition, each in rows.items()}

    async def commit_at(self, partitions, member_id="", epoch=-1, instance_id=None):
        """Commit a new offset of each partition. Returns the code, or None if none came."""
        oracle = self.world.oracle
        operations = {each: oracle.begin_commit(self, each) for each in sorted(partitions)}
        rows = [
            {
                "partition_index": each,
                "committed_offset": operation.value,
                "committed_leader_epoch": -1,
                "committed_metadata": "",
            }
            for each, operation in operations.items()
        ]
        reply = await self.call(
            COMMIT,
            9,
            late=True,
            group_id=GROUP,
            generation_id_or_member_epoch=epoch,
            member_id=member_id,
            group_instance_id=instance_id,
            topics=[{"name": TOPIC, "partitions": rows}],
        )
        if reply is None:
            return None
        code = reply.topics[0].partitions[0].error_code
        self.again(code)
        if code is _E.none or code in _REFUSED:
            for partition, operation in operations.items():
                oracle.end_commit(self, partition, operation, stored=code is _E.none)
        return code


class Reader(GroupClient):
    """Reads committed offsets, and keeps to a coordinator as long as that answers."""

    async def run(self):
        while True:
            await asyncio.sleep(self.draw.expovariate(1 / READ_S))
            await self.fetch(range(self.world.partitions))


class Operator(GroupClient):
    """Commits before there is a member, and describes the group."""

    async def begin(self, partitions):
        while await self.commit_at(range(partitions)) is not _E.none:
            await self.pause()

    async def unrest(self):
        """Return why the group has not come to its target, or "". Asks its coordinator."""
        asked = {"include_authorized_operations": False}
        reply = await self.call(DESCRIBE, 1, group_ids=[GROUP], **asked)
        if reply is None:
            return "no answer"
        found = reply.groups[0]
        classic = all(isinstance(each, ClassicMember) for each in self.world.members)
        if found.error_code is _E.none:
            return "it is no classic group" if classic else _unrest_of(found)
        if found.error_code is not _E.group_id_not_found or not classic:
            self.again(found.error_code)
            return f"{found.error_code!r}"
        reply = await self.call(DESCRIBE_CLASSIC, 5, groups=[GROUP], **asked)
        return "" if reply and reply.groups[0].group_state == "Stable" else "it is not stable"


def _unrest_of(found):
    epoch, rows = found.group_epoch, found.members
    if found.group_state != "Stable" or found.assignment_epoch != epoch:
        return f"it is {found.group_state} at {found.assignment_epoch} of {epoch}"
    if any(each.member_epoch != epoch for each in rows):
        return f"members have other epochs than {epoch}"
    if any(_places(each.assignment) != _places(each.target_assignment) for each in rows):
        return "a member has another assignment than its target"
    return ""


def _places(assignment):
    rows = assignment.topic_partitions
    return {(row.topic_id, each) for row in rows for each in row.partitions}


class Member(GroupClient):
    """What members of both protocols do."""

    def __init__(self, world, name, instance_id):
        super().__init__(world, name)
        self.instance_id = instance_id
        self.member_id = ""
        self.epoch = -1
        self.owned = set()  # the partitions that it reads
        self.doing = "joining"
        self.ending = False  # its process is about to end
        self.task = None

    def begin(self):
        self.task = asyncio.ensure_future(self.run())
        return self

    async def end(self):
        """End as a process that was killed."""
        self.ending = True
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.owned.clear()
        self.doing = "gone"

    async def leave(self):
        """End as a process that was stopped."""
        self.ending = True
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.commit()
        self.owned.clear()
        self.doing = "leaving"
        for _ in range(5):
            if await self.left():
                break
        self.doing = "gone"

    async def wait(self):
        """Wait until the next heartbeat. Now and then a commit comes before."""
        await asyncio.sleep(self.draw.uniform(0.5, 1.0) * BEAT_S)
        if self.draw.random() < 0.4:
            await self.commit()

    async def commit(self):
        if self.owned:
            where = self.member_id, self.epoch, self.instance_id
            await self.commit_at(self.owned, *where)

    def read(self, partitions):
        self.owned |= set(partitions)
        self.world.oracle.check_owners()


class ConsumerMember(Member):
    """A consumer of the consumer protocol."""

    def __init__(self, world, name, instance_id):
        super().__init__(world, name, instance_id)
        self.member_id = name
        self.epoch = 0
        self.target = set()  # as the last assignment has it
        self.revoke_at_s = 0.0
        self.reports = True  # the next heartbeat has all that this member knows

    async def run(self):
        while True:
            await self.beat()
            await self.reconcile()
            await self.wait()

    async def beat(self):
        reply = await self.call(BEAT, 1, **self._request(self.epoch))
        if reply is None or self.again(reply.error_code):
            self.reports = True
            return
        name = reply.error_code.name
        if name in LOST or name == "group_id_not_found":
            self._forget()
        elif name == "none":
            self._take(reply)
        elif name != "unreleased_instance_id":
            self.world.report("refused", f"{self.name} got {name}: {reply.error_message}")

    def _forget(self):
        self.world.oracle.seen["members fenced"] += self.epoch > 0
        self.owned.clear()
        self.target.clear()
        self.epoch, self.doing, self.reports = 0, "joining", True

    def _take(self, reply):
        self.epoch, self.doing, self.reports = reply.member_epoch, "in", False
        if reply.assignment is None:
            self.world.oracle.on_shown(self, self.epoch)
            return
        rows = reply.assignment.topic_partitions
        self.target = {each for row in rows for each in row.partitions}
        self.world.oracle.on_shown(self, self.epoch, self.target)
        if self.owned - self.target:
            self.revoke_at_s = now() + self.draw.uniform(0, REVOKING_S_MAX)
        else:
            self.reports = True

    async def reconcile(self):
        """Give up what is not to be kept, and then read the rest."""
        if self.owned - self.target:
            if now() < self.revoke_at_s:
                return
            await self.commit()
            self.owned &= self.target
            self.reports = True
        new = self.target - self.owned
        if new and await self.fetch(new, self.member_id, self.epoch) is not None:
            self.read(new)
            self.reports = True

    def _request(self, epoch):
        joins, full = epoch == 0, epoch == 0 or (epoch > 0 and self.reports)
        owned = sorted(self.owned | self.target)
        places = [{"topic_id": self.world.topic_id, "partitions": owned}]
        return {
            "group_id": GROUP,
            "member_id": self.member_id,
            "member_epoch": epoch,
            "instance_id": self.instance_id,
            "rack_id": None,
            "rebalance_timeout": timedelta(seconds=REBALANCE_S if full else -0.001),
            "subscribed_topic_names": [TOPIC] if full else None,
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": (places if owned and not joins else []) if full else None,
        }

    async def left(self):
        """Leave the group, a static member for a while. Returns whether that was answered."""
        epoch = -1 if self.instance_id is None else -2
        reply = await self.call(BEAT, 1, **self._request(epoch))
        return reply is not None and not self.again(reply.error_code)


class ClassicMember(Member):
    """A consumer of the classic protocol. An eager one gives all up before it joins."""

    def __init__(self, world, name, instance_id):
        super().__init__(world, name, instance_id)
        self.eager = world.eager
        self.protocol = "range" if world.eager else "cooperative-sticky"

    async def run(self):
        await self.join()
        while True:
            await self.wait()
            reply = await self.call(
                HEARTBEAT,
                4,
                group_id=GROUP,
                generation_id=self.epoch,
                member_id=self.member_id,
                group_instance_id=self.instance_id,
            )
            code = None if reply is None else reply.error_code
            if code is None or self.again(code):
                continue
            if code.name in LOST:
                self._forget(code)
                await self.join()
            elif code is _E.rebalance_in_progress:
                await self.commit()
                await self.join()

    def _forget(self, code):
        self.world.oracle.seen["members fenced"] += 1
        self.owned.clear()
        self.epoch = -1
        if code is not _E.illegal_generation:
            self.member_id = ""

    async def join(self):
        self.doing = "joining"
        while not await self._joined():
            await self.pause()
        self.doing = "in"

    async def _joined(self):
        """Join and sync once. Returns False if the member has to join again."""
        if self.eager:
            self.owned.clear()
        reply = await self.call(JOIN, 9, waits_s=REBALANCE_S + 2, **self._joining())
        if reply is None or self.again(reply.error_code):
            return False
        if reply.error_code is _E.member_id_required:
            self.member_id = reply.member_id
        if not self._is_in(reply.error_code):
            return False
        self.member_id, self.epoch = reply.member_id, reply.generation_id
        reply = await self.call(SYNC, 5, waits_s=REBALANCE_S + 2, **self._syncing(reply))
        if reply is None or self.again(reply.error_code) or not self._is_in(reply.error_code):
            return False
        mine = set(decode_assignment(bytes(reply.assignment)).partitions.get(TOPIC, ()))
        self.world.oracle.on_shown(self, self.epoch, mine)
        return await self._take(mine)

    def _is_in(self, code):
        if code.name in LOST:
            self._forget(code)
        elif code not in (_E.none, _E.member_id_required, _E.rebalance_in_progress):
            self.world.report("refused", f"{self.name} got {code!r}")
        return code is _E.none

    async def _take(self, mine):
        """Read what was assigned. Returns False if something was given up for that."""
        gone = self.owned - mine
        if gone:
            await asyncio.sleep(self.draw.uniform(0, REVOKING_S_MAX))
            await self.commit()
            self.owned -= gone
        new = mine - self.owned
        for _ in range(20):
            if not new or await self.fetch(new) is not None:
                self.read(new)
                return not gone
            await self.pause()
        return False

    def _joining(self):
        metadata = subscription([TOPIC], sorted(self.owned), self.epoch)
        return {
            "group_id": GROUP,
            "session_timeout": timedelta(seconds=SESSION_S),
            "rebalance_timeout": timedelta(seconds=REBALANCE_S),
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
            "protocol_type": "consumer",
            "protocols": [{"name": self.protocol, "metadata": metadata}],
            "reason": None,
        }

    def _syncing(self, joined):
        parts = ()
        if joined.leader == self.member_id and not joined.skip_assignment:
            partitions = self.world.partitions
            parts = assigned_by_leader(joined.members, TOPIC, partitions, eager=self.eager)
        return {
            "group_id": GROUP,
            "generation_id": self.epoch,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
            "protocol_type": "consumer",
            "protocol_name": joined.protocol_name,
            "assignments": [{"member_id": name, "assignment": part} for name, part in parts],
        }

    async def left(self):
        """Leave the group; a static member does not. Returns whether that was answered."""
        if self.instance_id is not None or not self.member_id:
            return True
        members = [{"member_id": self.member_id, "group_instance_id": None, "reason": None}]
        reply = await self.call(LEAVE, 5, group_id=GROUP, members=members)
        return reply is not None and not self.again(reply.error_code)
