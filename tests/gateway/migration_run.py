"""Rolling restarts of a group from one protocol to the other, from one seed, on virtual time.

Six members are replaced one by one, by members of the other protocol. The coordinator may be
killed at any time, or at one of its writes. Members may also be killed in place of leaving.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from random import Random
from unittest import mock

from gateway.core import consumer_group, group_migration
from gateway.core.consumer_members import ConsumerTiming
from gateway.core.consumer_protocol import Assignment
from gateway.groups import consumer_groups as shell
from gateway.groups.loaded_groups import LoadedGroups
from subscriptions.committed_offset import TopicIdPartition
from tests.gateway.consumer_world import ConsumerWorld
from tests.gateway.migration_members import (
    GROUP,
    PARTITIONS,
    SESSION_S,
    TOPIC,
    Books,
    ClassicMember,
    ConsumerMember,
)

COUNT = 6
LIMITS = {"initial_rebalance_delay_ms": 500, "session_timeout_ms_min": 1_000}


class Run:
    """One history. `kills` is True if the coordinator is killed, `crashes` if members are."""

    def __init__(self, seed, *, kills=False, crashes=False, **limits):
        self.draw = Random(seed)
        self.kills, self.crashes = kills, crashes
        self.eager = self.draw.random() < 0.5  # of all classic members
        self.limits = LIMITS | limits
        self.books = Books()
        self.members = []
        self.killed = 0
        interval_ms = self.draw.choice([0, 1_000])
        self.timing = ConsumerTiming(SESSION_S * 1000, 1_000, interval_ms)
        self.world = self.died = None

    async def begin(self):
        self.world = ConsumerWorld(**self.limits)
        await self._enter()
        await self.world.catalog.create(TOPIC, PARTITIONS, 1, {})

    async def _enter(self):
        self.died = asyncio.Event()
        await self.world.__aenter__()
        self.world.groups.consumers.timing_of = lambda _: self.timing

    async def kill(self):
        """Kill the coordinator now, and let the next one take over."""
        self.killed += 1
        self.died.set()
        after = self.world.next()
        after.limits = self.world.limits
        self.world = after
        await self._enter()

    def key(self, partition):
        return TopicIdPartition(self.world.catalog.by_name(TOPIC).topic_id, partition)

    def add(self, kind, name, instance=None):
        self.members.append(kind(self, name, instance).begin())

    async def pause(self, low_s, high_s):
        """Let time pass, and perhaps kill the coordinator meanwhile."""
        for _ in range(round(self.draw.uniform(low_s, high_s) * 10)):
            await asyncio.sleep(0.1)
            self.check()
        if self.kills and self.draw.random() < 0.5:
            if self.draw.random() < 0.5:
                steps = self.world.process.steps
                steps.last = steps.taken + self.draw.randint(1, 3)
                steps.after = self.draw.random() < 0.5
                await asyncio.sleep(self.draw.uniform(0, 2))
            await self.kill()

    async def restart_all(self, kind, prefix):
        """Replace each member by one of this kind."""
        for number, before in enumerate(list(self.members)):
            self.members.remove(before)
            await (before.die if self.crashes and self.draw.random() < 0.3 else before.leave)()
            self.add(kind, f"{prefix}{number}", before.instance)
            await self.pause(0, 5)

    def check(self):
        """Check what must hold at any time."""
        for member in self.members:
            if member.task.done():
                member.task.result()
        loaded = self.world.loaded.get(GROUP)
        if loaded is not None and loaded.alive:
            classic = loaded.consumer is None
            epoch = loaded.group.generation if classic else loaded.consumer.epoch
            assert epoch >= self.books.shown, "the epoch fell"

    async def rest(self):
        """Let all come to rest: for three seconds, every partition is read by one member."""
        calm = 0
        for _ in range(600):
            await asyncio.sleep(0.1)
            self.check()
            calm = calm + 1 if self._is_settled() else 0
            if calm == 30:
                break
        self.books.end()
        assert calm == 30, f"the group did not come to rest: {self.books.reader}"

    def _is_settled(self):
        readers = list(self.books.reader.values())
        counts = [readers.count(each.name) for each in self.members]
        return len(readers) == PARTITIONS == sum(counts) and max(counts) - min(counts) <= 1

    async def stop(self):
        for member in self.members:
            member.task.cancel()
        await asyncio.gather(*(each.task for each in self.members), return_exceptions=True)
        await self.world.__aexit__()


async def there_and_back(seed, **options):
    """Go from the classic protocol to the consumer protocol, and back. Returns the run."""
    run = Run(seed, **options)
    await run.begin()
    for number in range(COUNT):
        run.add(ClassicMember, f"a{number}")
    await run.rest()
    await run.restart_all(ConsumerMember, "b")
    await run.rest()
    assert run.world.loaded[GROUP].consumer is not None
    await run.restart_all(ClassicMember, "c")
    await run.rest()
    assert run.world.loaded[GROUP].consumer is None
    assert (await run.world.store.read(GROUP)).keyed == {}
    await run.stop()
    return run


_begin_classic = LoadedGroups.begin_classic
_write = shell.ConsumerGroups.write


def _forgets_offsets(self, loaded, membership):
    """Begin a classic group with members, and remove the committed offsets."""
    if membership.members:
        self.write(loaded, dict.fromkeys(loaded.offsets))
    _begin_classic(self, loaded, membership)


def _forgets_downgrade(self, loaded, changes, note=None):
    """Make the group a classic one in memory alone."""
    if loaded.consumer is None or loaded.consumer.ended is None:
        return _write(self, loaded, changes, note)
    membership, loaded.consumer = loaded.consumer.ended, None
    self._loaded_groups.begin_classic(loaded, membership)
    return None


MISTAKES = {
    "a downgrade loses offsets": (LoadedGroups, "begin_classic", _forgets_offsets),
    "a partition is given before a classic member released it": (
        *(consumer_group, "as_partitions", lambda *_: {}),
    ),
    "a classic member is not asked to join again": (
        *(consumer_group, "must_rejoin", lambda *_: False),
    ),
    "an upgrade forgets what members hold": (
        *(group_migration, "decode_assignment", lambda _: Assignment({}, has_user_data=False)),
    ),
    "a downgrade is not written": (shell.ConsumerGroups, "write", _forgets_downgrade),
}


@contextmanager
def planted(name):
    where, what, mistake = MISTAKES[name]
    with mock.patch.object(where, what, mistake):
        yield
