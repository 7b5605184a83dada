"""One partition on real streams, ledgers and bookies over simulated disks: who was promised what.

Gateways (processes) come, crash and are taken over; idempotent producers retry as Kafka's do;
readers start anywhere. Everything wrong is a line in `violations`:

    lost        an acknowledged batch is not in the log at its offset
    doubled     a batch is in the log twice, or was answered with two offsets
    order       a producer's batches, or the epochs of the log, do not rise
    changed     an offset holds something else than before, or what nobody sent
    gap         a reader was given less, more or other than what follows its offset
    fell        high watermark, log start or leader epoch fell
    refused     a retry got an error that a mere repeat must never get
    answers     a batch was answered twice, or never
    times       a timestamp is looked up otherwise than a plain scan would
"""

import asyncio
import struct
from dataclasses import dataclass, field
from random import Random

from kio.schema.errors import ErrorCode

from gateway.topics.configs import topic_config
from gateway.topics.partition import Partition
from gateway.topics.timestamp_search import SearchBudget
from ledger.client.client import LedgerClient
from ledger.client.config import LedgerClientConfig
from ledger.errors import CorruptFormat, LedgerError, NoSuchEntry, NoSuchLedger, Truncated
from ledger.registry.ledger_ids import first_unused_ledger
from ledger.streams.config import StreamConfig, StreamLimits
from ledger.streams.segment_store import create_streams
from ledger.streams.stream import StreamServices
from tests.batches import raw_batch
from tests.batches import record as encoded
from tests.sim.loop import SimClock
from tests.sim.machines import Port, Storage
from tests.sim.metadata import MetadataFaults, MetadataTree, SimMetadata

SEQUENCES = 2**31
NEVER = 60.0  # virtual seconds after which an answer counts as never given


class Gateway:
    """One process that serves the partition."""

    def __init__(self, world, number):
        self.number = number
        self.alive = True
        self.port = Port(world.storage.bookies)
        self.session = SimMetadata(world.tree, world.metadata_faults)
        client = LedgerClient(self.session, self.port, SimClock(), world.client_config)
        self.services = StreamServices(self.session, client, SimClock(), world.limits)
        self.partition = Partition(
            "stream", self.services, lambda: world.topic, lambda: world.stream_config
        )

    def kill(self):
        self.alive = False
        self.port.dead = True
        self.session.closed = True
        self.partition.closed = True  # nobody is there any more to open it again


@dataclass(eq=False)
class Sent:
    """One batch and what is known of it."""

    number: int
    batch: bytes
    records: int
    timestamp: int
    producer: int
    sequence: int
    state: str = "new"  # pending, failed, acked
    attempt: int = 0
    offset: int = -1
    answered: set = field(default_factory=set)

    @property
    def body(self):
        return self.batch[16:]


class Producer:
    """Kafka's idempotent one: five in flight, what failed is sent again in order."""

    def __init__(self, world, producer_id):
        self.world = world
        self.id = producer_id
        self.epoch = 0
        self.target = None
        self.window = []  # not acknowledged, oldest first
        self.sequence = world.draw.choice([0, 0, SEQUENCES - 7])

    async def run(self):
        draw = self.world.draw
        while not self.world.healing:
            self.step()
            await asyncio.sleep(draw.expovariate(1 / 0.004))

    def gateway(self):
        """One at a time: another is only asked when nothing is under way."""
        if self.target is None or not any(sent.state == "pending" for sent in self.window):
            self.target = self.world.any_gateway()
        return self.target if self.target is not None and self.target.alive else None

    def step(self, *, new=True):
        """Send again what failed, once nothing is under way; else perhaps something new."""
        if any(sent.state == "failed" for sent in self.window):
            if not any(sent.state == "pending" for sent in self.window):
                self.send_again()
            return
        while new and len(self.window) < 5 and self.world.draw.random() < 0.7:
            sent = self.world.new_batch(self.id, self.epoch, self.sequence)
            self.sequence = (self.sequence + sent.records) % SEQUENCES
            self.window.append(sent)
            self.world.send(self, sent)
            if sent.state == "failed":
                return

    def send_again(self):
        for sent in list(self.window):
            self.world.send(self, sent)
            if sent.state == "failed":
                return  # another gateway may be asked next, and must get this one first

    def on_answer(self, sent, produced):
        if produced.error is ErrorCode.none:
            self.world.on_acked(sent, produced.base_offset)
            self.window.remove(sent)
            return
        sent.state = "failed"
        if produced.error is ErrorCode.out_of_order_sequence_number and (
            self.world.zombies or self.window[0] is not sent
        ):
            return  # one before it failed, or only a lease could keep who said it silent
        if produced.error not in _RETRIED:
            self.world.report("refused", f"batch {sent.number}: {produced}")


_RETRIED = (
    ErrorCode.not_leader_or_follower,
    ErrorCode.not_enough_replicas,
    ErrorCode.kafka_storage_error,
    ErrorCode.request_timed_out,
)


class Plain:
    """A producer without an id: one try for each batch."""

    def __init__(self, world):
        self.world = world

    def gateway(self):
        return self.world.any_gateway()

    async def run(self):
        draw = self.world.draw
        while not self.world.healing:
            await asyncio.sleep(draw.expovariate(1 / 0.01))
            self.world.send(self, self.world.new_batch(-1, -1, -1))

    def on_answer(self, sent, produced):
        if produced.error is ErrorCode.none:
            self.world.on_acked(sent, produced.base_offset)
        else:
            sent.state = "failed"
            if produced.error not in _RETRIED:
                self.world.report("refused", f"plain batch {sent.number}: {produced}")


class StreamsWorld:
    """Everything of one seed."""

    events_max = 12

    def __init__(self, seed):
        self.seed = seed
        draw = self.draw = Random(f"{seed}:streams")
        self.violations = []
        self.tree = MetadataTree()
        faulty = draw.random() < 0.5
        self.metadata_faults = MetadataFaults(
            Random(f"{seed}:metadata"),
            latency_s=draw.choice([0.0005, 0.005]),
            unsent=0.03 if faulty else 0.0,
            reply_lost=0.03 if faulty else 0.0,
            node_by_node=seed % 2 == 1,
        )
        bookies = draw.choice([1, 1, 1, 3])
        self.storage = Storage(draw, bookies)
        self.limits = StreamLimits(
            entry_bytes_max=64 * 1024,
            snapshot_bytes=draw.choice([1500, 6000, 1 << 20]),
            index_stride_bytes=draw.choice([300, 1500]),
            tail_cache_bytes=draw.choice([0, 3000, 12_000, 1 << 20]),
            read_chunk_bytes=draw.choice([1, 500, 5000]),
            cursors_max=draw.choice([1, 3, 64]),
        )
        self.stream_config = StreamConfig(
            ensemble_size=bookies,
            write_quorum=bookies,
            ack_quorum=bookies // 2 + 1,
            segment_bytes=draw.choice([1000, 8000, 1 << 30]),
        )
        self.client_config = LedgerClientConfig(
            read_timeout_s=0.5,
            pending_entries_max=draw.choice([1, 3, 1024]),
            pending_bytes_max=draw.choice([500, 32 << 20]),
        )
        self.topic = topic_config({})
        self.pause_s = draw.choice([0.001, 0.01, 0.05])
        self.sent = {}  # by body: base offset and epoch are the server's
        self.acked = {}  # by offset
        self.seen = {}  # by offset: what any reader found there
        self.start_at_least = 0
        self.high_watermark = self.log_start = self.epoch = 0
        self.gateways = []
        self.zombies = False
        self.healing = False
        self.groups = []  # further clients; their `run` ends once `healing` is set

    def report(self, name, text):
        self.violations.append(f"{name}: {text}")

    # -- gateways -----------------------------------------------------------------------------

    @property
    def gateway(self):
        return self.gateways[-1]

    @property
    def partition(self):
        return self.gateway.partition

    async def boot(self):
        """The machine starts: bookies, then a gateway."""
        quiet = SimMetadata(self.tree)
        await self.storage.start(await first_unused_ledger(quiet))
        if not self.gateways:
            await create_streams(quiet, ["stream"])
        self.new_gateway()

    def any_gateway(self):
        """Zombies listen too; None: nobody does."""
        live = [gateway for gateway in self.gateways if gateway.alive]
        return self.draw.choice(live) if live else None

    def new_gateway(self):
        self.gateways.append(Gateway(self, len(self.gateways)))
        self.partition.open()

    def lose_answers(self):
        """Whatever a dead gateway owed will not come: producers must assume the worst."""
        for sent in self.sent.values():
            if sent.state == "pending" and not sent.answering.alive:
                sent.state = "failed"

    async def crash(self):
        """All at once: the process, and perhaps the power."""
        for gateway in self.gateways:
            gateway.kill()
        self.zombies = False
        if self.draw.random() < 0.6:
            self.storage.power_cut()
        else:
            self.storage.kill()
        self.lose_answers()
        await self.boot()

    def take_over(self):
        """Another gateway serves now; the old one is dead, or a zombie that knows nothing."""
        if self.draw.random() < 0.5:
            self.gateway.kill()
        else:
            self.zombies = True
        self.new_gateway()
        self.lose_answers()

    async def restart(self):
        """An orderly stop: everything accepted is durable; then the next process."""
        gateway = self.gateway
        await gateway.partition.close()
        gateway.kill()
        self.new_gateway()
        self.lose_answers()

    # -- producing ----------------------------------------------------------------------------

    def new_batch(self, producer_id, epoch, sequence):
        draw, number = self.draw, len(self.sent)
        records = draw.choice([1, 1, 2, 5])
        timestamp = 1_700_000_000_000 + draw.randint(0, 50) - 7 * number % 40
        first = struct.pack(">q", number) + bytes(draw.choice([0, 20, 20, 400]))
        values = [first, *[None] * (records - 1)]
        batch = raw_batch(
            b"".join(encoded(at, 0, None, value) for at, value in enumerate(values)),
            records,
            producer=producer_id,
            epoch=epoch,
            sequence=sequence,
            base_timestamp=timestamp,
        )
        sent = Sent(number, batch, records, timestamp, producer_id, sequence)
        self.sent[sent.body] = sent
        return sent

    def send(self, producer, sent):
        gateway = producer.gateway()
        if gateway is None:
            sent.state = "failed"
            return
        sent.state = "pending"
        sent.attempt += 1
        sent.answering = gateway
        sent.sent_s = asyncio.get_running_loop().time()
        attempt = sent.attempt

        def on_produced(produced):
            if attempt in sent.answered:
                self.report("answers", f"batch {sent.number} is answered twice: {produced}")
            if not gateway.alive or attempt != sent.attempt:
                return
            sent.answered.add(attempt)
            if produced.error is ErrorCode.none:
                end = produced.base_offset + sent.records
                if end > gateway.partition.high_watermark:
                    self.report("lost", f"batch {sent.number} is acknowledged above the watermark")
            producer.on_answer(sent, produced)

        gateway.partition.append(memoryview(sent.batch), 13, on_produced)

    def on_acked(self, sent, offset):
        if sent.state == "acked" and sent.offset != offset:
            self.report("doubled", f"batch {sent.number} has offsets {sent.offset} and {offset}")
        other = self.acked.setdefault(offset, sent)
        if other is not sent:
            self.report("lost", f"offset {offset} is given to {other.number} and {sent.number}")
        sent.state, sent.offset = "acked", offset
        self.put(offset, sent)

    def put(self, offset, sent):
        """Offset and value are one pair for ever."""
        known = self.seen.setdefault(offset, sent)
        if known is not sent:
            self.report("changed", f"{offset} held batch {known.number}, now {sent.number}")
        if sent.offset not in (-1, offset):
            self.report("doubled", f"batch {sent.number} is at {sent.offset} and at {offset}")
        sent.offset = offset

    # -- reading ------------------------------------------------------------------------------

    def watch(self):
        """What clients see of the partition never falls. Zombies without a lease may lag."""
        partition = self.partition
        if not partition.readable or self.zombies:
            return
        for name in ("high_watermark", "log_start", "epoch"):
            now = getattr(partition, _ATTRIBUTES[name])
            if now < getattr(self, name):
                self.report("fell", f"{name} from {getattr(self, name)} to {now}")
            setattr(self, name, now)

    async def read_once(self, offset, bytes_max):
        """One read, judged. The records, or None when the partition could not be read now."""
        gateway = self.gateway
        partition = gateway.partition
        if not partition.readable:
            return None
        try:
            records = await partition.read(offset, bytes_max)
        except Truncated:
            if partition.log_start_offset <= offset:
                self.report("gap", f"{offset} is truncated, the log starts below")
            return None
        except (CorruptFormat, NoSuchLedger, NoSuchEntry) as error:
            still = gateway.alive and partition.readable and not self.zombies
            if still and partition.log_start_offset <= offset:
                self.report("gap", f"reading {offset}: {error!r}")
            return None
        except LedgerError:
            return None
        if gateway.alive:
            self.judge(partition, offset, bytes_max, records)
        return records

    def judge(self, partition, offset, bytes_max, records):
        following = None
        size = 0
        for record in records:
            data = b"".join(record.data)
            sent = self.sent.get(data[16:])
            if sent is None:
                self.report("changed", f"{record.sequence_id} holds what nobody sent")
                return
            (base,) = struct.unpack_from(">q", data)
            whole = base == record.sequence_id == record.end_sequence_id - sent.records
            if not whole or record.timestamp_max != sent.timestamp:
                self.report("changed", f"batch {sent.number} of {sent.records}: {record[:4]}")
            self.put(record.sequence_id, sent)
            if following is None and not record.sequence_id <= offset < record.end_sequence_id:
                self.report("gap", f"asked {offset}, got {record.sequence_id}")
            if following is not None and record.sequence_id != following:
                self.report("gap", f"{record.sequence_id} comes where {following} is due")
            following = record.end_sequence_id
            size += record.size_bytes
        if len(records) > 1 and size > bytes_max:
            self.report("gap", f"{size} bytes in {len(records)} batches, {bytes_max} were wanted")
        if records and following > partition.high_watermark and not self.zombies:
            self.report("lost", f"{following} is read above the watermark")

    async def reader(self):
        """From anywhere, some way on, then from elsewhere."""
        draw = self.draw
        while not self.healing:
            partition = self.partition
            if not partition.readable:
                await asyncio.sleep(self.pause_s)
                continue
            offset = draw.randint(partition.log_start_offset, partition.high_watermark)
            for _ in range(draw.randint(1, 8)):
                self.watch()
                records = await self.read_once(offset, draw.choice([1, 300, 3000, 1 << 20]))
                if not records:
                    break
                offset = records[-1].end_sequence_id
                if draw.random() < 0.3:
                    await asyncio.sleep(draw.expovariate(1 / self.pause_s))
            await asyncio.sleep(draw.expovariate(1 / self.pause_s))

    # -- the story ----------------------------------------------------------------------------

    async def run(self):
        draw = self.draw
        await self.boot()
        everyone = self.writers()
        tasks = [asyncio.create_task(each.run()) for each in [*everyone, *self.groups]]
        tasks += [asyncio.create_task(self.reader()) for _ in range(self.reader_count())]
        for _ in range(draw.randint(2, self.events_max)):
            await asyncio.sleep(self.pause_before_event_s())
            self.watch()
            await self.event()
        self.healing = True
        await asyncio.wait(tasks)
        for task in tasks:
            task.result()
        await self.heal([each for each in everyone if isinstance(each, Producer)])
        await self.check_end()
        return self.violations

    def writers(self):
        draw = self.draw
        producers = [Producer(self, number) for number in range(draw.randint(1, 3))]
        return [*producers, Plain(self)][: draw.randint(1, 4)]

    def reader_count(self):
        return self.draw.randint(1, 3)

    def pause_before_event_s(self):
        return self.draw.expovariate(1 / 0.05)

    async def check_end(self):
        """Check the whole log after all has healed, unless an error is known already."""
        if not self.violations:
            await self.check()

    async def event(self):
        draw = self.draw
        kind = draw.choice(
            ["crash", "crash", "take over", "restart", "roll", "roll", "truncate", "expire", "sync"]
        )
        if kind == "crash":
            await self.crash()
        elif kind == "take over":
            self.take_over()
        elif kind == "restart" and not self.zombies:
            await self.restart()
        elif kind == "roll":
            self.partition.stream.roll_soon()
            if draw.random() < 0.3:
                await asyncio.sleep(draw.expovariate(1 / 0.005))
                await self.crash()
        elif kind == "truncate":
            await self.truncate()
        elif kind == "expire" and draw.random() < 0.3:
            await self.expire()
        elif kind == "sync" and len(self.storage.disks) > 1:
            draw.choice(self.storage.disks).fail_next_sync = True  # one of three ends for good

    async def truncate(self):
        partition = self.partition
        if not partition.readable:
            return
        offset = self.draw.randint(partition.log_start_offset, partition.high_watermark)
        try:
            await partition.stream.truncate(offset)
        except LedgerError:
            return
        if partition is self.partition and partition.log_start_offset < offset:
            self.report("fell", f"log start is {partition.log_start_offset}, asked was {offset}")

    async def expire(self):
        self.stream_config = StreamConfig(
            ensemble_size=self.stream_config.ensemble_size,
            write_quorum=self.stream_config.write_quorum,
            ack_quorum=self.stream_config.ack_quorum,
            segment_bytes=self.stream_config.segment_bytes,
            retention_bytes=self.draw.choice([0, 2000]),
        )
        try:
            await self.partition.stream.expire()
        except LedgerError:
            pass

    async def heal(self, producers):
        """Faults end, the machine starts once more, and every retry gets its answer."""
        self.metadata_faults.unsent = self.metadata_faults.reply_lost = 0.0
        await self.crash()
        async with asyncio.timeout(NEVER):
            await self.partition.ensure_readable()
        until_s = asyncio.get_running_loop().time() + NEVER
        while any(producer.window for producer in producers) or self.owed():
            for producer in producers:
                producer.step(new=False)
            await asyncio.sleep(0.05)
            if asyncio.get_running_loop().time() > until_s:
                owed = [s.number for s in self.sent.values() if s.state in ("pending", "failed")]
                self.report("answers", f"batches {owed[:5]} never got one")
                return

    def owed(self):
        return any(sent.state == "pending" for sent in self.sent.values())

    async def check(self):
        """The whole log, read from its start, is what was promised."""
        self.watch()
        partition = self.partition
        log, at = [], partition.log_start_offset
        while at < partition.high_watermark and not self.violations:
            records = await self.read_once(at, 100_000)
            if not records:
                self.report("gap", f"{at} cannot be read")
                return
            log += records
            at = records[-1].end_sequence_id
        found = {record.sequence_id: self.sent[b"".join(record.data)[16:]] for record in log}
        for offset, sent in self.acked.items():
            if offset + sent.records > partition.log_start_offset and found.get(offset) != sent:
                self.report("lost", f"batch {sent.number} was acknowledged at {offset}")
        self.check_order(log, found)
        if not self.violations:
            await self.check_times(log)

    def check_order(self, log, found):
        last, epoch = {}, 0
        for record in log:
            sent = found[record.sequence_id]
            (now,) = struct.unpack_from(">i", b"".join(record.data), 12)
            if now < epoch or now != self.partition.epoch_at(record.sequence_id):
                self.report("order", f"epoch {now} at {record.sequence_id} after {epoch}")
            epoch = now
            if sent.producer < 0:
                continue
            due = last.get(sent.producer, sent.sequence)
            if sent.sequence != due:
                self.report("order", f"sequence {sent.sequence} of {sent.producer}, due is {due}")
            last[sent.producer] = (sent.sequence + sent.records) % SEQUENCES

    async def check_times(self, log):
        start = self.partition.log_start_offset
        times = sorted({record.timestamp_max for record in log})
        for asked in [0, *times[:: max(1, len(times) // 8)], times[-1] + 1 if times else 1]:
            due = next(
                (
                    (record.timestamp_max, max(record.sequence_id, start))
                    for record in log
                    if record.timestamp_max >= asked
                ),
                None,
            )
            got = await self.partition.search(SearchBudget()).first_at_or_after(asked)
            if got != due:
                self.report("times", f"{asked} is looked up as {got}, a scan finds {due}")


_ATTRIBUTES = {
    "high_watermark": "high_watermark",
    "log_start": "log_start_offset",
    "epoch": "leader_epoch",
}
