"""Goal: a bookie with an old copy of its directory starts in seconds though 10,000 closed ledgers
name it, denies nothing, and repair takes it out of limbo by itself.

Method: ZooKeeper, three bookies and `bookie audit` as real processes; the daily full check was just
made, and the bookie is back before the auditor starts. The figures are printed.
"""

import asyncio
import shutil
import time

import pytest

from ledger.adapters.open_bookies import open_bookies
from ledger.client import metadata_format
from ledger.core.entry_format import master_key
from ledger.core.ledger_metadata import Fragment, LedgerMetadata
from ledger.ports.bookies import BookieTransport, Status
from ledger.registry.discovery import Discovery
from ledger.repair.auditor import FULL_CHECK_TIME
from tests.ledger.zookeeper_rig import lasting
from tests.peers.bookie import BookieProcess
from tests.peers.processes import wait_until
from tests.repair.test_processes import Cluster
from tests.sim.bookie_world import entry_buffers

pytestmark = [pytest.mark.proof, pytest.mark.real_loop]

LEDGERS = 10_000
SAMPLE = range(1, LEDGERS + 1, 97)
PAYLOAD = b"x" * 100
AT_ONCE = 500


class View:
    """The metadata and the bookies of a cluster, as a client has them."""

    def __init__(self, zookeeper):
        self.zookeeper = zookeeper

    async def __aenter__(self):
        self.store = await lasting(self.zookeeper)
        self.discovery = Discovery(self.store)
        await self.discovery.start()
        self.bookies = open_bookies(self.discovery.registered, BookieTransport.TCP, None)
        return self

    async def __aexit__(self, *_):
        await self.bookies.close()
        await self.discovery.stop()
        await self.store.close()

    async def fill(self, names):
        """So many closed 3/3/2 ledgers with one entry each, on all three bookies."""
        while not set(names) <= self.discovery.registered().keys():
            await asyncio.sleep(0.05)
        for first in range(1, LEDGERS + 1, AT_ONCE):
            some = range(first, min(first + AT_ONCE, LEDGERS + 1))
            await asyncio.gather(*[self._name(ledger, names) for ledger in some])
            answers = [self._add(ledger, name) for ledger in some for name in names]
            assert set(await asyncio.gather(*answers)) == {Status.OK}

    async def _name(self, ledger, names):
        fragment = Fragment(0, tuple(names))
        sizes = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2}
        metadata = LedgerMetadata(ledger=ledger, fragments=(fragment,), **sizes)
        data = metadata_format.encode(metadata.close(0, len(PAYLOAD)))
        path = metadata_format.ledger_path(ledger)
        await self.store.create(path, data, parents=True)

    def _add(self, ledger, name):
        done = asyncio.get_running_loop().create_future()
        body = entry_buffers(ledger, 0, PAYLOAD)
        self.bookies.add(name, ledger, 0, master_key(b""), body, done.set_result, recovery=True)
        return done

    async def answers(self, name):
        """What the bookie answers about the entry of some of the ledgers."""
        replies = await asyncio.gather(*[self.bookies.read(name, each, 0) for each in SAMPLE])
        return {reply.status for reply in replies}


async def off_loop(call, *words):
    return await asyncio.get_running_loop().run_in_executor(None, call, *words)


async def timed(call, *words):
    """The seconds that a call takes that waits for a process."""
    began = time.perf_counter()
    await off_loop(call, *words)
    return time.perf_counter() - began


@pytest.mark.timeout(1200)
async def test_a_start_with_an_old_directory_takes_seconds_and_its_limbo_ends(zookeeper, tmp_path):
    cluster = Cluster(zookeeper, tmp_path)
    cluster.bookies.pop()
    try:
        await off_loop(cluster.start)
        bookie: BookieProcess = cluster.bookies[0]
        await off_loop(bookie.stop)
        shutil.copytree(bookie.data, tmp_path / "copy")
        await off_loop(bookie.start)
        async with View(cluster.zookeeper) as view:
            await view.fill([each.id for each in cluster.bookies])
            audit = await off_loop(cluster.start_audit)
            while not await view.store.exists(FULL_CHECK_TIME):
                await asyncio.sleep(0.1)
            audit.kill()
            await off_loop(bookie.stop)
            plain_s = await timed(bookie.start)
            await off_loop(bookie.stop)
            shutil.rmtree(bookie.data)
            shutil.copytree(tmp_path / "copy", bookie.data)
            old_s = await timed(bookie.start)
            assert f"ledgers={LEDGERS}" in bookie.output()
            while bookie.id not in view.discovery.registered():
                await asyncio.sleep(0.05)
            assert await view.answers(bookie.id) == {Status.UNKNOWN_LEDGER_STATE}
            began = time.perf_counter()
            await off_loop(cluster.start_audit)
            while await view.answers(bookie.id) != {Status.OK}:
                await asyncio.sleep(1)
            await off_loop(wait_until, lambda: not cluster.lacking(), "no ledger is left", 600.0)
            repair_s = time.perf_counter() - began
        print(
            f"start with {LEDGERS} closed ledgers: {plain_s:.2f} s; from an old directory "
            f"{old_s:.2f} s; their repair {repair_s:.1f} s"
        )
    finally:
        await off_loop(cluster.stop)
