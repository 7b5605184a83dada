"""Goal: whatever a segment copies from the one before, a takeover finds the state that was written.

Method: random changes of two producers and of plain commits, with kills, unloads and idle times in
between; the state is compared with one that was never stored.
"""

import asyncio
from random import Random
from uuid import UUID

import pytest

from subscriptions.committed_offset import CommittedOffset, TopicIdPartition
from tests.subscriptions.log_world import LogWorld

KEYS = [TopicIdPartition(UUID(int=5), number) for number in range(12)]
PRODUCERS = (4_000, 4_001)
CHANGES = 150


def at(offset):
    return CommittedOffset(offset=offset, commit_time_ms=1_700_000_000_000 + offset)


class Model:
    """The committed and the pending offsets, as Kafka's group coordinator has them."""

    def __init__(self):
        self.committed, self.pending, self.last = {}, {}, {}

    def commit(self, number, offsets):
        for key, value in offsets.items():
            self.committed[key], self.last[key] = value, number

    def put(self, number, producer, offsets):
        self.pending.setdefault(producer, {}).update(
            {key: (number, value) for key, value in offsets.items()}
        )

    def end(self, producer, *, commits):
        """A commit made after an offset was put stays, even if the transaction commits."""
        for key, (number, value) in self.pending.pop(producer, {}).items():
            if commits and number > self.last.get(key, -1):
                self.committed[key], self.last[key] = value, number


@pytest.mark.parametrize("seed", range(20))
async def test_a_takeover_finds_what_was_written(seed):
    draw, world, model = Random(seed), LogWorld(), Model()
    process = world.process()
    store = process.store()
    found = await store.load("g")
    for number in range(CHANGES):
        offsets = {key: at(number) for key in draw.sample(KEYS, draw.randint(1, 3))}
        producer = draw.choice(PRODUCERS)
        match draw.randrange(8):
            case 0:
                await store.advance("g", offsets)
                model.commit(number, offsets)
            case 1 | 2 | 3:
                await store.advance_pending("g", producer, 1, offsets)
                model.put(number, producer, offsets)
            case 4 | 5:
                commits = draw.random() < 0.5
                await store.end_pending("g", producer, 1, commits=commits)
                model.end(producer, commits=commits)
            case 6:
                await asyncio.sleep(100)  # the segment is idle, and ends
            case _:
                if draw.random() < 0.5:
                    await store.unload("g")
                process.kill()
                process = world.process()
                store = process.store()
                found = await store.load("g")
        assert dict(found.offsets) == model.committed, f"seed {seed}, change {number}"
        open_keys = {key for pending in model.pending.values() for key in pending}
        assert set(store.pending("g")) == open_keys, f"seed {seed}, change {number}"


async def test_a_takeover_of_many_writes_their_nodes_by_few_transactions():
    world, names = LogWorld(), [f"group-{number}" for number in range(200)]
    process = world.process()
    store = process.store()
    await asyncio.gather(*map(store.load, names))
    await asyncio.gather(*(store.advance(name, {KEYS[0]: at(1)}) for name in names))
    process.kill()
    process = world.process()
    found = await asyncio.gather(*map(process.store().load, names))
    assert [dict(each.offsets) for each in found] == [{KEYS[0]: at(1)}] * len(names)
    nodes = [path for _, path in process.steps.writes if path.startswith("/gateway/groups/")]
    assert len(nodes) <= len(names) / 4
