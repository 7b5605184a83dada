"""Goal: the znode store writes few multis, all or nothing, and exactly DistributedLog's bytes.
Method: metadata in memory that counts and fails on demand; virtual time where waiting matters.
"""

import asyncio
from uuid import UUID

import pytest

from ledger.errors import CorruptFormat, MetadataUnavailable, NotOwner
from ledger.ids import Dlsn
from ledger.ports.metadata import Node
from subscriptions.committed_offset import WHOLE_STREAM, CommittedOffset, TopicIdPartition
from subscriptions.znodes.znode_format import seal
from subscriptions.znodes.znode_store import GroupZnodeStore, NativeZnodeStore
from tests.subscriptions.memory_metadata import MemoryMetadata

TOPIC = UUID(int=5)


def keys(count):
    return [TopicIdPartition(TOPIC, n) for n in range(count)]


async def test_one_commit_of_many_partitions_is_one_multi():
    metadata = MemoryMetadata()
    store = GroupZnodeStore(metadata)
    await store.load("g")
    await store.advance("g", {key: CommittedOffset(offset=1) for key in keys(100)}, b"note")
    assert len(metadata.multis) == 1


async def test_commits_of_many_groups_that_wait_share_a_multi():
    metadata = MemoryMetadata(delay_s=0.010)
    store = GroupZnodeStore(metadata)
    names = [f"g{n}" for n in range(50)]
    for name in names:
        await store.load(name)
    first = store.advance("g0", {keys(1)[0]: CommittedOffset(offset=1)})
    await asyncio.sleep(0.001)  # the first is in flight
    rest = [store.advance(name, {keys(1)[0]: CommittedOffset(offset=2)}) for name in names]
    await asyncio.gather(first, *rest)
    assert len(metadata.multis) == 2


async def test_a_removed_position_is_gone_and_the_others_stay():
    store = GroupZnodeStore(MemoryMetadata())
    await store.load("g")
    one, two = keys(2)
    await store.advance("g", {one: CommittedOffset(offset=1), two: CommittedOffset(offset=2)})
    await store.advance("g", {one: None})
    assert (await store.read("g")).offsets == {two: CommittedOffset(offset=2)}
    await store.advance("g", {one: CommittedOffset(offset=3)})
    assert (await store.load("g")).offsets == {
        one: CommittedOffset(offset=3),
        two: CommittedOffset(offset=2),
    }


async def test_a_note_stays_until_it_is_written_again():
    store = GroupZnodeStore(MemoryMetadata())
    await store.load("g")
    await store.advance("g", {}, b"one")
    await store.advance("g", {keys(1)[0]: CommittedOffset(offset=1)})
    assert (await store.read("g")).note == b"one"
    await store.advance("g", {}, b"two")
    assert (await store.read("g")).note == b"two"


async def test_loading_a_group_shuts_the_old_owner_out_at_once():
    metadata = MemoryMetadata()
    old, new = GroupZnodeStore(metadata), GroupZnodeStore(metadata)
    await old.load("g")
    await old.advance("g", {keys(1)[0]: CommittedOffset(offset=1)})
    await new.load("g")
    with pytest.raises(NotOwner):
        await old.advance("g", {keys(1)[0]: CommittedOffset(offset=2)})


async def test_reading_a_group_claims_nothing():
    metadata = MemoryMetadata()
    owner = GroupZnodeStore(metadata)
    await owner.load("g")
    await owner.advance("g", {keys(1)[0]: CommittedOffset(offset=1)})
    before = metadata.nodes()
    await GroupZnodeStore(metadata).read("g")
    assert metadata.nodes() == before


async def test_after_an_unknown_outcome_nothing_is_written_until_the_group_is_loaded_again():
    metadata = MemoryMetadata()
    store = GroupZnodeStore(metadata)
    await store.load("g")
    metadata.failures.append(MetadataUnavailable("gone"))
    with pytest.raises(MetadataUnavailable):
        await store.advance("g", {keys(1)[0]: CommittedOffset(offset=1)})
    with pytest.raises(NotOwner):
        await store.advance("g", {keys(1)[0]: CommittedOffset(offset=2)})
    assert (await store.load("g")).offsets == {}
    await store.advance("g", {keys(1)[0]: CommittedOffset(offset=3)})


async def test_a_subscriber_loaded_again_does_not_share_the_fate_of_its_old_changes():
    metadata = MemoryMetadata()
    store = GroupZnodeStore(metadata)
    key = keys(1)[0]
    await store.load("g")
    await store.advance("g", {key: CommittedOffset(offset=1)})
    metadata.delay_s = 1.0
    first = store.advance("g", {key: CommittedOffset(offset=2)})
    await asyncio.sleep(0.1)
    second = store.advance("g", {key: CommittedOffset(offset=3)})  # waits for the first
    metadata.delay_s = 0.0
    await store.load("g")
    outcomes = await asyncio.gather(
        first,
        second,
        store.advance("g", {key: CommittedOffset(offset=4)}),
        return_exceptions=True,
    )
    assert (await store.read("g")).offsets == {key: CommittedOffset(offset=4)}
    assert [type(each) for each in outcomes] == [NotOwner, NotOwner, type(None)]


async def test_changes_that_a_deletion_replaces_make_room():
    metadata = MemoryMetadata(delay_s=1.0)
    store = GroupZnodeStore(metadata)
    await store.load("g")
    first = store.advance("g", {keys(1)[0]: CommittedOffset(offset=1)})
    await asyncio.sleep(0)  # in flight for a second
    second = store.advance("g", {key: CommittedOffset(offset=1) for key in keys(30_000)})
    await store.delete("g")
    await asyncio.gather(first, second)
    async with asyncio.timeout(1):
        await store.room()
    assert (await store.read("g")).offsets == {}


@pytest.mark.slow
async def test_a_full_store_makes_callers_wait_for_room():
    metadata = MemoryMetadata(delay_s=1.0)
    store = GroupZnodeStore(metadata)
    await store.load("g")
    loop = asyncio.get_running_loop()
    first = store.advance("g", {keys(1)[0]: CommittedOffset(offset=1)})
    await asyncio.sleep(0)  # in flight for a second
    second = store.advance("g", {key: CommittedOffset(offset=1) for key in keys(30_000)})
    started_s = loop.time()
    await store.room()
    waited_s = loop.time() - started_s
    await asyncio.gather(first, second)
    assert waited_s == 1.0


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "bytes"),
        (b"\x02" + seal(b"x")[1:], "format version 2"),
        (seal(b"x")[:-1] + b"y", "checksum"),
        (seal(b"\xff\xff"), "/gateway/groups/g"),
        (b"\0" * 1_000_000, "format version 0"),
    ],
)
async def test_a_node_that_does_not_parse_is_named(data, reason):
    metadata = MemoryMetadata()
    store = GroupZnodeStore(metadata)
    await store.load("g")
    key = keys(1)[0]
    await store.advance("g", {key: CommittedOffset(offset=1)})
    path = f"/gateway/groups/g/{key.topic_id.hex}-0"
    metadata.put(path, Node(data, 1))
    with pytest.raises(CorruptFormat, match=f"{path}.*"):
        await store.load("g")
    with pytest.raises(CorruptFormat, match=reason):
        await store.load("g")


async def test_an_offset_under_another_name_is_refused():
    metadata = MemoryMetadata()
    store = GroupZnodeStore(metadata)
    await store.load("g")
    await store.advance("g", {keys(1)[0]: CommittedOffset(offset=1)})
    parent = "/gateway/groups/g/"
    moved = metadata.nodes()[f"{parent}{TOPIC.hex}-0"]
    await metadata.delete(f"{parent}{TOPIC.hex}-0")
    metadata.put(f"{parent}{TOPIC.hex}-1", moved)
    with pytest.raises(CorruptFormat, match="holds the offset of"):
        await store.load("g")


async def test_a_native_subscriber_is_one_node_with_the_text_of_a_dlsn():
    metadata = MemoryMetadata()
    store = NativeZnodeStore(metadata, "/streams/ns/orders")
    await store.load("app")
    await store.advance("app", {WHOLE_STREAM: CommittedOffset(Dlsn(7, 42, 3))})
    assert (
        metadata.nodes()["/streams/ns/orders/subscribers/app"].data
        == b"AQAAAAAAAAAHAAAAAAAAACoAAAAAAAAAAw=="
    )


async def test_a_native_position_never_moves_back():
    metadata = MemoryMetadata()
    store = NativeZnodeStore(metadata, "/s")
    await store.load("app")
    for entry in (5, 3, 5):
        await store.advance("app", {WHOLE_STREAM: CommittedOffset(Dlsn(1, entry, 0))})
    assert (await store.read("app")).offsets == {WHOLE_STREAM: CommittedOffset(Dlsn(1, 5, 0))}
    assert len(metadata.multis) == 1


async def test_a_znode_of_the_proposals_form_is_read():
    from subscriptions.committed_offset import encode_dlsn
    from subscriptions.records_pb2 import Subscription

    metadata = MemoryMetadata()
    record = Subscription(name="app", last_commit_dlsn=encode_dlsn(Dlsn(2, 3, 4)))
    await metadata.create("/s/subscribers/app", record.SerializeToString(), parents=True)
    store = NativeZnodeStore(metadata, "/s")
    assert (await store.load("app")).offsets == {WHOLE_STREAM: CommittedOffset(Dlsn(2, 3, 4))}
    await store.advance("app", {WHOLE_STREAM: CommittedOffset(Dlsn(2, 9, 0))})
    assert metadata.nodes()["/s/subscribers/app"].data[:1] == b"A"
