"""Goal: the history of a subscriber is whole, in order and in few ledgers.
Method: a simulated cluster on virtual time; ledgers are counted, and offsets of any time restored.
"""

import asyncio

import pytest

from ledger.errors import MetadataUnavailable, NotOwner
from subscriptions.segments.log_node import ledgers_named
from subscriptions.store import offsets_at
from tests.subscriptions.test_log_store import KEY, at, keys, loaded, log_world


async def test_history_tells_every_change_in_order_over_many_segments():
    async with log_world() as world:
        _, store = await loaded(world, segment_bytes=600)
        for n in range(1, 41):
            await store.advance("g", {KEY: at(n)}, b"note %d" % n if n % 10 == 0 else None)
            await asyncio.sleep(1)
        await store.unload("g")
        history = await store.history("g")
    assert [each.committed.offset for each in history.changes if each.key] == list(range(1, 41))
    assert [each.note for each in history.changes if each.key is None] == [
        b"note 10",
        b"note 20",
        b"note 30",
        b"note 40",
    ]
    times = [each.time_ms for each in history.changes]
    assert times == sorted(times)


async def test_positions_of_any_time_in_the_history_can_be_had_again():
    async with log_world() as world:
        process, store = await loaded(world, segment_bytes=600)
        one, two = keys(2)
        seen = []
        for n in range(1, 31):
            await store.advance("g", {one: at(n), two: None if n % 3 == 0 else at(100 + n)})
            seen.append((process.clock.now_ms(), (await store.read("g")).offsets))
            await asyncio.sleep(1)
        await store.unload("g")
        history = await store.history("g")
        assert offsets_at(history, seen[0][0] - 60_000) is None
        for now_ms, positions in seen:
            assert offsets_at(history, now_ms) == positions


@pytest.mark.parametrize("node_state_bytes", [256 * 1024, 200])
async def test_segments_are_kept_for_their_time_and_then_their_ledgers_are_gone(node_state_bytes):
    async with log_world() as world:
        process, store = await loaded(
            world, history_ms=3_600_000, idle_s=60.0, node_state_bytes=node_state_bytes
        )
        one, two, *_ = keys(4)
        await store.advance("g", {key: at(1) for key in keys(4)})
        for n in range(2, 11):
            await store.advance("g", {one: at(n)})
            await asyncio.sleep(1200)
        now_ms = process.clock.now_ms()
        assert set(await world.ledgers()) == ledgers_named(world.node("g"))
        history = await store.history("g")
        assert now_ms - 3 * 3_600_000 < history.since_ms < now_ms - 3_000_000
        assert offsets_at(history, now_ms)[two] == at(1)  # known from the segment's beginning
        await asyncio.sleep(3 * 3600)
        assert not world.node("g").past_segments
        assert (await store.load("g")).offsets[one] == at(10)


async def test_a_subscriber_that_commits_rarely_keeps_its_history_in_few_ledgers():
    async with log_world() as world:
        process, store = await loaded(world)
        one, two = keys(2)
        seen = []
        for n in range(1, 101):
            await store.advance("g", {one: at(n), two: None if n % 3 == 0 else at(100 + n)}, b"n")
            seen.append((process.clock.now_ms(), (await store.read("g")).offsets))
            await store.unload("g")
            await asyncio.sleep(3600)
            await store.load("g")
        assert len(await world.ledgers()) <= 2
        assert set(await world.ledgers()) == ledgers_named(world.node("g"))
        history = await store.history("g")
        assert len([each for each in history.changes if each.key == one]) == 100
        for now_ms, positions in seen:
            assert offsets_at(history, now_ms) == positions


@pytest.mark.parametrize("carry_bytes", [0, 128 * 1024])
async def test_a_clock_that_jumps_and_is_set_back_keeps_the_history(carry_bytes):
    week_ms = 7 * 24 * 3_600_000
    async with log_world() as world:
        process, store = await loaded(world, history_ms=week_ms, carry_bytes=carry_bytes)
        for n in range(1, 6):
            await store.advance("g", {KEY: at(n)})
            await store.unload("g")
            await asyncio.sleep(60)
            await store.load("g")
        process.clock.epoch_ms += week_ms + 3_600_000
        await store.advance("g", {KEY: at(6)})
        await store.unload("g")
        process.clock.epoch_ms -= week_ms + 3_600_000
        history = await store.history("g")
        assert [each.committed.offset for each in history.changes] == list(range(1, 7))


async def test_rare_commits_past_their_time_become_the_beginning_of_the_history():
    async with log_world() as world:
        process, store = await loaded(world, history_ms=10 * 3_600_000)
        one, two = keys(2)
        await store.advance("g", {two: at(7)})
        for n in range(1, 31):
            await store.advance("g", {one: at(n)})
            await asyncio.sleep(3600)
        history = await store.history("g")
        now_ms = process.clock.now_ms()
        assert 10 <= len(history.changes) <= 12
        assert offsets_at(history, now_ms - 10 * 3_600_000)[two] == at(7)
        assert offsets_at(history, now_ms)[one] == at(30)
        assert len(await world.ledgers()) <= 2


async def test_large_segments_are_not_copied():
    async with log_world() as world:
        _, store = await loaded(world, carry_bytes=400)
        for n in range(1, 41):
            await store.advance("g", {KEY: at(n)})
            await asyncio.sleep(3600)
        assert 4 <= len(await world.ledgers()) <= 20
        history = await store.history("g")
        assert [each.committed.offset for each in history.changes if each.key] == list(range(1, 41))


async def test_a_large_closed_segment_is_not_even_read():
    async with log_world() as world:
        process, store = await loaded(world, segment_bytes=2000, carry_bytes=200)
        read, asked = process.port.read_many, []

        async def counted(bookie, ledger, *rest, **how):
            asked.append(ledger)
            return await read(bookie, ledger, *rest, **how)

        process.port.read_many = counted
        for n in range(1, 101):
            await store.advance("g", {KEY: at(n)})
        assert len(world.node("g").past_segments) >= 3
        assert not asked


async def test_a_commit_waits_only_shortly_for_bookies_that_do_not_answer_about_the_history():
    async with log_world() as world:
        process, store = await loaded(world, carry_wait_s=0.5)
        await store.advance("g", {KEY: at(1)})
        await store.unload("g")
        [old] = await world.ledgers()
        read, asked, loop = process.port.read_many, [], asyncio.get_running_loop()

        async def silent(bookie, ledger, *rest, **how):
            if ledger == old:
                asked.append(bookie)
                await asyncio.Event().wait()
            return await read(bookie, ledger, *rest, **how)

        process.port.read_many = silent
        await store.load("g")
        began_s = loop.time()
        await store.advance("g", {KEY: at(2)})
        assert asked
        assert loop.time() - began_s < 0.8, "virtual time: a read gives up after a second"
        process.port.read_many = read
        await store.unload("g")
        history = await store.history("g")
        assert [each.committed.offset for each in history.changes] == [1, 2]


async def test_a_copy_whose_owner_died_loses_nothing_of_the_history():
    async with log_world() as world:
        _, store = await loaded(world)
        for n in range(1, 6):
            await store.advance("g", {KEY: at(n)})
            await asyncio.sleep(3600)
        await store.advance("g", {KEY: at(6)})
        _, other = await loaded(world)
        history = await other.history("g")
        assert [each.committed.offset for each in history.changes if each.key] == list(range(1, 7))
        assert (await other.load("g")).offsets[KEY] == at(6)


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("heir_commits", [False, True])
async def test_a_lost_reply_and_a_takeover_keep_the_copied_history(applied, heir_commits):
    async with log_world() as world:
        process, store = await loaded(world)
        for n in range(1, 6):
            await store.advance("g", {KEY: at(n)})
            await store.unload("g")
            await asyncio.sleep(3600)
            await store.load("g")
        heir, multi = world.store(), process.metadata.multi
        lost = []

        async def without_reply(ops):
            if lost:
                return await multi(ops)
            lost.append(ops)
            if applied:
                await multi(ops)
            await heir.load("g")
            raise MetadataUnavailable("the connection is lost")

        process.metadata.multi = without_reply
        with pytest.raises(NotOwner):
            await store.advance("g", {KEY: at(6)})
        named, stored = ledgers_named(world.node("g")), set(await world.ledgers())
        assert named <= stored
        assert len(stored - named) == applied, "the old segment is an orphan; the new one is not"
        if heir_commits:
            await heir.advance("g", {KEY: at(6)})
        await heir.unload("g")
        history = await heir.history("g")
        offsets = [each.committed.offset for each in history.changes if each.key]
        assert offsets == list(range(1, 7 if heir_commits else 6))


async def test_commits_go_on_when_the_last_closed_segment_is_gone():
    async with log_world() as world:
        process, store = await loaded(world)
        await store.advance("g", {KEY: at(1)})
        await store.unload("g")
        (ledger,) = await world.ledgers()
        await process.logs.delete(ledger)
        await store.load("g")
        await store.advance("g", {KEY: at(2)})
        assert (await store.load("g")).offsets[KEY] == at(2)


@pytest.mark.parametrize("stored", [0, 1], ids=["nothing", "the copy"])
async def test_the_node_names_a_copy_only_when_it_is_durable_and_readers_see_it(stored):
    async with log_world() as world:
        process, store = await loaded(world)
        await store.advance("g", {KEY: at(1)})
        await store.unload("g")
        await store.load("g")
        before = world.node("g").past_segments
        add = process.port.add

        def add_first(bookie, ledger, entry, *rest, **how):
            """Later entries reach no bookie."""
            if entry < stored:
                add(bookie, ledger, entry, *rest, **how)

        process.port.add = add_first
        durable = store.advance("g", {KEY: at(2)})
        await asyncio.sleep(0.1)
        assert not durable.done()
        assert world.node("g").past_segments == before
        durable.cancel()


async def test_a_segment_without_a_change_keeps_the_history_that_it_began_with():
    async with log_world() as world:
        _, store = await loaded(world)
        await store.advance("g", {KEY: at(1)})
        await store.unload("g")
        await store.load("g")
        await store.advance("g", {})
        await store.unload("g")
        history = await store.history("g")
        assert [each.committed.offset for each in history.changes] == [1]


async def test_a_reader_never_misses_history_that_is_being_copied():
    async with log_world() as world:
        _, store = await loaded(world)
        reader = world.store()
        await store.advance("g", {KEY: at(1)})
        await store.unload("g")

        async def commit_and_rest():
            for n in range(2, 30):
                await store.load("g")
                await store.advance("g", {KEY: at(n)})
                await store.unload("g")

        async def read(pause_s):
            while not committing.done():
                changes = [each.committed.offset for each in (await reader.history("g")).changes]
                assert changes == list(range(1, len(changes) + 1))
                assert changes
                await asyncio.sleep(pause_s)

        committing = asyncio.ensure_future(commit_and_rest())
        await asyncio.gather(committing, *(read(n * 0.00017) for n in range(1, 25)))
