"""Goal: each group has the offsets of the transactions that committed, and of no other ones, also
after takeovers, unloads and late copies of markers; and planted mistakes are found.

Method: seeded random transactions of two producers over three groups of one partition and two
brokers, on virtual time. A model of the producers and their coordinator is the oracle. A mistake
removes one rule of the real code; some seed must find it.
"""

import asyncio
from itertools import product
from random import Random

import pytest
from kio.schema.errors import ErrorCode

from gateway.core.partition_transactions import EndMarker
from gateway.groups.group_transactions import GroupTransactions
from gateway.groups.transactional_offsets import TransactionalCommit, TransactionalOffsets
from gateway.transactions.group_markers import ClusterGroupMarkers
from subscriptions.committed_offset import CommittedOffset
from subscriptions.pending_offsets import PendingOffsets
from subscriptions.segments.log_change import LogChange
from subscriptions.segments.segment_records import SubscriptionState
from tests.gateway.test_group_markers import brokers, same_partition
from tests.sim.loop import simulate

SEEDS = range(12)
INDEX, STEPS = 7, 24
NONE = ErrorCode.none
ENDED = (NONE, ErrorCode.coordinator_not_available, ErrorCode.not_coordinator)
IDLE_S = 300.0
TRIES = 20


class Producer:
    """A producer of protocol 1 and the coordinator of its transactions: what both remember."""

    def __init__(self, number):
        self.partition = number  # of the topic; that of another producer is another one
        self.id = 4_000 + number
        self.epoch, self.number = 3, 0
        self.pending = {}  # offset of the open transaction by group


class Play:
    """Two producers and their groups."""

    def __init__(self, seed, both):
        self.draw = Random(seed)
        self.both = both
        self.groups = same_partition(3)
        self.producers = [Producer(0), Producer(1)]
        self.committed = {}  # offset by group and partition
        self.value = 0
        self.late = []  # copies of earlier markers, with the ownerships that they name

    async def run(self):
        for _ in range(STEPS):
            await self.step(self.draw.choice(self.producers))
            await self.check()
            await self.accident()
            await self.check()
        for producer in self.producers:
            await self.end(producer)
        await self.check()

    async def step(self, producer):
        if len(producer.pending) > self.draw.randint(0, 3):
            await self.end(producer)
            return
        group = self.draw.choice(self.groups)
        self.value += 1
        await self.retried(self.pend, producer, group, self.value, producer.epoch)
        producer.pending[group] = self.value
        if self.draw.random() < 0.2:  # a zombie whose verification was answered before
            code = await self.pend(producer, group, 1_000_000, producer.epoch - 1)
            assert code is ErrorCode.invalid_producer_epoch

    async def retried(self, ask, *args):
        for _ in range(TRIES):
            if await ask(*args) is NONE:
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"{ask.__name__}: never done")

    async def pend(self, producer, group, value, epoch):
        async def verify():
            return NONE

        code = ErrorCode.not_coordinator
        for broker in self.both:
            if code is ErrorCode.not_coordinator:
                offset = CommittedOffset(offset=value, commit_time_ms=broker.world.clock.now_ms())
                offsets = {broker.world.key(producer.partition): offset}
                commit = TransactionalCommit(group, producer.id, epoch, "", -1, None, offsets)
                code = await broker.world.groups.commit_in_transaction(commit, verify)
        return code

    async def end(self, producer):
        commit = self.draw.random() < 0.6
        producer.number += 1
        marker = EndMarker(producer.id, producer.epoch, 0, commit, 0, producer.number)
        copies = []
        await self.retried(self.mark, self.draw.choice(self.both), marker, copies)
        self.late = [*self.late, *copies][-40:]
        if commit:
            for group, value in producer.pending.items():
                self.committed[group, producer.partition] = value
        producer.pending = {}
        if self.draw.random() < 0.2:
            producer.epoch += 1  # InitProducerId

    async def mark(self, broker, marker, copies):
        index = broker.world.groups.transactional_groups
        copies += [(marker, each) for each in await index.of(INDEX)]
        answered = asyncio.get_running_loop().create_future()
        broker.markers.end(INDEX, marker, answered.set_result, self)
        return await answered

    async def accident(self):
        kind = self.draw.choice(("takeover", "idle", "late", "late", "late", "late"))
        if kind == "takeover":
            lost = self.draw.choice(self.both)
            lost.world.groups.lost()
            for group, node_id in list(lost.claims.owners.items()):
                if node_id == lost.claims.node_id:
                    del lost.claims.owners[group]
            await asyncio.sleep(1)
        elif kind == "idle":
            await asyncio.sleep(IDLE_S)
        else:
            late = self.draw.sample(self.late, min(4, len(self.late)))
            for (marker, listed), broker in product(late, self.both):
                offsets = broker.world.groups.transactional
                code = await offsets.end(listed.group, marker, listed.ownership)
                assert code in (*ENDED, ErrorCode.invalid_producer_epoch)

    async def check(self):
        for group in self.groups:
            owner = self.both[0].claims.owners.get(group, self.draw.choice((1, 2)))
            world = self.both[owner - 1].world
            for each in self.producers:
                committed = self.committed.get((group, each.partition))
                assert await world.committed(group, each.partition) == committed, group
                unstable = world.key(each.partition) in world.groups.unstable(group)
                assert unstable == (group in each.pending), group


def play(seed):
    async def story():
        async with brokers() as both:
            await Play(seed, both).run()

    simulate(story())


@pytest.mark.parametrize("seed", SEEDS)
def test_groups_have_the_offsets_of_committed_transactions(seed):
    play(seed)


# -- planted mistakes ---------------------------------------------------------------------------


def pending_offsets_are_shown(patch):
    def apply(self, state, apply=LogChange.apply):
        apply(self, state)
        if self.producer_id >= 0 and self.commits is None:
            state.records.update(zip(self.keys, self.values, strict=True))

    patch.setattr(LogChange, "apply", apply)


def pending_offsets_are_lost_at_a_takeover(patch):
    def apply(self, record, apply=SubscriptionState.apply):
        if record.producer_id < 0 or record.commits is not None:
            apply(self, record)

    patch.setattr(SubscriptionState, "apply", apply)


def pending_offsets_are_lost_with_their_segment(patch):
    def encoded(self, encoded=SubscriptionState.encoded):
        pending, self.pending = self.pending, PendingOffsets()
        try:
            return encoded(self)
        finally:
            self.pending = pending

    patch.setattr(SubscriptionState, "encoded", encoded)


def offsets_of_a_stale_epoch_are_taken(patch):
    def check(self, loaded, commit, check=TransactionalOffsets._check):
        code = check(self, loaded, commit)
        return NONE if code is ErrorCode.invalid_producer_epoch else code

    patch.setattr(TransactionalOffsets, "_check", check)


def one_of_two_groups_is_enough(patch):
    def each(self, groups, index, marker, each=ClusterGroupMarkers._each):
        return each(self, groups[:1], index, marker)

    patch.setattr(ClusterGroupMarkers, "_each", each)


def an_error_of_one_group_is_forgotten(patch):
    async def one(self, listed, index, marker, one=ClusterGroupMarkers._one):
        await one(self, listed, index, marker)
        return NONE

    patch.setattr(ClusterGroupMarkers, "_one", one)


def groups_are_never_in_the_index(patch):
    async def register(self, loaded, memory):
        memory.registered = True

    patch.setattr(TransactionalOffsets, "_register", register)


def a_marker_counts_as_a_node_of_the_index(patch):
    def note_listed(self, ownership, note=GroupTransactions.note_listed):
        note(self, ownership)
        self.ownership, self.registered = ownership, True

    patch.setattr(GroupTransactions, "note_listed", note_listed)


def ownerships_are_not_compared(patch):
    patch.setattr(GroupTransactions, "names_this", lambda *_: True)


def a_producer_brings_no_new_ownership(patch):
    """Numbers are remembered from the first offsets on, but copies from before are taken."""

    def learn(self, producer_id, fresh):
        self._numbers.setdefault(producer_id, (-1, -1))

    patch.setattr(GroupTransactions, "learn", learn)


def numbers_are_not_compared(patch):
    patch.setattr(GroupTransactions, "check_marker", lambda *_: None)


MISTAKES = [
    pending_offsets_are_shown,
    pending_offsets_are_lost_at_a_takeover,
    pending_offsets_are_lost_with_their_segment,
    offsets_of_a_stale_epoch_are_taken,
    one_of_two_groups_is_enough,
    an_error_of_one_group_is_forgotten,
    groups_are_never_in_the_index,
    a_marker_counts_as_a_node_of_the_index,
    ownerships_are_not_compared,
    a_producer_brings_no_new_ownership,
    numbers_are_not_compared,
]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_found(mistake, monkeypatch):
    with monkeypatch.context() as patch:
        mistake(patch)
        for seed in SEEDS:
            try:
                play(seed)
            except AssertionError:
                return
    pytest.fail("no seed found it")
