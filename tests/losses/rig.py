"""One topic with one partition on a simulated cluster, and the commands of its operator."""

import random
from contextlib import asynccontextmanager
from uuid import UUID

import tests.ledger.follow_rig as follow_rig
from gateway.admin.losses import accept_loss, propose_loss, topic_gaps
from gateway.admin.storage import Storage
from gateway.topics.catalog import IDS, NAMES
from gateway.topics.partitions import stream_name
from ledger.core.accepted_losses import NO_LOSSES, decode_losses
from ledger.core.gaps import OffsetRange
from ledger.core.segments import decode_segment
from ledger.sealed import seal
from ledger.streams.segment_store import log_root, losses_path
from tests.command_output import check_value
from tests.ledger.calm_cluster import cluster
from tests.ledger.follow_rig import FollowRig, Owner, timestamp_of
from tests.sim.loop import SimClock
from tests.sim.metadata import SimMetadata
from tests.sim.network import SimBookies

TOPIC = "log"
TOPIC_ID = UUID("0f9f1f8e-7f5f-4f43-9d3a-2c1d5b6a7e80")
STREAM = stream_name(TOPIC_ID, 0)


class LossRig(FollowRig):
    """Created by `loss_rig`. `offsets` maps each entry of each ledger to its offsets."""

    def storage(self, store=None, bookies=None):
        store = store or SimMetadata(self.world.tree, self.world.metadata_faults)
        bookies = bookies or SimBookies(self.world.network, "admin")
        return Storage(store, bookies, SimClock(), "admin")

    async def start(self):
        await super().start()
        store = SimMetadata(self.world.tree)
        topic = {"name": TOPIC, "partitions": 1, "replication_factor": 3, "configs": {}}
        await store.create(f"{NAMES}/{TOPIC}", str(TOPIC_ID).encode(), parents=True)
        await store.create(f"{IDS}/{TOPIC_ID}", seal(topic), parents=True)
        return self

    async def written(self, *segments):
        """An owner that wrote these entries into each segment; the last one stays open.

        An entry is the number of its records, or a tuple with the size of each of its batches.
        """
        owner = Owner(self, "owner")
        await owner.stream.open(begin=True)
        if not owner.stream.writable:
            await owner.stream.begin()
        for at, entries in enumerate(segments):
            if at:
                await owner.roll()
            for entry in entries:
                await owner.writable()
                for size in (1,) * entry if isinstance(entry, int) else entry:
                    self.append(owner, size)
                await owner.settle()
        return owner

    def append(self, owner, count):
        """Append a batch of so many records, whose answer has its first offset."""
        data = self.new_data()
        at = owner.stream.next_sequence_id
        owner.pending += 1

        def on_durable(error):
            owner.pending -= 1
            if error is None:
                owner.answers[data] = at

        owner.stream.append((data,), len(data), count, timestamp_of(data), on_durable)

    def listed(self):
        """The stored segments, by number."""
        prefix = f"{log_root(STREAM)}/ledgers/"
        nodes = self.world.tree.nodes.items()
        found = [decode_segment(r.data, where=p) for p, r in nodes if p.startswith(prefix)]
        return sorted(found, key=lambda segment: segment.number)

    def losses(self):
        """The stored losses."""
        node = self.world.tree.nodes.get(losses_path(STREAM))
        return NO_LOSSES if node is None else decode_losses(node.data, "losses")

    def members(self, ledger):
        return self.world.metadata_of(ledger).last_fragment.ensemble

    def forget(self, ledger, *entries, on=None):
        """These entries are gone from all bookies, or from those named."""
        for name in on or self.members(ledger):
            for entry in entries:
                del self.world.bookies[name].ledgers[ledger].entries[entry]

    def spoil(self, ledger, *entries, on=None):
        """One bit of the payload flips on all bookies, or on those named."""
        for name in on or self.members(ledger):
            stored = self.world.bookies[name].ledgers[ledger]
            for entry in entries:
                body = stored.entries[entry]
                stored.entries[entry] = body[:-1] + bytes([body[-1] ^ 1])

    def lose(self, *names):
        for name in names:
            self.world.bookies[name].crash()

    async def gaps(self, *, deep=False, every=False):
        rows = await topic_gaps(self.storage(), TOPIC, [], deep=deep, every=every)
        check_value("gateway topic gaps", rows)
        return rows

    async def accept(
        self, first, last, *, give_up=(), partition=0, topic=TOPIC, storage=None, meanwhile=None
    ):
        """What `gateway topic accept-loss` does; `meanwhile` happens while it asks."""
        storage = storage or self.storage()
        wanted = OffsetRange(first, last)
        loss = topic, partition, wanted, give_up
        shown = await propose_loss(storage, *loss)
        if meanwhile is not None:
            await meanwhile()
        if shown.losses:
            await accept_loss(storage, *loss, shown)
        return shown


@asynccontextmanager
async def loss_rig(monkeypatch, bookies=3, **config):
    """A started rig. The owners of the rig write the partition of the topic."""
    monkeypatch.setattr(follow_rig, "NAME", STREAM)
    yield await LossRig(cluster(bookies), **config).start()


def drawn(seed):
    return random.Random(seed)


def summary(rows):
    """Each row as (kind, state, offsets, entries)."""
    return [(row["kind"], row["state"], *row["offsets"], *(row["entries"] or ())) for row in rows]
