"""Three gateways that serve transactions, their clients, and faults by seed.

Gateways are killed, cut off from the metadata store or from each other, isolated, stopped and
started; sessions end, segments roll, the power fails. Producers hang past the timeout of their
transaction, or are replaced by others of the same id. `Oracle` lists what must never happen.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from random import Random
from unittest import mock
from uuid import UUID

from gateway.config import GroupLimits
from gateway.core.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from gateway.core.transaction_states import PREPARED, TransactionState
from gateway.core.transactions import TransactionCoordinator
from gateway.groups.transactional_groups import offsets_partition
from gateway.topics import catalog, internal_topics
from gateway.topics.errors import TopicExists
from ledger.client.config import LedgerClientConfig
from ledger.errors import LedgerError
from ledger.registry.ledger_ids import first_unused_ledger
from ledger.streams.config import StreamConfig, StreamLimits
from tests.sim.loop import SimClock
from tests.sim.machines import Storage
from tests.sim.metadata import MetadataFaults, MetadataTree, SimMetadata
from tests.sim.transacting_clients import TOPIC, OffsetReader, Producer, Reader
from tests.sim.transacting_host import Losses, Network, TransactionHost
from tests.sim.transacting_oracle import Cell, Oracle

GATEWAYS = 3
QUIET_S = 90.0  # virtual seconds after which everything must have ended
_EVENTS = (
    *("kill", "kill", "cut", "pause", "pause", "isolate", "stop", "start", "expire"),
    *("roll", "roll", "heal", "replace", "replace", "power"),
)


def group_names():
    """Two groups of one partition of `__consumer_offsets`, and one of another."""
    first = "g0"
    same = next(n for n in (f"g{i}" for i in range(1, 999)) if _index(n) == _index(first))
    other = next(n for n in (f"h{i}" for i in range(999)) if _index(n) != _index(first))
    return [first, same, other]


_index = offsets_partition


class TransactingWorld:
    """Everything of one seed."""

    events = _EVENTS
    group_limits = GroupLimits()
    host_type, producer_type, reader_type = TransactionHost, Producer, Reader

    def __init__(self, seed):
        self.seed = seed
        draw = self.draw = Random(f"{seed}:transacting")
        self.oracle = Oracle()
        self.report = self.oracle.report
        self.tree = MetadataTree()
        faulty = draw.random() < 0.3
        self.metadata_faults = MetadataFaults(
            Random(f"{seed}:metadata"),
            latency_s=draw.choice([0.0005, 0.003, 0.02]),
            unsent=0.01 if faulty else 0.0,
            reply_lost=0.01 if faulty else 0.0,
        )
        bookies = draw.choice([1, 1, 1, 3])
        self.storage = Storage(draw, bookies)
        self.limits = StreamLimits(
            snapshot_bytes=draw.choice([1500, 6000, 1 << 20]),
            index_stride_bytes=draw.choice([300, 1500]),
            tail_cache_bytes=draw.choice([0, 3000, 1 << 20, 1 << 20]),
        )
        self.stream_config = StreamConfig(
            ensemble_size=bookies,
            write_quorum=bookies,
            ack_quorum=bookies // 2 + 1,
            segment_bytes=draw.choice([1500, 8000, 1 << 30]),
        )
        self.client_config = LedgerClientConfig(read_timeout_s=0.5)
        worst = draw.choice([0.0, 0.01, 0.05])
        self.losses = Losses(
            unsent=worst * draw.random(),
            reply_lost=worst * draw.random(),
            late=draw.choice([0.0, worst, 2 * worst]),
            hasty_late=draw.choice([0.0, 0.3]),
            link_late=draw.choice([0.0, 0.05, 0.3]),
            latency_s=draw.choice([0.0005, 0.002, 0.01]),
        )
        self.network = Network(draw, self.losses)
        self.processes = 0
        self.hosts = []
        self.tasks = set()  # requests that are being handled, and hosts that start or stop
        self.healing = False
        self.given_up = False  # True once clients must not wait any longer
        self.log_partitions = draw.randint(1, 2)
        self.groups = group_names()
        self.timeout_ms = draw.choice([1_000, 3_000])
        self.hasty = draw.choice([0.0, 0.1, 0.4])  # share of requests that clients soon give up
        self.hangs = draw.choice([0.0, 0.0, 0.05])
        # Transactional ids with their protocol, and the producers of each, the newest last.
        self.names = {f"pay-{at}": draw.randint(1, 2) for at in range(draw.randint(1, 3))}
        self.producers = {name: [] for name in self.names}
        self.partitions = draw.randint(len(self.names), 3)
        self.readers = [self.reader_type(self, at) for at in range(2)]
        self.offset_reader = OffsetReader(self)
        self.clients = []  # tasks

    def now_ms(self):
        return SimClock().now_ms()

    def cell_of(self, name):
        """The partition whose offset this id commits. Nobody else does."""
        return list(self.names).index(name)

    def cells(self):
        return [Cell(group, index) for group in self.groups for index in self._cell_indexes()]

    def _cell_indexes(self):
        return sorted({self.cell_of(name) for name in self.names})

    # -- gateways -----------------------------------------------------------------------------

    async def boot(self):
        catalog.uuid4 = lambda: UUID(int=self.draw.getrandbits(128))  # or no seed repeats
        await self.storage.start(await first_unused_ledger(SimMetadata(self.tree)))
        self.hosts = [self.host_type(self, number) for number in range(GATEWAYS)]
        await asyncio.gather(*(host.start() for host in self.hosts))
        count = len(self.storage.bookies)
        first, configs = self.hosts[0].catalog, self.topic_configs()
        await self._retried(lambda: internal_topics.ensure(first, CONSUMER_OFFSETS))
        await self._retried(lambda: first.create(TRANSACTION_STATE, self.log_partitions, count, {}))
        await self._retried(lambda: first.create(TOPIC, self.partitions, count, configs))
        self.topic_id = first.by_name(TOPIC).topic_id

    def topic_configs(self):
        """Return the configs of the topic that producers write."""
        return {}

    async def _retried(self, work):
        while True:
            try:
                return await work()
            except TopicExists:
                return None  # the reply to the first try was lost
            except LedgerError:
                await asyncio.sleep(0.1)

    def process(self, node_id):
        """The process that runs under this node id now, or None."""
        return next((h for h in self.hosts if h.node_id == node_id and h.serving), None)

    def any_host(self):
        hosts = [host for host in self.hosts if host.reachable]
        return self.draw.choice(hosts) if hosts else None

    def leading(self, index):
        """The partition at the gateway that may answer as its leader now, or None."""
        found = []
        for host in self.hosts:
            partition = host.partitions.find(TOPIC, index) if host.reachable else None
            if partition is not None and partition.readable and partition.is_leader:
                found.append(partition)
        if len(found) > 1:
            self.report("fell", f"two gateways lead partition {index}")
        return found[0] if found else None

    def watch(self):
        """What leaders would answer never falls."""
        for index in range(self.partitions):
            partition = self.leading(index)
            if partition is not None:
                shown = self.oracle.stable[index]
                stable, epoch = partition.stable_offset, partition.leader_epoch
                self.oracle.shows(index, shown, stable, epoch)
                if stable > partition.high_watermark:
                    self.report("fell", f"the LSO of {index} is above the high watermark")

    def start_one(self, node_id):
        host = self.host_type(self, node_id)
        self.hosts = [h for h in self.hosts if h.node_id != node_id] + [host]
        self._background(host.start())

    def _background(self, work):
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self._on_background)

    def _on_background(self, task):
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.report("handler", f"{task.exception()!r}")

    # -- clients ------------------------------------------------------------------------------

    def begin_producer(self, name):
        producer = self.producer_type(self, name, self.names[name])
        self.producers[name].append(producer)
        self.clients.append(asyncio.create_task(producer.run()))

    def keep_producing(self):
        """Begin a producer for each id that has none left."""
        for name, producers in self.producers.items():
            if not producers or producers[-1].ended:
                self.begin_producer(name)

    # -- faults -------------------------------------------------------------------------------

    async def event(self):
        draw = self.draw
        leaders = [h for h in self.hosts if h.reachable]
        host = draw.choice(leaders) if leaders and draw.random() < 0.7 else draw.choice(self.hosts)
        await getattr(self, f"_{draw.choice(self.events)}")(host)

    async def _kill(self, host):
        if host.serving:
            host.kill()

    async def _cut(self, host):
        if host.serving:
            host.cut()
            host.heal_later()

    async def _pause(self, host):
        if host.reachable:
            host.pause()
            host.heal_later()

    async def _isolate(self, host):
        self.network.cut(host.node_id)
        delay_s = self.draw.expovariate(1 / self.draw.choice([0.2, 2.0]))
        asyncio.get_running_loop().call_later(delay_s, self.network.heal)

    async def _expire(self, host):
        """The store ends a session that is well."""
        if host.serving and not host.faults.cut:
            host.lose_session()

    async def _stop(self, host):
        if host.reachable and not host.faults.cut and not host.leaving:
            self._background(host.stop())

    async def _start(self, _):
        dead = [host.node_id for host in self.hosts if not host.alive]
        if dead:
            self.start_one(self.draw.choice(dead))

    async def _heal(self, host):
        host.heal()

    async def _roll(self, host):
        if host.reachable:
            for partition in list(host.partitions._by_key.values()):
                if partition.stream.writable and self.draw.random() < 0.5:
                    partition.stream.roll_soon()

    async def _replace(self, _):
        """Another process of an id begins. The one before may go on for a while."""
        name = self.draw.choice(list(self.names))
        last = self.producers[name][-1:]
        if last and self.draw.random() < 0.5:
            last[0].stopped = True
        self.begin_producer(name)

    async def _power(self, _):
        if self.draw.random() < 0.3:
            for host in self.hosts:
                host.kill()
            self.storage.power_cut()
            await self.storage.start(await first_unused_ledger(SimMetadata(self.tree)))
            for number in range(GATEWAYS):
                self.start_one(number)

    # -- the story ----------------------------------------------------------------------------

    async def run(self):
        asyncio.get_running_loop().set_exception_handler(self._on_unhandled)
        with self._observed():
            await self.boot()
            await self._story()
            await self._heal_all()
            await self._end_clients()
            if not self.oracle.violations and await self._quiet():
                await self._check_end()
        # A copy: tasks that begin while the loop is being closed are reported too late.
        return list(self.oracle.violations)

    def _on_unhandled(self, _, context):
        self.report("handler", f"{context.get('message')}: {context.get('exception')!r}")

    @contextmanager
    def _observed(self):
        """Tell the oracle of every durable record of a coordinator."""
        oracle, cls = self.oracle, TransactionCoordinator
        load, on_appended = cls.load, cls.on_appended

        def observed_load(core, transactional_id, metadata):
            oracle.on_durable(metadata)
            load(core, transactional_id, metadata)

        def observed_append(core, append, now_ms):
            oracle.on_durable(append.metadata)
            return on_appended(core, append, now_ms)

        changed = {"load": observed_load, "on_appended": observed_append}
        with mock.patch.multiple(cls, **changed):
            yield

    async def _story(self):
        draw = self.draw
        for name in self.names:
            self.begin_producer(name)
        runs = [reader.run() for reader in self.readers] + [self.offset_reader.run()]
        self.clients += [asyncio.create_task(run) for run in runs]
        watching = asyncio.create_task(self._watching())
        for _ in range(draw.randint(2, 8)):
            await asyncio.sleep(draw.expovariate(1 / draw.choice([0.3, 1.0])))
            self.keep_producing()
            await self.event()
        await asyncio.sleep(draw.uniform(0.2, 2.0))
        watching.cancel()

    async def _watching(self):
        while True:
            self.watch()
            await asyncio.sleep(0.01)

    async def _heal_all(self):
        self.losses.unsent = self.losses.reply_lost = self.losses.late = 0.0
        self.losses.hasty_late = self.losses.link_late = 0.0
        self.network.heal()
        self.metadata_faults.unsent = self.metadata_faults.reply_lost = 0.0
        for host in self.hosts:
            host.faults.unsent = host.faults.reply_lost = 0.0
            host.heal()
        while any(host.leaving and host.alive for host in self.hosts):
            await asyncio.sleep(0.1)
        for node_id in [h.node_id for h in self.hosts if not h.alive]:
            self.start_one(node_id)
        self.healing = True

    async def _end_clients(self):
        """Producers end their transactions, or hang for ever."""
        _, late = await asyncio.wait(self.clients, timeout=QUIET_S)
        if late:
            self.report("never", f"{len(late)} clients got no answer")
            self.given_up = True
            for task in late:
                task.cancel()
        for task in self.clients:
            if task.done() and not task.cancelled() and task.exception() is not None:
                raise task.exception()

    async def _quiet(self):
        """Wait until all transactions have ended. True if they did."""
        loop = asyncio.get_running_loop()
        until_s, why = loop.time() + QUIET_S, "?"
        while loop.time() < until_s:
            self.watch()
            why = self._unrest()
            if not why:
                return True
            await asyncio.sleep(0.2)
        self.report("never", why)
        return False

    def _unrest(self):
        """Return what has not ended yet, or ""."""
        for index in range(self.partitions):
            partition = self.leading(index)
            if partition is None:
                return f"nobody leads partition {index}"
            if partition.stable_offset < partition.high_watermark:
                return f"the LSO of {index} stays at {partition.stable_offset}"
        cores = [core for host in self.hosts if host.reachable for core in _cores(host)]
        for core in cores:
            for one in core.metadata:
                if one.state in (*PREPARED, TransactionState.ONGOING):
                    return f"{one.transactional_id} stays {one.state.kafka_name}"
        return "" if len(cores) == self.log_partitions else f"{len(cores)} coordinators serve"

    async def _check_end(self):
        for index in range(self.partitions):
            log = await self._whole_log(index)
            if log is not None:
                self.oracle.check_log(index, log)
            await self._read_committed(index)
        self.oracle.check_end()
        for cell in self.cells():
            await self._check_cell(cell)

    async def _read_committed(self, index):
        """Read the whole partition as a reader of committed records, which checks it."""
        at = 0
        for _ in range(1_000):
            if at >= self.oracle.stable[index]:
                return
            found = await self.readers[0].fetch(index, at, committed=True, bytes_max=100_000)
            if found and found[0] == at:
                break
            at = found[0] if found else at
        self.report("never", f"{index}/{at} is not shown to read_committed")

    async def _whole_log(self, index):
        log, at = [], 0
        end = self.leading(index)
        for _ in range(1_000):
            end = self.leading(index)
            if end is not None and at >= end.high_watermark:
                return log
            found = await self.readers[0].fetch(index, at, committed=False, bytes_max=100_000)
            if found:
                at = found[0]
                log += found[1]
        self.report("never", f"partition {index} cannot be read at {at}")
        return None

    async def _check_cell(self, cell):
        for _ in range(200):
            found = await self.offset_reader.fetch(cell, stable=True)
            if found is not None:
                if found != self.oracle.expected(cell):
                    why = f"{cell} is {found}, expected {self.oracle.expected(cell)}"
                    self.report("torn", why)
                return
            await asyncio.sleep(0.2)
        self.report("never", f"{cell} stays unstable")


def _cores(host):
    """The cores of the coordinators that may answer at this host."""
    cores = (shell._serving() for shell in host.ctx.transactions.all())
    return [core for core in cores if core is not None]
