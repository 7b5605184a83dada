"""Clients of a simulated cluster with transactions: producers, readers of records and of offsets.

A producer is one process of a transactional id. It does what Kafka's clients do: it looks up
leaders and coordinators, repeats what was not answered, aborts after errors, and initializes again
after outcomes that it does not know. In protocol 1 it adds partitions and groups itself.
"""

from __future__ import annotations

import asyncio
import struct
from collections import defaultdict

from kio.schema.errors import ErrorCode

from gateway.cluster.port import StreamKey
from gateway.wire import batches
from gateway.wire.end_markers import read_marker
from gateway.wire.own_batches import decode_batch
from tests.batches import raw_batch
from tests.batches import record as encoded
from tests.sim.transacting_host import PORT
from tests.sim.transacting_oracle import ABORT, COMMIT, Cell, Marked

TOPIC = "t"
PRODUCE, FETCH, OFFSET_FETCH, FIND = 0, 1, 9, 10
INIT, ADD, ADD_OFFSETS, END, TXN_OFFSETS = 22, 24, 25, 26, 28
VALUE = struct.Struct(">qq")  # number of the transaction, place in it
_E = ErrorCode

_AGAIN = frozenset(
    (
        *(_E.coordinator_not_available, _E.not_coordinator, _E.coordinator_load_in_progress),
        *(_E.concurrent_transactions, _E.not_leader_or_follower, _E.not_enough_replicas),
        *(_E.kafka_storage_error, _E.request_timed_out, _E.unknown_topic_or_partition),
        *(_E.network_exception, _E.not_enough_replicas_after_append, _E.unstable_offset_commit),
        *(_E.leader_not_available, _E.offset_not_available),
    )
)
_ABORTS = frozenset(
    (
        *(_E.transaction_abortable, _E.invalid_txn_state, _E.out_of_order_sequence_number),
        *(_E.unknown_producer_id, _E.duplicate_sequence_number),
    )
)
_FENCED = frozenset((_E.producer_fenced, _E.invalid_producer_epoch, _E.invalid_producer_id_mapping))


class Aborting(Exception):
    """The transaction has to be aborted. `unsure`: something may still arrive."""

    def __init__(self, unsure=False):
        self.unsure = unsure


class Fenced(Exception):
    """Another producer has this id, or the coordinator has aborted the transaction."""


class Client:
    """What all clients do to find gateways."""

    def __init__(self, world):
        self.world = world
        self.draw = world.draw

    async def ask(self, host, key, version, *, late=False, patience_s=None, **fields):
        ask = self.world.network.request
        return await ask(self, host, key, version, fields, late=late, patience_s=patience_s)

    def leader(self, index):
        """The leader of a partition as some gateway knows it, or None."""
        asked = self.world.any_host()
        topic = None if asked is None else asked.catalog.by_name(TOPIC)
        if topic is None:
            return None
        return self.world.process(asked.cluster.leader(StreamKey(topic.topic_id, index)).node_id)

    async def coordinator(self, key_type, name):
        """The coordinator as some gateway says, or None."""
        asked = self.world.any_host()
        if asked is None:
            return None
        reply = await self.ask(asked, FIND, 4, key_type=key_type, coordinator_keys=[name])
        if reply is None or reply.coordinators[0].error_code is not _E.none:
            return None
        return self.world.process(reply.coordinators[0].port - PORT)

    async def pause(self):
        await asyncio.sleep(self.draw.uniform(0.005, 0.1))


class Producer(Client):
    """One process of a transactional id, which runs transactions until the world heals."""

    def __init__(self, world, name, protocol):
        super().__init__(world)
        self.name = name
        self.protocol = protocol
        self.producer_id = self.epoch = -1
        self.sequences = defaultdict(int)  # by partition, of this id and epoch
        self.one = None  # the open transaction
        self.added = set()  # partitions and groups of the open transaction, in protocol 1
        self.base_offset = -1  # of the last acknowledged batch
        self.stopped = False  # another process takes its place, or it does and hangs
        self.ended = False
        self.patience_s = None  # how long it waits for the answer to a write, None: the usual time

    async def run(self):
        try:
            await self._run()
        finally:
            self.ended = True

    async def _run(self):
        while not self.over:
            try:
                if self.producer_id < 0 or self.epoch < 0:
                    await self._initialize()
                await self._transaction()
            except Fenced:
                self.producer_id = self.epoch = -1
                if self.draw.random() < 0.5:
                    return  # another process begins
                await self.pause()
            await asyncio.sleep(self.draw.expovariate(1 / 0.02))

    @property
    def over(self):
        return self.stopped or self.world.healing

    async def _initialize(self):
        """Get an epoch. Raises Fenced."""
        await self._repeated(self._init_once, late=True)

    async def _init_once(self, late):
        found = await self._at_coordinator(
            INIT,
            5,
            late=late,
            transactional_id=self.name,
            transaction_timeout=self.world.timeout_ms,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
        )
        if found is None or found.error_code is not _E.none:
            return None if found is None else found.error_code
        if (found.producer_id, found.producer_epoch) != (self.producer_id, self.epoch):
            self.sequences.clear()
        self.producer_id, self.epoch = found.producer_id, found.producer_epoch
        return _E.none

    async def _repeated(self, once, *words, late, tries=10**6):
        """Call `once` until it has a final answer. Raises Aborting, Fenced."""
        for _ in range(tries):
            error = await once(*words, late=late)
            if error is _E.none:
                return
            if error in _FENCED:
                raise Fenced
            if error in _ABORTS:
                raise Aborting
            if error is not None and error not in _AGAIN:
                self.world.report("refused", f"{self.name}: {once.__name__} got {error!r}")
                raise Fenced
            if self.world.given_up:
                raise Fenced
            await self.pause()
        raise Aborting(unsure=True)

    async def _at_coordinator(self, key, version, *, late, **fields):
        host = await self.coordinator(1, self.name)
        return None if host is None else await self.ask(host, key, version, late=late, **fields)

    # -- a transaction ------------------------------------------------------------------------

    async def _transaction(self):
        draw, world = self.draw, self.world
        self.one = world.oracle.begin(self.name, self.producer_id, self.epoch)
        self.added.clear()
        commit, unsure = draw.random() < 0.7, False
        steps = [(self._write, draw.randrange(world.partitions)) for _ in range(draw.randint(1, 4))]
        steps += [
            (self._send_offsets, group)
            for group in draw.sample(world.groups, draw.choice([0, 1, 2, len(world.groups)]))
        ]
        draw.shuffle(steps)
        try:
            for step, where in steps:
                await step(where)
                if draw.random() < 0.1:
                    await self._read_others()
                if draw.random() < world.hangs:  # longer than the timeout of the transaction
                    await asyncio.sleep(draw.uniform(0.5, 1.5) * world.timeout_ms / 1000)
        except Aborting as aborting:
            commit, unsure = False, aborting.unsure
        if self.stopped and draw.random() < 0.5:
            return  # it hangs for ever
        await self._end(commit, unsure)

    async def _write(self, index):
        first, now_ms = len(self.one.records), self.world.now_ms()
        records, count = self._drawn_records(first)
        batch = raw_batch(
            records,
            count,
            producer=self.producer_id,
            epoch=self.epoch,
            sequence=self.sequences[index],
            base_timestamp=now_ms,
            attributes=batches.TRANSACTIONAL,
        )
        sent = [(index, first + at) for at in range(count)]
        self.one.records.update(dict.fromkeys(sent, False))
        if self.protocol == 1 and index not in self.added:
            await self._repeated(self._add_once, index, late=False, tries=20)
            self.added.add(index)
        await self._repeated(self._produce_once, index, batch, late=True, tries=self._patience())
        self.one.records.update(dict.fromkeys(sent, True))
        self.sequences[index] += count
        self._on_stored(index, now_ms)

    def _drawn_records(self, first):
        """Return the encoded records of a batch, and how many they are. `first` numbers them."""
        return encoded(0, 0, b"k", VALUE.pack(self.one.number, first)), 1

    def _on_stored(self, index, timestamp):
        """The batch of the last `_drawn_records` was acknowledged, at `base_offset`."""

    def _patience(self):
        """Draw how long the client waits for answers. Returns how often it tries."""
        draw = self.draw
        hasty = draw.random() < self.world.hasty
        self.patience_s = draw.choice([0.002, 0.01, 0.05]) * draw.random() if hasty else None
        return 1 if hasty else draw.choice([4, 20])

    async def _add_once(self, index, late):
        found = await self._at_coordinator(
            ADD,
            3,
            late=late,
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[{"name": TOPIC, "partitions": [index]}],
        )
        if found is None:
            return None
        return found.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code

    async def _produce_once(self, index, batch, late):
        host = self.leader(index)
        if host is None:
            return None
        data = [{"name": TOPIC, "partition_data": [{"index": index, "records": batch}]}]
        found = await self.ask(
            host,
            PRODUCE,
            12 if self.protocol == 2 else 11,
            late=late,
            patience_s=self.patience_s,
            transactional_id=self.name,
            acks=-1,
            timeout=1_000,
            topic_data=data,
        )
        if found is None:
            return None
        row = found.responses[0].partition_responses[0]
        self.base_offset = row.base_offset
        return row.error_code

    async def _send_offsets(self, group):
        cell = Cell(group, self.world.cell_of(self.name))
        self.one.offsets[cell] = False
        if self.protocol == 1 and group not in self.added:
            await self._repeated(self._add_group_once, group, late=False, tries=20)
            self.added.add(group)
        late = self.protocol == 2  # protocol 1 cannot tell a late one from the next transaction's
        await self._repeated(self._offsets_once, cell, late=late, tries=self._patience())
        self.one.offsets[cell] = True

    async def _add_group_once(self, group, late):
        found = await self._at_coordinator(
            ADD_OFFSETS,
            3,
            late=late,
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group,
        )
        return None if found is None else found.error_code

    async def _offsets_once(self, cell, late):
        host = await self.coordinator(0, cell.group)
        if host is None:
            return None
        row = {"partition_index": cell.index, "committed_offset": self.one.number}
        row |= {"committed_leader_epoch": -1, "committed_metadata": ""}
        found = await self.ask(
            host,
            TXN_OFFSETS,
            5 if self.protocol == 2 else 4,
            late=late,
            patience_s=self.patience_s,
            transactional_id=self.name,
            group_id=cell.group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[{"name": TOPIC, "partitions": [row]}],
        )
        return None if found is None else found.topics[0].partitions[0].error_code

    async def _end(self, commit, unsure):
        one = self.one
        one.asked = COMMIT if commit else ABORT
        try:
            await self._repeated(self._end_once, commit, late=self.protocol == 2)
        except Aborting:  # it timed out, or there was nothing to end
            if commit:
                one.asked = "neither"
            unsure = True
        else:
            self.world.oracle.on_ended(one, one.asked)
        if unsure and not self.over:
            await self._initialize()

    async def _end_once(self, commit, late):
        found = await self._at_coordinator(
            END,
            5 if self.protocol == 2 else 4,
            late=late,
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        if found is None or found.error_code is not _E.none:
            return None if found is None else found.error_code
        if self.protocol == 2 and (found.producer_id, found.producer_epoch) != (
            self.producer_id,
            self.epoch,
        ):
            self.producer_id, self.epoch = found.producer_id, found.producer_epoch
            self.sequences.clear()
        return _E.none

    async def _read_others(self):
        """Read committed records, as a consumer that transforms them."""
        reader = self.world.readers[self.draw.randrange(len(self.world.readers))]
        self.one.read |= await reader.look(self.draw.randrange(self.world.partitions))


class Reader(Client):
    """A read_committed consumer, which checks what it gets."""

    def __init__(self, world, number):
        super().__init__(world)
        self.name = f"reader {number}"

    async def run(self):
        while not self.world.healing:
            await self.look(self.draw.randrange(self.world.partitions))
            await asyncio.sleep(self.draw.expovariate(1 / 0.02))

    async def look(self, index):
        """Read some way on from anywhere. Returns the transactions that were read."""
        end, draw = self.world.oracle.stable[index], self.draw
        at, read = draw.choice([0, end, draw.randint(0, end), max(0, end - 5)]), set()
        for _ in range(draw.randint(1, 6)):
            found = await self.fetch(index, at, committed=True)
            if not found or found[0] == at:
                break
            at = found[0]
            read |= found[1]
        return read

    async def fetch(self, index, at, *, committed, bytes_max=None):
        """Return the next offset, what was read, and what was shown. None if it failed.

        What was read are the transactions of shown records, or the whole log.
        """
        oracle, host = self.world.oracle, self.leader(index)
        if host is None:
            return None
        shown = oracle.stable[index]
        wanted = {"partition": index, "current_leader_epoch": -1, "fetch_offset": at}
        wanted |= {"last_fetched_epoch": -1, "log_start_offset": -1}
        wanted["partition_max_bytes"] = bytes_max or self.draw.choice([1, 200, 1000, 100_000])
        reply = await self.ask(
            host,
            FETCH,
            12,
            replica_id=-1,
            max_wait=self.draw.choice([0, 100]),
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=int(committed),
            session_id=0,
            session_epoch=-1,
            topics=[{"topic": TOPIC, "partitions": [wanted]}],
            forgotten_topics_data=[],
            rack_id="",
        )
        if reply is None or reply.error_code is not _E.none:
            return None
        row = reply.responses[0].partitions[0]
        if row.error_code is not _E.none:
            if row.error_code not in _AGAIN:
                self.world.report("refused", f"{self.name} at {index}/{at} got {row.error_code!r}")
            return None
        if not committed:
            return self._whole(index, at, row.records or b"")
        oracle.shows(index, shown, row.last_stable_offset)
        return self._committed(index, at, row)

    def _whole(self, index, at, data):
        log, epoch = [], 0
        for header, batch in split(data):
            if header.leader_epoch < epoch:
                self.world.report("fell", f"leader epoch in {index} from {epoch} at {at}")
            epoch = header.leader_epoch
            marker = self._marker(header, batch)
            if marker is not None:
                log.append(Marked(header.producer_id, marker.commit, marker.coordinator_epoch))
            else:
                for each in self._decoded(index, header, batch):
                    log.append((header.producer_id, *each[:2]))
            at = self._end_of(index, at, header)
        return at, log, []

    def _marker(self, header, batch):
        """Return the marker of a batch, None for a batch of records."""
        return read_marker(batch, header)

    def _end_of(self, index, at, header):
        """Return the offset behind a batch, which was found at `at` or later."""
        end = header.base_offset + header.last_offset_delta + 1
        if end <= at:
            self.world.report("gap", f"{self.name} gets the batch before {end} at {index}/{at}")
        return end

    def _decoded(self, index, header, batch):
        """Return (transaction, sequence in it, ...) of each record of a batch."""
        ((_, value),) = decode_batch(batch, "log")
        return [VALUE.unpack(value)]

    def _committed(self, index, at, row):
        """Drop what was aborted, as consumers do. Source: Kafka, CompletedFetch."""
        waiting = sorted(
            ((each.first_offset, each.producer_id) for each in row.aborted_transactions or ()),
            reverse=True,
        )
        if len(set(waiting)) < len(waiting):  # librdkafka would wait for one more abort marker
            self.world.report("K3", f"{self.name} gets a transaction twice at {index}/{at}")
        aborted, read, shown = set(), set(), []
        for header, batch in split(row.records or b""):
            end = self._end_of(index, at, header)
            while waiting and waiting[-1][0] < end:
                aborted.add(waiting.pop()[1])
            marker = self._marker(header, batch)
            if end > row.last_stable_offset:
                self.world.report("K4", f"{self.name} got {index}/{end - 1} past the LSO")
            if marker is not None:
                if not marker.commit:
                    aborted.discard(header.producer_id)
            else:
                found = self._decoded(index, header, batch)
                if header.producer_id not in aborted:
                    shown += found
                self._judge(index, found, header.producer_id in aborted, read)
            at = end
        return at, read, shown

    def _judge(self, index, found, hidden, read):
        """Compare the records of a batch with what was decided."""
        for number, *_ in found:
            if hidden:
                self.world.oracle.hides(self.name, number)
            else:
                self.world.oracle.sees(f"{self.name} of {index}", number)
                read.add(number)


def split(data):
    """Yield header and bytes of each whole batch."""
    at = 0
    while at + batches.HEADER_BYTES <= len(data):
        header = batches.read_header(data[at:])
        end = at + 12 + header.length
        if end > len(data):
            return
        yield header, data[at:end]
        at = end


class OffsetReader(Client):
    """Reads the committed offsets of groups."""

    async def run(self):
        while not self.world.healing:
            cell = self.draw.choice(self.world.cells())
            await self.fetch(cell, stable=self.draw.random() < 0.5)
            await asyncio.sleep(self.draw.expovariate(1 / 0.05))

    async def fetch(self, cell, *, stable):
        """Return the committed offset, or None if it cannot be read now."""
        oracle = self.world.oracle
        host = await self.coordinator(0, cell.group)
        if host is None:
            return None
        before, told = oracle.positions[cell], oracle.told[cell]
        reply = await self.ask(
            host,
            OFFSET_FETCH,
            7,
            group_id=cell.group,
            topics=[{"name": TOPIC, "partition_indexes": [cell.index]}],
            require_stable=stable,
        )
        if reply is None:
            return None
        row = reply.topics[0].partitions[0]
        error = reply.error_code if reply.error_code is not _E.none else row.error_code
        if error is not _E.none:
            if error not in _AGAIN:
                self.world.report("refused", f"OffsetFetch of {cell} got {error!r}")
            return None
        oracle.shows_offset(cell, before, told, row.committed_offset, stable=stable)
        return row.committed_offset
