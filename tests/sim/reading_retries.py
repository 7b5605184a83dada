"""A partition whose newest batches are lost, and idempotent producers that send some of them again.

A producer heard no answer to its last batches. The gateway died, copies of entries vanished from
all bookies, and an operator accepted the loss. A retry must never put a batch into the log a second
time: it is refused with UNKNOWN_PRODUCER_ID, or answered with the offset of the first time.
"""

import asyncio
from random import Random

from kio.schema.errors import ErrorCode

from gateway.topics.configs import topic_config
from gateway.topics.partition import Partition
from gateway.topics.producer_ids import ProducerIds
from ledger.core.accepted_losses import LostRange
from ledger.core.gaps import Acceptance, Gap
from ledger.errors import LedgerError
from ledger.streams.accepted_losses import accept_losses
from ledger.streams.config import StreamConfig, StreamLimits
from ledger.streams.log_reader import LogReader
from ledger.streams.segment_store import create_streams
from ledger.streams.services import StreamServices
from tests.batches import raw_batch, record
from tests.ledger.calm_cluster import cluster
from tests.sim.loop import SimClock
from tests.sim.metadata import SimMetadata

NAME = "stream"
PRODUCERS = 2


class Retried:
    """One seed. Producers write in turn; some batches are lost, some are sent again."""

    def __init__(self, seed):
        self.draw = Random(f"{seed}:retries")
        self.found = []
        self.offsets = {}  # by batch: where it was stored first
        self.sequences = {}  # by producer: the next one
        self.gateways = 0

    async def run(self):
        draw = self.draw
        self.world = cluster(3)
        await create_streams(SimMetadata(self.world.tree), [NAME])
        snapshot_bytes = draw.choice([600, 1 << 20])
        self.limits = StreamLimits(
            entry_bytes_max=64 * 1024, snapshot_bytes=snapshot_bytes, index_stride_bytes=300
        )
        ids = ProducerIds(SimMetadata(self.world.tree))
        producers = [await ids.next() for _ in range(PRODUCERS)]
        self.sequences = dict.fromkeys(producers, 0)
        partition = await self._gateway()
        sent = [self._new_batch(draw.choice(producers)) for _ in range(draw.randint(2, 10))]
        for each in sent:
            await self._send(partition, each)
        self._kill()
        await self._gateway()  # closes the ledger, so that its entries can be given up
        self._kill()
        await self._lose()
        await self._accept()
        partition = await self._gateway()
        for name in producers:
            own = [each for each in sent if each[0] == name]
            for each in own[max(0, len(own) - draw.randint(0, 3)) :]:
                await self._send(partition, each)
        return self.found

    # -- gateways and producers --------------------------------------------------------------------

    async def _gateway(self):
        """A new process that serves the partition."""
        self.gateways += 1
        client = self.world.client(f"gateway{self.gateways}")
        session = self.world.sessions[f"gateway{self.gateways}"]
        services = StreamServices(session, client, SimClock(), self.limits)
        topic = topic_config({})
        config = StreamConfig(
            ensemble_size=3, write_quorum=3, ack_quorum=2, control_ms=20, segment_bytes=1 << 20
        )
        partition = Partition(NAME, services, lambda: topic, lambda: config)
        partition.open()
        async with asyncio.timeout(60):
            await partition.ensure_readable()
        return partition

    def _kill(self):
        self.world.kill(f"gateway{self.gateways}")

    def _new_batch(self, producer):
        count = self.draw.choice([1, 1, 3])
        sequence = self.sequences[producer]
        self.sequences[producer] += count
        records = b"".join(record(at, 0, None, b"%d" % sequence) for at in range(count))
        batch = raw_batch(records, count, producer=producer, epoch=0, sequence=sequence)
        return producer, sequence, batch

    async def _send(self, partition, sent):
        """Send a batch once. What is stored again is a violation."""
        producer, sequence, batch = sent
        answer = asyncio.get_running_loop().create_future()
        partition.append(memoryview(batch), 13, answer.set_result)
        async with asyncio.timeout(60):
            produced = await answer
        if produced.error is not ErrorCode.none:
            return
        first = self.offsets.setdefault((producer, sequence), produced.base_offset)
        if first != produced.base_offset:
            self.found.append(
                f"doubled: batch {sequence} of producer {producer} is at {first}, and at "
                f"{produced.base_offset}"
            )

    # -- the loss ----------------------------------------------------------------------------------

    async def _lose(self):
        """A run of entries of a ledger is gone from all bookies."""
        await asyncio.sleep(1.0)
        held = sorted({entry for b in self.world.bookies.values() for entry in _entries(b)})
        ledger, last = self.draw.choice(held)
        first = self.draw.randint(0, last)
        for bookie in self.world.bookies.values():
            for entry in range(first, last + 1):
                bookie.durable_entries(ledger).pop(entry, None)

    async def _accept(self):
        """An operator accepts all losses that a native reader proves."""
        client = self.world.client("operator")
        session = self.world.sessions["operator"]
        reader = LogReader(NAME, session, client)
        try:
            await reader.start()
            while True:
                records, gap = await reader.read(100, 20.0)
                if not records and gap is None:
                    return
                if gap is not None and gap.evidence is not None:
                    await accept_losses(session, NAME, [_range(gap)])
        except LedgerError as error:
            self.found.append(f"accept: {error!r}")
        finally:
            await reader.stop()


def _entries(bookie):
    return [(ledger, entry) for ledger, one in bookie.ledgers.items() for entry in one.entries]


def _range(gap: Gap):
    number, first = gap.first
    evidence = gap.evidence._replace(acceptance=Acceptance(1, "an operator"))
    return LostRange(number, first, gap.last.entry, gap.offsets, evidence)
