"""Goal: a copy that rotted on a real bookie is put right in its place, and only by a repair.

Method: real bookies on simulated disks; bytes flip in their log files.
"""

import asyncio
from dataclasses import replace
from random import Random

import pytest

from ledger.bookie.bookie import Bookie
from ledger.bookie.in_process import LocalBookies
from ledger.client.metadata_format import encode, ledger_path
from ledger.core.entry_format import master_key
from ledger.core.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from ledger.ids import BookieId
from ledger.ports.bookies import Status
from ledger.repair.replication_worker import RepairStatus, ReplicationWorker
from ledger.repair.underreplicated_ledgers import UnderreplicatedLedgers
from tests.ledger.bookie_rig import KEY, SMALL, add, started_bookie
from tests.sim.bookie_world import entry_bytes
from tests.sim.disk import SimDisk
from tests.sim.loop import SimClock
from tests.sim.metadata import MetadataTree, SimMetadata
from tests.sim.table import SimTable

PAYLOAD = b"payload " * 4


def rot(disk, ledger, entry):
    """One bit of the entry's payload flips, wherever it lies."""
    body = entry_bytes(ledger, entry, PAYLOAD)
    for name in disk.names():
        if name.startswith("log-"):
            file = disk.open(name)
            data = file.read_now(0, file.size())
            at = bytes(data).find(body)
            if at >= 0:
                position = at + len(body) - 1
                file.write([bytes([body[-1] ^ 1])], position)
                return
    raise AssertionError("not found in any log file")


async def test_a_repair_puts_a_sound_copy_in_the_place_of_a_rotten_one():
    async with started_bookie() as (rig, bookie):
        assert await rig.add(1, 0, PAYLOAD) is Status.OK
        rot(rig.disk, 1, 0)
        assert await rig.add(1, 0, PAYLOAD) is Status.IO_ERROR  # only a repair replaces it
        assert await rig.add(1, 0, PAYLOAD, recovery=True) is Status.OK
        assert (await bookie.read(1, 0)).body == entry_bytes(1, 0, PAYLOAD)
        bookie = await rig.restart()
        assert (await bookie.read(1, 0)).body == entry_bytes(1, 0, PAYLOAD)


async def test_a_sound_copy_is_never_replaced_by_another_one():
    async with started_bookie() as (rig, bookie):
        assert await rig.add(1, 0, PAYLOAD) is Status.OK
        assert await rig.add(1, 0, b"other", recovery=True) is Status.BAD_REQUEST
        assert (await bookie.read(1, 0)).body == entry_bytes(1, 0, PAYLOAD)
        assert bookie.conflicts == 1


async def test_a_rotten_copy_is_not_replaced_by_one_that_does_not_verify_either():
    async with started_bookie() as (rig, bookie):
        assert await rig.add(1, 0, PAYLOAD) is Status.OK
        rot(rig.disk, 1, 0)
        bad = bytearray(entry_bytes(1, 0, PAYLOAD))
        bad[40] ^= 1
        done = asyncio.get_running_loop().create_future()
        bookie.add(1, 0, KEY, [bytes(bad)], done.set_result, recovery=True)
        assert await done is Status.BAD_REQUEST


@pytest.mark.parametrize("cached", [0, 1 << 20])
async def test_the_worker_mends_a_rotten_copy_where_it_lies_whatever_memory_has(cached):
    disks = [SimDisk(Random(number)) for number in range(3)]
    nodes = []
    for number, disk in enumerate(disks):
        instance = bytes([number]) * 16
        node = Bookie(
            *(disk, SimTable(Random(1)), SimClock(), lambda instance=instance: instance),
            name=f"b{number}",
            config=replace(SMALL, write_cache_bytes=cached),
        )
        await node.start(boot_id="boot")
        nodes.append(node)
    for node in nodes:
        for entry in range(3):
            assert await add(node, 1, entry, PAYLOAD, key=master_key(b"")) is Status.OK
    rot(disks[1], 1, 1)
    store = SimMetadata(MetadataTree())
    names = tuple(BookieId(node.bookie_id) for node in nodes)
    metadata = LedgerMetadata(
        ledger=1,
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        fragments=(Fragment(0, names),),
        state=LedgerState.CLOSED,
        last_entry=2,
        length=3 * len(PAYLOAD),
    )
    await store.create(ledger_path(1), encode(metadata), parents=True)
    underreplicated = UnderreplicatedLedgers(store, SimClock(), "test")
    await underreplicated.report_corrupt(1, [names[1]])
    worker = ReplicationWorker(store, LocalBookies(nodes), SimClock(), "worker", Random(1).random)
    assert (await worker.repair(1)).result is RepairStatus.REPAIRED
    assert (await nodes[1].read(1, 1)).body == entry_bytes(1, 1, PAYLOAD)
    on_disk = await nodes[1].read_many(1, 1, 1, 99, from_disk=True)
    assert [bytes(body) for body in on_disk.bodies] == [entry_bytes(1, 1, PAYLOAD)]
    assert await underreplicated.ledgers() == []
    for node in nodes:
        await node.stop()
