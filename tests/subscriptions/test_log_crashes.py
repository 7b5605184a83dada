"""Goal: at whatever step a process dies, no offset older than the last acknowledged one is loaded.
Method: a story runs once to count its steps (each change of metadata, each entry). Then it runs for
each step, with the crash before and after it, and another process takes over.
"""

import asyncio
from uuid import UUID

import pytest

from ledger.errors import LedgerError
from ledger.ids import INVALID_DLSN, Dlsn
from subscriptions.committed_offset import WHOLE_STREAM, CommittedOffset, TopicIdPartition
from subscriptions.segments.log_node import is_log_node, ledgers_named
from subscriptions.znodes.znode_format import encode_subscriber, node_op, offset_ops
from tests.sim.loop import simulate
from tests.subscriptions.log_world import GROUPS, STREAM, Died, LogWorld

TOPIC = UUID(int=5)
KEY = TopicIdPartition(TOPIC, 0)


def at(n):
    return CommittedOffset(INVALID_DLSN, n, 3, "", 1_700_000_000_000 + n)


class Teller:
    """A story that commits rising offsets and remembers the last acknowledged one."""

    def __init__(self, store, first=1):
        self.store = store
        self.acknowledged = first - 1
        self.tried = first - 1

    async def commit(self):
        self.tried += 1
        await self.store.advance("g", {KEY: at(self.tried)})
        self.acknowledged = self.tried


async def begin_and_commit(process):
    teller = Teller(process.store())
    yield teller
    await teller.store.load("g")
    for _ in range(3):
        await teller.commit()


async def roll(process):
    teller = Teller(process.store(segment_bytes=300))
    yield teller
    await teller.store.load("g")
    for _ in range(8):
        await teller.commit()


async def roll_with_a_snapshot(process):
    teller = Teller(process.store(segment_bytes=300, node_state_bytes=50))
    yield teller
    await teller.store.load("g")
    for _ in range(8):
        await teller.commit()


async def let_go_and_come_back(process):
    teller = Teller(process.store())
    yield teller
    await teller.store.load("g")
    await teller.commit()
    await teller.store.close()
    await teller.store.load("g")
    await teller.commit()
    await teller.store.unload("g")


async def migrate(process):
    world_tree = process.metadata.tree
    for n in range(3):
        for op in offset_ops(f"{GROUPS}/g/x", TopicIdPartition(TOPIC, n), at(1), None):
            name = f"{TOPIC.hex}-{n}"
            if f"{GROUPS}/g" not in world_tree.nodes:
                world_tree.create(f"{GROUPS}/g", node_op("", None, b"note").data, parents=True)
            world_tree.create(f"{GROUPS}/g/{name}", op.data)
    teller = Teller(process.store(), first=2)
    yield teller
    await teller.store.load("g")
    for _ in range(3):
        await teller.commit()


async def migrate_and_back(process):
    teller = Teller(process.store())
    yield teller
    await teller.store.load("g")
    await teller.commit()
    await teller.commit()
    teller.store = process.store(enabled=False)
    await teller.store.load("g")
    await teller.commit()


STORIES = {
    "begin": begin_and_commit,
    "roll": roll,
    "roll with a snapshot": roll_with_a_snapshot,
    "let go": let_go_and_come_back,
    "migrate": migrate,
    "back": migrate_and_back,
}


async def tell(story, last, *, after):
    """Run the story up to the crash. Returns the world, the process and the story."""
    world = LogWorld()
    process = world.process()
    process.steps.last, process.steps.after = last, after
    telling = story(process)
    teller = await anext(telling)

    async def rest():
        async for _ in telling:
            pass

    try:
        await process.lives(rest())
    except Died:
        pass
    return world, process, teller


def steps_of(story):
    async def count():
        _, process, _ = await tell(story, None, after=False)
        return process.steps.taken

    return simulate(count())


@pytest.mark.slow
@pytest.mark.parametrize("enabled", [True, False], ids=["flag on", "flag off"])
@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_a_crash_at_any_step_loses_no_acknowledged_commit(story, enabled):
    async def scenario(last, after):
        world, _, teller = await tell(story, last, after=after)
        where = f"step {last}, {'after' if after else 'before'} it"
        heir = world.store(enabled=enabled)
        found = (await heir.load("g")).offsets.get(KEY)
        offset = 0 if found is None else found.offset
        assert teller.acknowledged <= offset <= teller.tried, where
        await heir.advance("g", {KEY: at(1000)})
        assert (await world.store().load("g")).offsets[KEY] == at(1000), where

    count = steps_of(story)
    assert count > 5
    for last in range(1, count + 1):
        for after in (False, True):
            simulate(scenario(last, after))


@pytest.mark.parametrize("story", [roll, let_go_and_come_back, roll_with_a_snapshot])
def test_at_every_step_the_newest_value_is_in_exactly_one_place(story):
    """Return the segment that the node names, or the node if it names none."""

    async def scenario(last):
        world, _, teller = await tell(story, last, after=False)
        if f"{GROUPS}/g" not in world.tree.nodes:
            assert teller.acknowledged == 0
            return
        record = world.node("g")
        if record.HasField("segment_id"):
            logs = world.process().logs
            assert len(await logs.recover(record.segment_id)) <= 8
        found = (await world.store().read("g")).offsets.get(KEY)
        assert (0 if found is None else found.offset) >= teller.acknowledged

    for last in range(1, steps_of(story) + 1):
        simulate(scenario(last))


@pytest.mark.slow
@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_a_crash_of_the_heir_at_any_step_of_its_claim_loses_nothing(story):
    async def scenario(first_last, heir_last, after):
        world, _, teller = await tell(story, first_last, after=True)
        heir = world.process()
        heir.steps.last, heir.steps.after = heir_last, after
        try:
            await heir.lives(heir.store().load("g"))
        except Died:
            pass
        found = (await world.store().load("g")).offsets.get(KEY)
        assert (0 if found is None else found.offset) >= teller.acknowledged
        return heir.steps.taken

    count = steps_of(story)
    for first_last in range(1, count + 1, 2):
        heir_last = 1
        while simulate(scenario(first_last, heir_last, heir_last % 2 == 0)) >= heir_last:
            heir_last += 1


async def come_back_often(process):
    teller = Teller(process.store())
    yield teller
    for _ in range(3):
        await teller.store.load("g")
        await teller.commit()
        await teller.store.unload("g")


def test_a_crash_while_history_is_copied_loses_and_doubles_nothing_of_it():
    async def scenario(last, after):
        world, _, teller = await tell(come_back_often, last, after=after)
        heir = world.store()
        await heir.load("g")
        await heir.unload("g")
        changes = [each.committed.offset for each in (await heir.history("g")).changes]
        assert changes == list(range(1, len(changes) + 1)), f"step {last}"
        assert teller.acknowledged <= len(changes) <= teller.tried, f"step {last}"

    for last in range(1, steps_of(come_back_often) + 1):
        for after in (False, True):
            simulate(scenario(last, after))


async def test_kill_after_an_acknowledgement_and_the_commit_is_read_back():
    world = LogWorld()
    process = world.process()
    store = process.store()
    await store.load("g")
    await store.advance("g", {KEY: at(7)})
    process.kill()
    assert (await world.store().load("g")).offsets == {KEY: at(7)}


def test_a_native_subscriber_survives_a_crash_at_any_step():
    async def scenario(last):
        world = LogWorld()
        world.put(f"{STREAM}/subscribers/app", encode_subscriber(Dlsn(1, 1, 0)))
        process = world.process()
        process.steps.last, process.steps.after = last, True
        acknowledged = [Dlsn(1, 1, 0)]

        async def story():
            store = process.store(native=True, segment_bytes=150)
            await store.load("app")
            for n in range(2, 9):
                await store.advance("app", {WHOLE_STREAM: CommittedOffset(Dlsn(1, n, 0))})
                acknowledged.append(Dlsn(1, n, 0))
            await store.close()

        try:
            await process.lives(story())
        except Died:
            pass
        for enabled in (True, False):
            heir = world.store(native=True, enabled=enabled)
            assert (await heir.load("app")).offsets[WHOLE_STREAM].position >= acknowledged[-1]
        return process.steps.taken

    last = 1
    while simulate(scenario(last)) >= last:
        last += 1
    assert last > 20


def test_ledgers_that_a_crash_left_to_nobody_carry_their_subscription():
    async def scenario(last):
        world, _process, _ = await tell(roll_with_a_snapshot, last, after=True)
        path = f"{GROUPS}/g"
        record = world.tree.nodes.get(path)
        named = set()
        if record is not None and is_log_node(record.data):
            named = ledgers_named(world.node("g"))
        for ledger in set(await world.ledgers()) - named:
            metadata = await world.process().client.read_metadata(ledger)
            assert metadata.custom["subscription"] == path.encode()

    for last in range(1, steps_of(roll_with_a_snapshot) + 1):
        simulate(scenario(last))


async def test_a_lost_reply_is_no_lost_claim():
    world = LogWorld()
    process = world.process()
    process.metadata.faults.reply_lost = 0.2
    told = 0
    for n in range(1, 40):
        store = process.store(segment_bytes=100)
        try:
            await store.load("g")
            await store.advance("g", {KEY: at(n)})
            told = n
            await store.advance("g", {KEY: at(n)})
        except LedgerError:
            await asyncio.sleep(1)
        else:
            continue
    process.metadata.faults.reply_lost = 0.0
    assert told > 20
    assert (await world.store().load("g")).offsets[KEY].offset >= told
