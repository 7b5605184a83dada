"""Goal: every subscriptions store implements the port, for groups and for native subscribers.
Method: one suite, run on each store, over metadata in memory and over the embedded one.
"""

import asyncio
import contextlib
from typing import NamedTuple
from uuid import UUID

import pytest

from ledger.adapters.sqlite.sqlite_metadata import SqliteMetadata
from ledger.errors import NotOwner
from ledger.ids import Dlsn
from subscriptions.committed_offset import WHOLE_STREAM, CommittedOffset, TopicIdPartition
from subscriptions.store import offsets_at
from tests.subscriptions.log_world import LogWorld

TOPIC = UUID("0f0e0d0c-0b0a-0908-0706-050403020100")


class Kind(NamedTuple):
    """How one store is made, and its offsets: `at(n)` rises with n."""

    native: bool
    logs: bool
    key: TopicIdPartition
    at: object

    def make(self, world):
        return world.store(native=self.native, enabled=self.logs)


def group_position(n):
    return CommittedOffset(Dlsn(1, n, 0), n, 3, f"note {n} \N{SNOWMAN}", 1_700_000_000_000 + n, n)


def native_position(n):
    return CommittedOffset(Dlsn(1, n, 0))


KINDS = {
    "groups-znode": Kind(False, False, TopicIdPartition(TOPIC, 7), group_position),
    "groups-log": Kind(False, True, TopicIdPartition(TOPIC, 7), group_position),
    "stream-znode": Kind(True, False, WHOLE_STREAM, native_position),
    "stream-log": Kind(True, True, WHOLE_STREAM, native_position),
}


@contextlib.asynccontextmanager
async def memory(tmp_path):
    yield LogWorld()


@contextlib.asynccontextmanager
async def sqlite(tmp_path):
    metadata = SqliteMetadata(tmp_path / "metadata.db")
    try:
        yield LogWorld(metadata)
    finally:
        await metadata.close()


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def kind(request):
    return request.param


STORES = [memory, pytest.param(sqlite, marks=pytest.mark.real_loop)]


@pytest.fixture(params=STORES, ids=["memory", "sqlite"])
def opened(request, tmp_path):
    """Opens a world over fresh metadata, as an async context manager."""
    return lambda: request.param(tmp_path)


async def test_an_unknown_subscriber_has_no_positions(kind, opened):
    async with opened() as world:
        store = kind.make(world)
        for found in (await store.read("a"), await store.load("a")):
            assert found == ({}, b"", False, {})
        assert await store.list() == []


async def test_what_was_advanced_is_read_back_by_another_store(kind, opened):
    async with opened() as world:
        store = kind.make(world)
        await store.load("a")
        await store.advance("a", {kind.key: kind.at(5)})
        await store.close()
        other = kind.make(world)
        assert (await other.read("a")).offsets == {kind.key: kind.at(5)}
        assert (await other.load("a")).offsets == {kind.key: kind.at(5)}


async def test_loaded_offsets_show_each_change_once_it_is_durable_and_only_the_store_changes_them(
    kind, opened
):
    async with opened() as world:
        store = kind.make(world)
        offsets = (await store.load("a")).offsets
        durable = store.advance("a", {kind.key: kind.at(1)})
        assert not offsets
        await durable
        assert offsets == {kind.key: kind.at(1)}
        assert kind.key in offsets
        assert len(offsets) == 1
        with pytest.raises(TypeError):
            offsets[kind.key] = kind.at(2)
        read = (await store.read("a")).offsets
        await store.advance("a", {kind.key: kind.at(3)})
        assert offsets == {kind.key: kind.at(3)}
        assert read == {kind.key: kind.at(1)}
        if not kind.native:
            await store.advance("a", {kind.key: None})
            assert not offsets


async def test_the_last_of_many_advances_wins(kind, opened):
    async with opened() as world:
        store = kind.make(world)
        await store.load("a")
        await asyncio.gather(*[store.advance("a", {kind.key: kind.at(n)}) for n in range(1, 50)])
        assert (await store.read("a")).offsets == {kind.key: kind.at(49)}
        await store.advance("a", {kind.key: kind.at(50)})
        assert (await store.read("a")).offsets == {kind.key: kind.at(50)}


async def test_only_the_store_that_loaded_last_and_wrote_can_write(kind, opened):
    async with opened() as world:
        old, new = kind.make(world), kind.make(world)
        await old.load("a")
        await old.advance("a", {kind.key: kind.at(1)})
        await new.load("a")
        await new.advance("a", {kind.key: kind.at(2)})
        for n in (3, 4):
            with pytest.raises(NotOwner):
                await old.advance("a", {kind.key: kind.at(n)})
        assert (await new.read("a")).offsets == {kind.key: kind.at(2)}


async def test_a_store_that_lost_a_subscriber_can_load_it_again(kind, opened):
    async with opened() as world:
        old, new = kind.make(world), kind.make(world)
        for store, n in ((old, 1), (new, 2)):
            await store.load("a")
            await store.advance("a", {kind.key: kind.at(n)})
        with pytest.raises(NotOwner):
            await old.advance("a", {kind.key: kind.at(3)})
        assert (await old.load("a")).offsets == {kind.key: kind.at(2)}
        await old.advance("a", {kind.key: kind.at(4)})
        assert (await old.read("a")).offsets == {kind.key: kind.at(4)}
        assert (await new.load("a")).offsets == {kind.key: kind.at(4)}


async def test_losing_one_subscriber_leaves_the_others(kind, opened):
    async with opened() as world:
        old, new = kind.make(world), kind.make(world)
        await asyncio.gather(old.load("a"), old.load("b"))
        await old.advance("a", {kind.key: kind.at(1)})
        await new.load("a")
        await new.advance("a", {kind.key: kind.at(2)})
        lost, kept = await asyncio.gather(
            old.advance("a", {kind.key: kind.at(3)}),
            old.advance("b", {kind.key: kind.at(3)}),
            return_exceptions=True,
        )
        assert isinstance(lost, NotOwner)
        assert kept is None
        assert (await old.read("b")).offsets == {kind.key: kind.at(3)}


async def test_a_deleted_subscriber_is_gone_and_can_come_back(kind, opened):
    async with opened() as world:
        store = kind.make(world)
        await store.load("a")
        await store.advance("a", {kind.key: kind.at(5)})
        assert await store.delete("a") is True
        assert await store.list() == []
        assert (await store.read("a")).exists is False
        await store.advance("a", {kind.key: kind.at(1)})
        assert (await store.read("a")).offsets == {kind.key: kind.at(1)}


async def test_a_delete_comes_after_what_was_accepted_before_and_before_what_comes_later(
    kind, opened
):
    async with opened() as world:
        store = kind.make(world)
        await store.load("a")
        await store.advance("a", {kind.key: kind.at(5)})
        first = store.advance("a", {kind.key: kind.at(6)})
        deleting = asyncio.ensure_future(store.delete("a"))
        await asyncio.sleep(0)
        last = store.advance("a", {kind.key: kind.at(2)})
        await asyncio.gather(first, deleting, last)
        assert (await store.read("a")).offsets == {kind.key: kind.at(2)}


async def test_deleting_an_unknown_subscriber_says_that_it_was_absent(kind, opened):
    async with opened() as world:
        assert await kind.make(world).delete("a") is False


async def test_any_name_is_safe(kind, opened):
    names = ["", ".", "..", "a/b", "%", "%2E", "a b", "\0", "\N{SNOWMAN}", "x" * 300, "ä", "a%2Fb"]

    async with opened() as world:
        store = kind.make(world)
        for n, name in enumerate(names, 1):
            await store.load(name)
            await store.advance(name, {kind.key: kind.at(n)})
        assert sorted(await store.list()) == sorted(names)
        for n, name in enumerate(names, 1):
            assert (await store.read(name)).offsets == {kind.key: kind.at(n)}


async def test_closing_makes_durable_what_was_accepted(kind, opened):
    async with opened() as world:
        store = kind.make(world)
        await store.load("a")
        accepted = store.advance("a", {kind.key: kind.at(5)})
        await store.close()
        assert accepted.done()
        assert (await kind.make(world).read("a")).offsets == {kind.key: kind.at(5)}


async def test_what_was_unloaded_can_be_loaded_anywhere(kind, opened):
    async with opened() as world:
        store, other = kind.make(world), kind.make(world)
        await store.load("a")
        accepted = store.advance("a", {kind.key: kind.at(5)})
        await store.unload("a")
        assert accepted.done()
        assert (await other.read("a")).offsets == {kind.key: kind.at(5)}
        assert (await other.load("a")).offsets == {kind.key: kind.at(5)}
        await other.advance("a", {kind.key: kind.at(6)})
        assert (await other.read("a")).offsets == {kind.key: kind.at(6)}


async def test_unloading_what_is_not_loaded_does_nothing(kind, opened):
    async with opened() as world:
        store = kind.make(world)
        await store.unload("a")
        assert await store.list() == []


async def test_a_history_ends_with_what_is_so_now(kind, opened):
    async with opened() as world:
        store = kind.make(world)
        assert (await store.history("a")).offsets == {}
        await store.load("a")
        for n in (5, 6):
            await store.advance("a", {kind.key: kind.at(n)})
        await store.unload("a")
        history = await store.history("a")
        found = offsets_at(history, 4_000_000_000_000)
        assert found == {kind.key: kind.at(6)}


async def test_there_is_room_when_nothing_waits(kind, opened):
    async with opened() as world:
        store = kind.make(world)
        await store.room()
        await store.load("a")
        await asyncio.gather(*[store.advance("a", {kind.key: kind.at(n)}) for n in range(1, 50)])
        await store.room()
        assert (await store.read("a")).offsets == {kind.key: kind.at(49)}
