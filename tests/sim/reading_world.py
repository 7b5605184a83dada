"""One stream under faults, with readers of every kind and an oracle that knows every copy.

Owners write, die and are taken over; bookies crash, lose their disks, come back with old ones;
copies vanish, rot and are found again; repair mends; an operator accepts what is proved lost. Then
all is healed, every loss is accepted, and all readers must see one log.

    python -m tests.sim.reading_world FIRST [LAST]
"""

import asyncio
import contextlib
import sys
from bisect import bisect_right
from operator import itemgetter

from ledger.client.client import LedgerClient
from ledger.client.update_metadata import LedgerMetadataStore
from ledger.errors import EntryUnknown, LedgerError, NoSuchEntry, NoSuchLedger
from ledger.losses.acceptance import LossAcceptor
from ledger.streams.config import StreamLimits
from ledger.streams.segment_store import log_root
from tests.ledger.follow_rig import NAME, FollowRig
from tests.sim.loop import SimClock, simulate
from tests.sim.reading_faults import KINDS, LOSSES, ReadingFaults
from tests.sim.reading_hosts import Following, Native, Owning, Scanning, Writing
from tests.sim.reading_oracle import LOST, Oracle
from tests.sim.seeds import repeat
from tests.sim.swarm import Swarm, order_of
from tests.sim.swarm_hosts import Mender

SHAPES = ((3, 3, 2), (3, 3, 2), (2, 2, 2), (3, 2, 2), (4, 3, 2), (3, 3, 3))
KINDS_OF_READERS = {"follower": Following, "scan": Scanning, "owner": Owning}


class Lossless(Swarm):
    """Nothing is lost, so no reader may ever be told of a loss."""

    shapes = SHAPES
    kinds = KINDS
    losses_of_copies = ()
    give_up_s = 1_200.0

    def adjust(self):
        draw = self.draw
        self.real_bookies = self.surprises = self.loses_data = False
        self.repairs = draw.random() < 0.3
        self.weather.loss = draw.choice([0.0, 0.0, 0.02])
        self.metadata_loss = draw.choice([0.0, 0.0, 0.1])
        self.heal_s = draw.uniform(1.0, 4.0)
        self.pause_s = draw.choice([0.02, 0.1])
        self.pending_max = draw.choice([1, 5])
        self.truncates = draw.choice([0.0, 0.0, 0.03])
        self.slow_s = 0.0  # a native reader is slower by so much
        self.kinds = draw.sample(KINDS, draw.randint(0, 5))

    def build(self):
        super().build()
        self.oracle = self.checks = Oracle(self.cluster, NAME)
        self.faults = ReadingFaults(self)
        draw = self.draw
        e, qw, qa = self.shape()
        snapshot_bytes = draw.choice([600, 3000, 1 << 20])
        limits = StreamLimits(
            entry_bytes_max=64 * 1024,
            snapshot_bytes=snapshot_bytes,
            index_stride_bytes=draw.choice([100, 600]),
            tail_cache_bytes=draw.choice([0, 3000, 1 << 20]),
            read_chunk_bytes=draw.choice([1, 500, 5000]),
            cursors_max=draw.choice([1, 3, 64]),
        )
        self.rig = FollowRig(
            self.cluster,
            limits=limits,
            ensemble_size=e,
            write_quorum=qw,
            ack_quorum=qa,
            segment_bytes=draw.choice([600, 3000, 1 << 30]),
            control_ms=draw.choice([20, 100]),
            retention_ms=-1,
            truncated_keep_ms=draw.choice([0, 2_000]),
        )
        self.stopping = False
        self.owner = None
        self.owners = []  # all there were, each with its task
        self.notes = []

    def note(self, error):
        """An owner failed with this error, as may be."""
        self.notes.append(error)

    def reader_options(self, session):
        return {}

    def connect(self, host):
        port, session = super().connect(host)
        self.hear_in_order(session)
        return port, session

    @staticmethod
    def hear_in_order(session):
        """Show a notified session the change in every later read, as ZooKeeper does."""
        watch = session.watch

        def watch_in_order(path, on_changed):
            def tell():
                session._catch_up()
                on_changed()

            return watch(path, tell)

        session.watch = watch_in_order

    def spawn(self, work):
        task = asyncio.create_task(work)
        task.add_done_callback(self._on_done)
        self.tasks.append(task)
        return task

    def _on_done(self, task):
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.oracle.report("errors", f"a process ended: {error!r}")

    # -- the processes -----------------------------------------------------------------------------

    def new_owner(self):
        self.owner = Writing(self, len(self.owners))
        self.owners.append((self.owner, self.spawn(self.owner.serve())))

    def kill_owners(self):
        """The processes of all owners die, also those that another one has replaced."""
        for owner, serving in self.owners:
            owner.kill()
            serving.cancel()

    async def take_over(self):
        """Now and then another process serves; the old one is dead, or a zombie."""
        draw = self.draw
        while not self.stopping:
            await asyncio.sleep(draw.expovariate(1 / 1.0))
            if self.stopping:
                return
            self.oracle.seen["a takeover"] += 1
            if draw.random() < 0.6:
                self.kill_owners()
            self.new_owner()

    def start_readers(self):
        draw = self.draw
        self.natives = [
            Native(self, f"native{number}", buffer_bytes=draw.choice([1, 300, 1 << 20]))
            for number in range(draw.choice([1, 2]))
        ]
        names = draw.sample(sorted(KINDS_OF_READERS), draw.choice([1, 1, 2, 3]))
        self.by_offset = [KINDS_OF_READERS[name](self, name) for name in names]
        self.following = [self.spawn(one.follow()) for one in self.natives]
        self.following += [self.spawn(one.follow()) for one in self.by_offset]

    async def operate(self):
        """What an operator does meanwhile."""

    # -- the run -----------------------------------------------------------------------------------

    async def run(self):
        self.build()
        asyncio.get_running_loop().set_exception_handler(self.on_exception)
        await self.cluster.start()
        await self.rig.start()
        self.new_owner()
        self.spawn(self.take_over())
        self.start_readers()
        self.spawn(self.operate())
        self.mender = Mender(self) if self.repairs else None
        if self.mender:
            self.mender.start()
        faults = asyncio.create_task(self.faults.run())
        await asyncio.sleep(self.heal_s)
        faults.cancel()
        await asyncio.gather(faults, return_exceptions=True)
        self.heal()
        try:
            async with asyncio.timeout(self.give_up_s):
                await self.finish()
        except TimeoutError:
            last = self.notes[-1:]
            self.oracle.report("liveness", f"not over after {self.give_up_s} s; owners: {last}")
        except LedgerError as error:
            self.oracle.report("errors", f"a host did not expect {error!r}")
        return self.oracle.violations

    async def finish(self):
        """All readers see one log to its end, and it holds all that was acknowledged."""
        await self.cluster.all_up()
        self.stopping = True
        self.kill_owners()
        for following in self.following:
            following.cancel()
        await asyncio.gather(*self.following, return_exceptions=True)
        end = await self._last_owner()
        await self.settle_losses(end)
        with contextlib.suppress(LedgerError):
            await self.owner.stream.expire()
        start = self.oracle.start
        logs = {}
        for one in self.natives:
            await one.follow(end)
        fresh = Native(self, "last native")
        await fresh.follow(end)
        logs["native"] = _runs(fresh.log, start)
        for name, kind in KINDS_OF_READERS.items():
            one = kind(self, f"last {name}")
            await one.open()
            logs[name] = await one.whole(start, end)
            await one.close()
        for one in self.by_offset:  # those that saw all of it
            try:
                if not one.is_open:
                    await one.open()
                await one.catch_up()
                logs[f"old {one.host}"] = await one.whole(start, end)
            except LedgerError as error:
                self.oracle.report("order", f"{one.host} failed: {error!r}")
        self._compare(logs, start)

    async def _last_owner(self):
        """The end of the stream, whose segments are all completed."""
        last = self.owner = Writing(self, len(self.owners))
        while True:
            try:
                await last.stream.open()
                await last.stream.begin()
                last.append()
                await last.settle()
                break
            except LedgerError as error:
                self.note(error)
                await self.help_owner(error)
                await asyncio.sleep(0.5)
        return last.stream.end_sequence_id

    async def help_owner(self, error):
        """The last owner cannot open the stream."""

    async def settle_losses(self, end):
        """Every loss is accepted."""

    def _compare(self, logs, start):
        """All logs have the same record at each offset that was ever acknowledged or shown."""
        oracle = self.oracle
        for offset, data in sorted(oracle.content.items()):
            if offset < start:
                continue
            found = {name: _at(log, offset) for name, log in logs.items()}
            lost = oracle.accepted_offset(offset)
            if len(set(found.values())) > 1:
                oracle.report("disagree", f"{offset} is {found}")
                return
            expected = LOST if lost is not None else data
            acked = offset in oracle.acked
            if acked and set(found.values()) != {expected}:
                oracle.report("order", f"{offset} held {data}, and is read as {found}")
                return


class Trimmed(Lossless):
    """The start moves all the time, past readers that are slow."""

    def adjust(self):
        super().adjust()
        self.truncates = 0.15
        self.pause_s = 0.02
        self.slow_s = 0.5


class Lossy(Lossless):
    """Copies are lost. An operator accepts what is proved lost."""

    losses_of_copies = LOSSES

    def adjust(self):
        super().adjust()
        self.kinds = self.draw.sample(KINDS, self.draw.randint(0, 3))
        self.accepts = self.draw.choice([0.0, 0.3, 1.0])

    async def operate(self):
        """Accept some losses that a reader of the operator's own has met."""
        native = Native(self, "operator")
        self.natives.append(native)
        self.following.append(self.spawn(native.follow()))
        while not self.stopping:
            await asyncio.sleep(self.draw.expovariate(1 / 0.5))
            for gap in native.losses:
                if self.draw.random() < self.accepts:
                    await self.accept(gap)

    async def accept(self, gap):
        """Accept a loss that nobody has accepted yet. False if it cannot be."""
        if gap.evidence.acceptance is not None:
            return False
        return await self.accept_ledger(gap.evidence.ledger)

    async def accept_ledger(self, ledger):
        """Do as `ledger recover N --accept-loss`. False if that is not possible now."""
        port, session = self.connect("operator's command")
        config = self.cluster.config
        client = LedgerClient(session, port, SimClock(), config)
        store = LedgerMetadataStore(session, config)
        acceptor = LossAcceptor(client, store, port, SimClock(), config, self._mark)
        try:
            accepted = await acceptor.accept_ledger(ledger, "an operator")
        except NoSuchLedger:
            return False
        except LedgerError as error:
            self.note(error)
            return False
        self.oracle.seen["losses of a ledger were accepted"] += 1
        self.oracle.seen["a ledger was closed by force"] += accepted.forced
        return True

    async def _mark(self, ledger):
        """Repair looks at all ledgers of its own accord."""

    async def help_owner(self, error):
        """Accept what readers meet, and what only the owner needs: it may lie before the start."""
        await self._accept_all()
        if isinstance(error, EntryUnknown | NoSuchEntry):
            await self._accept_listed()

    async def _accept_listed(self):
        """Accept what is lost of all segments, also what lies before the start."""
        for number, segment in sorted(self.oracle.segments.items()):
            if number >= self._first_listed():
                await self.accept_ledger(segment.ledger)

    def _first_listed(self):
        prefix = f"{log_root(NAME)}/ledgers/"
        names = [path for path in self.cluster.tree.nodes if path.startswith(prefix)]
        return min((int(name.rpartition("_")[2]) for name in names), default=1)

    async def settle_losses(self, end):
        """Accept losses until a reader meets no other ones."""
        await asyncio.sleep(60.0)
        await self._accept_all()
        await asyncio.sleep(60.0)

    async def _accept_all(self):
        for _ in range(20):
            scout = Native(self, "scout")
            scouting = self.spawn(scout.follow())
            await asyncio.sleep(20.0)
            scouting.cancel()
            await asyncio.gather(scouting, return_exceptions=True)
            waiting = scout.reader.waiting
            accepted = [await self.accept(gap) for gap in scout.losses]
            if scout.at is None:
                await self._accept_listed()
            elif waiting is not None and waiting.bookies:
                await self.give_up(waiting)
            elif not any(accepted):
                return
        self.oracle.report("liveness", "a reader meets ever more losses")

    async def give_up(self, waiting):
        """Give up what a reader waits for: damaged copies, and those of bookies that are gone."""
        await self.accept_ledger(self.oracle.segments[waiting.position.segment].ledger)


class LossyTrimmed(Lossy):
    """The start passes accepted losses."""

    def adjust(self):
        super().adjust()
        self.truncates = 0.15
        self.accepts = 1.0
        self.heal_s = 6.0


def _runs(log, start):
    return [(at, at + 1, data) for at, data in sorted(log.items()) if at >= start]


def _at(log, offset):
    """What the log [(first, end, data)] has at this offset."""
    at = bisect_right(log, offset, key=itemgetter(0)) - 1
    return log[at][2] if at >= 0 and offset < log[at][1] else None


FAMILIES = (Lossless, Lossy, Trimmed, LossyTrimmed)


def run(seed, kind=None):
    """What was found wrong."""
    kind = kind or FAMILIES[seed % len(FAMILIES)]
    return simulate(kind(seed).run(), order_of(seed))


if __name__ == "__main__":
    sys.exit(repeat(run))
