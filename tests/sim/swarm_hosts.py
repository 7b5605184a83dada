"""What the processes of a swarm do: write, take over, follow, delete, collect, mend."""

import asyncio
from functools import partial

from ledger.bookie.gc.collector import collect, find_deleted_ledgers
from ledger.client import metadata_format
from ledger.errors import EntryUnknown, LedgerError, MetadataUnavailable, NoSuchEntry, NoSuchLedger
from ledger.node.cluster_ledgers import list_ledgers
from ledger.repair.auditor import Auditor
from ledger.repair.config import RepairConfig
from ledger.repair.replication_worker import ReplicationWorker
from ledger.tasks import start_restarting
from tests.sim.disk_bookie import DiskBookie, survived


async def write(world, host):
    """Some ledgers, one after another, as a stream rolls its segments."""
    for _ in range(world.draw.choice([1, 1, 2])):
        client = world.client(host)
        e, qw, qa = world.shape()
        writer = await world.retry(
            partial(client.create, ensemble_size=e, write_quorum=qw, ack_quorum=qa)
        )
        world.on_created(writer.ledger)
        if not await _add_entries(world, host, writer):
            return
        if writer.failed is not None and world.draw.random() < 0.5:
            try:
                await world.retry(partial(client.recover, writer.ledger))
            except NoSuchLedger:
                continue


async def _add_entries(world, host, writer):
    """Adds until it fails, closes or is killed (False); a zombie goes on after its takeover."""
    draw, checks = world.draw, world.checks
    session = world.cluster.sessions[host]
    pause_s = draw.choice([0.0, 0.002, 0.02, 0.1])
    dies = draw.random() < 0.2
    for _ in range(draw.randint(1, world.entries_max)):
        if session.gate is not None:
            await session.gate.wait()
        await writer.room()
        if writer.failed is not None:
            return True
        entry = writer.lap + 1

        def on_confirmed(error, entry=entry):
            if error is None:
                checks.on_acked(writer.ledger, entry, host)

        writer.on_failed = partial(checks.on_writer_failed, host, writer.ledger)
        writer.add([b"%d:" % entry, draw.randbytes(draw.randint(0, 8))], on_confirmed)
        if dies and draw.random() < 0.1:
            world.cluster.kill(host)
            return False
        if pause_s and draw.random() < 0.7:
            await asyncio.sleep(draw.expovariate(1 / pause_s))
    if draw.random() < 0.4:
        try:
            await writer.close()
        except LedgerError:
            pass
    return True


async def take_over(world, host, ledger):
    """Recovers the ledger; before that, perhaps, dies half way once."""
    draw = world.draw
    await asyncio.sleep(draw.expovariate(1 / 0.2))
    if draw.random() < 0.4:
        attempt = asyncio.create_task(world.client(host).recover(ledger))
        await asyncio.sleep(draw.expovariate(1 / 0.05))
        world.cluster.kill(host)
        attempt.cancel()
        await asyncio.gather(attempt, return_exceptions=True)
        await asyncio.sleep(draw.expovariate(1 / 0.1))
    client = world.client(host)
    try:
        reader = await world.retry(partial(client.recover, ledger))
    except NoSuchLedger:
        return
    last = world.checks.ledgers.metadata[ledger].last_entry
    if reader.last_add_confirmed != last:
        told = reader.last_add_confirmed
        world.checks.report("L5", f"{host} recovered {ledger} up to {told}, its end is {last}")


async def follow(world, host, ledger):
    """Reads every entry as it is confirmed, until the ledger ends."""
    client = world.client(host)
    checks = world.checks
    wanted = 0
    try:
        reader = await world.retry(partial(client.open, ledger))
        tail = client.tail(reader)
        while wanted <= world.entries_max:
            try:
                found = await tail.read_next(wanted, 1.0)
            except EntryUnknown:
                await asyncio.sleep(0.1)
                continue
            checks.on_lac(ledger, found.lac)
            if found.payload is not None:
                checks.on_delivered(ledger, wanted, bytes(found.payload))
                wanted += 1
            elif found.ended or world.healed:
                break
        tail.close()
    except NoSuchLedger:
        pass
    except NoSuchEntry as error:
        if ledger not in checks.ledgers.deleted:
            checks.report("L6", f"{host}: {error}")


class Collector:
    """Deletes some ledgers and lets bookies give back what they held."""

    def __init__(self, world):
        self.world = world

    async def delete_some(self):
        world, draw = self.world, self.world.draw
        await asyncio.sleep(draw.expovariate(1 / 0.5))
        known = sorted(world.created)
        if known:
            client = world.client("deleter")
            try:
                await world.retry(partial(client.delete, draw.choice(known)))
            except NoSuchLedger:
                pass
        for name, bookie in sorted(world.cluster.bookies.items()):
            if bookie.up:
                await self.collect(name, bookie)

    async def collect(self, name, bookie):
        world = self.world
        _, store = world.connect(f"collector of {name}")

        async def exists(ledger):
            return await store.exists(metadata_format.ledger_path(ledger))

        try:
            if isinstance(bookie, DiskBookie):
                listing = partial(list_ledgers, store)
                work = collect(bookie.bookie, listing, ledger_exists=exists)
                await survived(bookie.in_process(work))
                return
            held = _Held(bookie)
            for ledger in await find_deleted_ledgers(held, partial(list_ledgers, store), exists):
                world.checks.on_collected(name, ledger)
                bookie.delete_ledger(ledger)
        except (MetadataUnavailable, OSError, TimeoutError):
            pass  # the next time


class _Held:
    def __init__(self, bookie):
        self._bookie = bookie

    def ledgers(self):
        return list(self._bookie.ledgers)


class Mender:
    """An auditor and a worker, beside everything else; in the end until all is whole."""

    def __init__(self, world):
        self.world = world
        self.tasks = []
        self.config = RepairConfig(
            delay_s=world.draw.choice([0.0, 0.3]),
            grace_s=world.draw.choice([0.0, 0.3]),
            interval_s=2.0,
            full_check_s=world.draw.choice([1.0, 100.0]),
            settle_s=0.05,
            poll_s=0.3,
            chunk_bytes=world.draw.choice([1, 1000]),
            backoff_s_min=0.1,
            backoff_s_max=1.0,
        )

    def start(self):
        self.connect("mender")
        self.tasks = [
            start_restarting("the replication worker", self.worker.run),
            start_restarting("the auditor", self.auditor.run),
        ]
        if len(self.world.cluster.bookies) > 5 and self.world.draw.random() < 0.5:
            self.tasks.append(start_restarting("a drain", self._drain))

    async def _drain(self):
        """A bookie is to be emptied, though it is well."""
        draw = self.world.draw
        await asyncio.sleep(draw.expovariate(1 / 0.5))
        name = draw.choice(sorted(self.world.cluster.bookies))
        await self.world.retry(partial(self.worker.underreplicated.drain, name))

    def connect(self, host):
        world, clock = self.world, self.world.cluster.clock(host)
        port, store = world.connect(host)
        config = world.cluster.config
        chance = world.draw.random
        self.worker = ReplicationWorker(store, port, clock, host, chance, self.config, config)
        self.auditor = Auditor(store, port, clock, self.worker.underreplicated, self.config, config)

    async def finish(self):
        """All is closed and everybody is well: everything is whole after some passes."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.world.cluster.sessions["mender"].close()  # with it, its locks end
        self.connect("last mender")
        await self.worker.underreplicated.prepare()
        outcomes = {}
        for _ in range(20):
            await self.auditor.audit(await self.auditor.away())
            await self.auditor.full_check()
            marked = await self.worker.underreplicated.ledgers()
            if not marked:
                return
            outcomes = await self.worker.repair_all(marked)
            await asyncio.sleep(0.5)
        self.world.checks.report("L7", f"repair does not end: {outcomes}")
