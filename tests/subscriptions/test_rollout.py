"""Goal: moving to log segments, with a mixed cluster and back again, loses no commit.
Method: nodes of older programs, byte for byte. By seed, processes take subscriptions from each
other, and each claim is compared with the last acknowledged commit.
"""

from contextlib import asynccontextmanager
from random import Random
from uuid import UUID

import pytest

from ledger.errors import NotOwner
from ledger.ids import INVALID_DLSN, Dlsn
from subscriptions.committed_offset import (
    WHOLE_STREAM,
    CommittedOffset,
    TopicIdPartition,
    encode_advance,
)
from subscriptions.segments.log_node import is_log_node
from subscriptions.znodes.znode_format import encode_subscriber, key_name, seal
from tests.subscriptions.log_world import GROUPS, STREAM, LogWorld

TOPIC = UUID(int=5)
KEY = TopicIdPartition(TOPIC, 0)
DISTRIBUTEDLOGS = b"AQAAAAAAAAAHAAAAAAAAACoAAAAAAAAAAw=="  # of (7, 42, 3), as its Java writes it
APP = f"{STREAM}/subscribers/app"


def at(n):
    return CommittedOffset(INVALID_DLSN, n, 3, f"by {n}", 1_700_000_000_000 + n)


@asynccontextmanager
async def log_world():
    yield LogWorld()


def old_group(world, positions, note=b"members"):
    """Write a group as the znode store does."""
    world.put(f"{GROUPS}/g", seal(note))
    for key, position in positions.items():
        world.put(f"{GROUPS}/g/{key_name(key)}", seal(encode_advance(key, position)))


@pytest.mark.parametrize("enabled", [False, True])
async def test_what_distributedlog_wrote_is_read(enabled):
    async with log_world() as world:
        world.put(APP, DISTRIBUTEDLOGS)
        store = world.store(native=True, enabled=enabled)
        for found in (await store.read("app"), await store.load("app")):
            assert found.offsets == {WHOLE_STREAM: CommittedOffset(Dlsn(7, 42, 3))}


@pytest.mark.parametrize("enabled", [False, True])
async def test_a_node_that_only_holds_a_readers_lock_has_no_position(enabled):
    async with log_world() as world:
        world.put(f"{APP}/readLock", b"")
        store = world.store(native=True, enabled=enabled)
        assert (await store.load("app")).offsets == {}
        await store.advance("app", {WHOLE_STREAM: CommittedOffset(Dlsn(1, 2, 3))})
        found = await world.store(native=True).load("app")
        assert found.offsets == {WHOLE_STREAM: CommittedOffset(Dlsn(1, 2, 3))}


async def test_with_the_flag_off_a_native_subscribers_node_is_distributedlogs_byte_for_byte():
    async with log_world() as world:
        store = world.store(native=True, enabled=False)
        await store.load("app")
        await store.advance("app", {WHOLE_STREAM: CommittedOffset(Dlsn(7, 42, 3))})
        assert world.data("app", native=True) == DISTRIBUTEDLOGS
        assert await world.ledgers() == []


async def test_with_the_flag_off_no_ledger_is_made_and_no_node_changes_its_form():
    async with log_world() as world:
        old_group(world, {KEY: at(1)})
        store = world.store(enabled=False)
        await store.load("g")
        await store.advance("g", {KEY: at(2)}, b"note")
        assert world.data("g") == seal(b"note")
        child = world.tree.get(f"{GROUPS}/g/{key_name(KEY)}")
        assert child.data == seal(encode_advance(KEY, at(2)))
        assert await world.ledgers() == []


async def test_a_group_moves_into_its_segment_with_its_first_commit_and_not_before():
    async with log_world() as world:
        one, two = KEY, TopicIdPartition(TOPIC, 1)
        old_group(world, {one: at(1), two: at(2)})
        store = world.store()
        assert (await store.load("g")) == ({one: at(1), two: at(2)}, b"members", True, {})
        assert world.data("g") == seal(b"members")
        await store.advance("g", {one: at(3)})
        assert world.node("g").HasField("segment_id")
        assert [path for path in world.tree.nodes if path.startswith(f"{GROUPS}/g/")] == []
        assert (await world.store().load("g")) == ({one: at(3), two: at(2)}, b"members", True, {})


async def test_a_group_of_very_many_positions_moves_and_comes_back():
    async with log_world() as world:
        positions = {TopicIdPartition(TOPIC, n): at(n) for n in range(1200)}
        old_group(world, positions)
        on, off = world.store(node_state_bytes=10_000), world.store(enabled=False)
        await on.load("g")
        await on.advance("g", {KEY: at(5)})
        positions[KEY] = at(5)
        assert (await off.load("g")) == (positions, b"members", True, {})
        assert world.data("g") == seal(b"members")
        assert await world.ledgers() == []


@pytest.mark.parametrize("native", [False, True])
async def test_a_store_whose_flag_is_off_writes_back_before_it_serves(native):
    async with log_world() as world:
        key = WHOLE_STREAM if native else KEY
        position = CommittedOffset(Dlsn(7, 42, 3)) if native else at(1)
        on = world.store(native=native)
        await on.load("app")
        await on.advance("app", {key: position})
        off = world.store(native=native, enabled=False)
        assert (await off.load("app")).offsets == {key: position}
        assert not is_log_node(world.data("app", native=native))
        if native:
            assert world.data("app", native=True) == encode_subscriber(Dlsn(7, 42, 3))
        with pytest.raises(NotOwner):
            await on.advance("app", {key: position._replace(position=Dlsn(8, 0, 0))})
        assert await world.ledgers() == []


async def test_a_store_whose_flag_is_off_reads_a_segment_without_disturbing_its_writer():
    async with log_world() as world:
        on = world.store()
        await on.load("g")
        for n in (1, 2):
            await on.advance("g", {KEY: at(n)}, b"members")
        found = await world.store(enabled=False).read("g")
        assert found.note == b"members"
        assert found.offsets[KEY].offset in (1, 2)
        await on.advance("g", {KEY: at(3)})
        assert (await on.read("g")).offsets == {KEY: at(3)}


async def test_two_stores_of_different_flags_shut_each_other_out():
    async with log_world() as world:
        on, off = world.store(), world.store(enabled=False)
        await off.load("g")
        await off.advance("g", {KEY: at(1)})
        await on.load("g")
        with pytest.raises(NotOwner):
            await off.advance("g", {KEY: at(2)})
        await on.advance("g", {KEY: at(3)})
        await off.load("g")
        with pytest.raises(NotOwner):
            await on.advance("g", {KEY: at(4)})
        await off.advance("g", {KEY: at(5)})
        assert (await on.load("g")).offsets == {KEY: at(5)}


class Cluster:
    """Processes that take one subscriber from each other. `flags` holds each one's flag."""

    def __init__(self, world, draw, native, size=3):
        self.world = world
        self.draw = draw
        self.native = native
        self.flags = [False] * size
        self.stores = [None] * size
        self.processes = [None] * size
        self.expected = {}
        self.clock = 0
        for n in range(size):
            self.restart(n, False)

    def restart(self, n, enabled):
        """Kill the process as kill -9 does, and start one with this flag."""
        if self.processes[n] is not None:
            self.processes[n].kill()
        self.flags[n] = enabled
        self.processes[n] = self.world.process()
        self.stores[n] = self.processes[n].store(
            native=self.native, enabled=enabled, segment_bytes=self.draw.choice([150, 10**6])
        )

    async def turn(self, n):
        """Take the subscriber over with process `n`, check the last commit, and commit."""
        store = self.stores[n]
        found = (await store.load("app")).offsets
        assert found == self.expected, f"process {n}, flags {self.flags}"
        for _ in range(self.draw.randrange(4)):
            self.clock += 1
            if self.native:
                change = {WHOLE_STREAM: CommittedOffset(Dlsn(1, self.clock, 0))}
            else:
                change = {TopicIdPartition(TOPIC, self.draw.randrange(3)): at(self.clock)}
            await store.advance("app", change)
            self.expected.update(change)
        if self.draw.random() < 0.3:
            await store.unload("app")

    async def turns(self, count):
        for _ in range(count):
            await self.turn(self.draw.randrange(len(self.stores)))


@pytest.mark.parametrize("native", [False, True], ids=["groups", "native"])
@pytest.mark.parametrize("seed", range(10))
async def test_a_cluster_that_is_rolled_out_and_rolled_back_loses_no_commit(seed, native):
    async with log_world() as world:
        draw = Random(seed)
        cluster = Cluster(world, draw, native)
        await cluster.turns(6)  # step 1: the flag is off everywhere
        for enabled in (True, False, True):
            for n in range(3):  # step 2, process by process; and back; and again
                cluster.restart(n, enabled)
                await cluster.turns(6)
        assert cluster.clock > 20
