"""Members of one group as their clients are, of both protocols, on virtual time.

A member reads what it was given until it gives it up, and commits an offset of each partition every
three seconds. `Books` notes all of it, and fails at once if two members read one partition, or if a
member finds an offset that is older than the last acknowledged one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

from gateway.core.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from gateway.core.group_members import Joining, Leaving, Syncing
from gateway.groups.coordinator import fresh_id
from gateway.groups.views import Refused
from subscriptions.committed_offset import CommittedOffset
from tests.gateway.subscription_bytes import subscription

GROUP, TOPIC, PARTITIONS = "g", "many", 12
SESSION_S = 10
BEAT_S = 1.0
LOST = {"illegal_generation", "unknown_member_id", "fenced_instance_id", "fenced_member_epoch"}


class Books:
    """What all members read, and what was acknowledged to them."""

    def __init__(self):
        self.reader = {}
        self.unread_since = {}  # of each partition that nobody reads
        self.longest_s = 0.0  # for which a partition was not read, once all had been
        self.complete = False
        self.acknowledged = Counter()
        self.shown = 0  # the highest epoch that a member may use

    def start(self, name, partition, offset):
        other = self.reader.get(partition)
        assert other is None, f"{name} and {other} read {partition}"
        found = self.acknowledged[partition]
        assert offset >= found, f"{name} begins at {offset}, and {found} was acknowledged"
        self.reader[partition] = name
        self._end_gap(partition)
        self.complete = self.complete or len(self.reader) == PARTITIONS

    def stop(self, partition):
        del self.reader[partition]
        self.unread_since[partition] = self._now()

    def end(self):
        for partition in list(self.unread_since):
            self._end_gap(partition)

    def _end_gap(self, partition):
        since = self.unread_since.pop(partition, None)
        if since is not None and self.complete:
            self.longest_s = max(self.longest_s, self._now() - since)

    def _now(self):
        return asyncio.get_running_loop().time()


def assigned_by_leader(members, topic, partitions, *, eager):
    """Return the assignments of all members, as the assignor of a leader makes them.

    Members keep what they own, as far as that is fair. Unless they are `eager`, a partition goes to
    another member only once its owner no longer reports it.
    """
    owned = {each.member_id: decode_subscription(each.metadata).owned for each in members}
    owner = {p: name for name, own in owned.items() for p in own.get(topic, ())}
    names = sorted(owned)
    share = -(-partitions // len(names))
    wanted = {name: [] for name in names}
    for partition, name in owner.items():
        if len(wanted[name]) < share:
            wanted[name].append(partition)
    free = set(range(partitions)) - {p for some in wanted.values() for p in some}
    for partition in sorted(free):
        name = min(names, key=lambda each: len(wanted[each]))
        if eager or owner.get(partition, name) == name:
            wanted[name].append(partition)
    return tuple((name, encode_assignment([(topic, some)], 3)) for name, some in wanted.items())


class Member:
    """What members of both protocols do. `run` has the present coordinator, `world`."""

    def __init__(self, run, name, instance=None):
        self.run, self.name, self.instance = run, name, instance
        self.books = run.books
        self.member_id = ""
        self.epoch = -1
        self.offsets = {}  # the next offset of each partition that it reads
        self.beats = 0
        self.task = None

    def begin(self):
        self.task = asyncio.ensure_future(self.live())
        return self

    async def die(self):
        """End as a process that was killed."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.stop(list(self.offsets))

    async def leave(self):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.commit()
        self.stop(list(self.offsets))
        await self.say_goodbye()

    async def ask(self, make):
        """Return the answer of the coordinator, or None if it refuses, or dies meanwhile."""
        dies = asyncio.ensure_future(self.run.died.wait())
        request = asyncio.ensure_future(make(self.run.world))
        try:
            await asyncio.wait({request, dies}, return_when=asyncio.FIRST_COMPLETED)
            return request.result() if request.done() and not dies.done() else None
        except Refused:
            return None
        finally:
            dies.cancel()
            request.cancel()

    async def pause(self):
        """Wait until the next heartbeat. Each third one follows a commit."""
        await asyncio.sleep(BEAT_S)
        self.beats += 1
        if self.beats % 3 == 0:
            await self.commit()

    def stop(self, partitions):
        for each in partitions:
            del self.offsets[each]
            self.books.stop(each)

    async def start(self, partitions):
        """Read from the committed offsets on."""
        while partitions:
            found = await self.ask(lambda world: world.groups.offsets(GROUP))
            if found is not None:
                break
            await asyncio.sleep(0.1)
        for each in partitions:
            committed = found.get(self.run.key(each))
            self.offsets[each] = 0 if committed is None else committed.offset
            self.books.start(self.name, each, self.offsets[each])

    async def commit(self):
        mine = {each: offset + 1 for each, offset in self.offsets.items()}
        positions = {
            self.run.key(each): CommittedOffset(offset=offset, commit_time_ms=0)
            for each, offset in mine.items()
        }
        if not mine:
            return
        code = await self.ask(
            lambda world: world.groups.commit(
                GROUP, self.member_id, self.epoch, self.instance, positions
            )
        )
        if code is None or code.name != "none":
            return
        for each, offset in mine.items():
            self.books.acknowledged[each] = max(self.books.acknowledged[each], offset)
            if each in self.offsets:
                self.offsets[each] = offset


class ClassicMember(Member):
    """A consumer of the classic protocol, as Kafka's. An eager one gives all up to join."""

    def __init__(self, run, name, instance=None):
        super().__init__(run, name, instance)
        self.eager = run.eager
        self.protocol = "range" if run.eager else "cooperative-sticky"

    async def live(self):
        await self.join()
        while True:
            await self.pause()
            code = await self.ask(
                lambda world: world.groups.heartbeat(
                    GROUP, self.member_id, self.epoch, self.instance
                )
            )
            if code is not None and code.name in LOST:
                self.lose(code.name)
                await self.join()
            elif code is not None and code.name == "rebalance_in_progress":
                await self.commit()
                await self.join()

    def lose(self, code):
        assert code != "fenced_instance_id", self.name
        self.stop(list(self.offsets))
        self.epoch = -1
        if code == "unknown_member_id":
            self.member_id = ""

    async def join(self):
        while not await self._joined():
            await asyncio.sleep(0.1)

    async def _joined(self):
        """Join and sync once. Returns False if the member has to join again."""
        if self.eager:
            self.stop(list(self.offsets))
        joined = await self.ask(lambda world: world.groups.join(GROUP, self._joining()))
        if joined is None:
            return False
        if joined.error.name == "member_id_required":
            self.member_id = joined.member_id
        if joined.error.name in LOST:
            self.lose(joined.error.name)
        if joined.error.name != "none":
            return False
        self.member_id, self.epoch = joined.member_id, joined.generation
        parts = self._assigned(joined.members) if joined.leader == self.member_id else ()
        syncing = Syncing(
            self.member_id, self.epoch, self.instance, "consumer", joined.protocol, parts
        )
        synced = await self.ask(lambda world: world.groups.sync(GROUP, syncing))
        if synced is None or synced.error.name != "none":
            if synced is not None and synced.error.name in LOST:
                self.lose(synced.error.name)
            return False
        self.books.shown = max(self.books.shown, self.epoch)
        return await self._take(decode_assignment(synced.assignment).partitions)

    async def _take(self, partitions):
        """Read what was assigned. Returns False if something was given up for that."""
        mine = set(partitions.get(TOPIC, ()))
        gone = set(self.offsets) - mine
        if gone:
            await asyncio.sleep(self.run.draw.uniform(0, 2))  # what it has read is to be processed
        self.stop(gone)
        await self.start(sorted(mine - set(self.offsets)))
        return not gone

    def _joining(self):
        owned = () if self.eager else tuple(self.offsets)
        metadata = subscription([TOPIC], owned, self.epoch)
        return Joining(
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=((self.protocol, metadata),),
            session_timeout_ms=SESSION_S * 1000,
            rebalance_timeout_ms=8_000,
            fresh_id=fresh_id(),
            instance_id=self.instance,
            client_id=self.name,
            client_host="/127.0.0.1",
        )

    def _assigned(self, members):
        return assigned_by_leader(members, TOPIC, PARTITIONS, eager=self.eager)

    async def say_goodbye(self):
        leavings = (Leaving(self.member_id, self.instance),)
        await self.ask(lambda world: world.groups.leave(GROUP, leavings))


class ConsumerMember(Member):
    """A consumer of the consumer protocol."""

    def __init__(self, run, name, instance=None):
        super().__init__(run, name, instance)
        self.member_id = name
        self.epoch = 0
        self.reports = True  # the next heartbeat lists what it owns

    async def live(self):
        while True:
            await self._beat()
            await self.pause()

    async def _beat(self):
        reply = await self.ask(lambda world: self._request(world))
        if reply is None or reply.error_code.name in (
            "coordinator_load_in_progress",
            "not_coordinator",
            "coordinator_not_available",
        ):
            self.reports = True
            return
        if reply.error_code.name in LOST:
            self.stop(list(self.offsets))
            self.epoch = 0
            return
        assert reply.error_code.name == "none", reply.error_message
        self.epoch, self.reports = reply.member_epoch, False
        self.books.shown = max(self.books.shown, self.epoch)
        if reply.assignment is None:
            return
        mine = {each for row in reply.assignment.topic_partitions for each in row.partitions}
        self.stop(set(self.offsets) - mine)
        await self.start(sorted(mine - set(self.offsets)))
        self.reports = True

    def _request(self, world):
        fields = {"instance_id": self.instance}
        if self.epoch == 0:
            fields["subscribed_topic_names"] = [TOPIC]
        elif self.reports:  # a full one, which repeats all if its answer was lost
            owned = [{"topic_id": self.run.key(0).topic_id, "partitions": sorted(self.offsets)}]
            fields["topic_partitions"] = owned if self.offsets else []
            fields["subscribed_topic_names"] = [TOPIC]
            fields["rebalance_timeout"] = timedelta(seconds=60)
        return world.beat(self.name, self.epoch, **fields)

    async def say_goodbye(self):
        await self.ask(lambda world: world.beat(self.name, -1, instance_id=self.instance))
