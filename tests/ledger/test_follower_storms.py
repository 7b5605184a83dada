"""Goal: under any faults of owners, bookies, links and metadata a follower shows one log.

An offset always has the same data and appears once, and every record shown is in the final log.
Start, end and epoch never decrease.

Method: by seed, owners write, roll, truncate, die and take over; followers read at the tail, from
behind, or pause; with faults injected. Every record that a follower has shown is compared with the
log of the last owner, the dumb twin. Then known mistakes are planted, and each must be found.
Repeat a seed: `python -m tests.ledger.test_follower_storms SEED [SEED]`.
"""

import asyncio
import sys
from random import Random

import pytest

from ledger.client.client import LedgerClient
from ledger.client.reader import LedgerReader
from ledger.core.segments import Segment
from ledger.errors import LedgerError, Truncated
from ledger.streams import follower as follower_module
from ledger.streams.config import StreamLimits
from ledger.streams.follower import FollowedStream
from ledger.streams.segment_tail import SegmentTail
from tests.ledger.follow_rig import Follower, FollowRig, Owner
from tests.sim import first_seeds
from tests.sim.cluster import Cluster
from tests.sim.metadata import MetadataFaults
from tests.sim.network import Observer, Weather
from tests.sim.seeds import first_at_commit, repeat, run_world

SEEDS = 48
BLOCKS = 6
PLANTED_SEEDS_MAX = 200
STORM_S = 8.0


class Fences(Observer):
    """No follower may ask for one."""

    def __init__(self, report):
        self.report = report

    def on_recovery_read(self, host, bookie, ledger, entry):
        if host.startswith("follower"):
            self.report(f"{host} fenced ledger {ledger}")


class Storm:
    """Everything of one seed."""

    def __init__(self, seed):
        self.draw = draw = Random(f"{seed}:follower")
        self.violations = []
        self.seen = {}  # by sequence id: the data that followers were shown
        self.over = False
        weather = Weather(
            tail_rate=draw.choice([0.0, 0.1]), loss=draw.choice([0.0, 0.02]), timeout_s=0.3
        )
        self.world = Cluster(seed, bookies=draw.choice([3, 4]), weather=weather)
        if draw.random() < 0.5:
            self.world.metadata_faults.unsent = self.world.metadata_faults.reply_lost = 0.03
        limits = StreamLimits(
            entry_bytes_max=64 * 1024,
            snapshot_bytes=draw.choice([300, 1500, 1 << 20]),
            index_stride_bytes=draw.choice([100, 300]),
            tail_cache_bytes=draw.choice([0, 3000, 1 << 20]),
            read_chunk_bytes=draw.choice([1, 300, 5000]),
            cursors_max=draw.choice([1, 64]),
        )
        self.rig = FollowRig(
            self.world,
            limits=limits,
            segment_bytes=draw.choice([500, 4000, 1 << 30]),
            control_ms=draw.choice([-1, 20, 100]),
        )
        self.world.network.observer = Fences(self.report)
        self.owners = []
        self.hosts = 0

    def report(self, text):
        self.violations.append(text)

    # -- owners -------------------------------------------------------------------------------

    async def new_owner(self):
        """Take over from the present owner, with the retries of a gateway."""
        self.hosts += 1
        owner = Owner(self.rig, f"owner {self.hosts}", faults=self.world.metadata_faults)
        self.owners.append(owner)
        await self.reopen(owner)

    async def reopen(self, owner):
        while not owner.session.dead:
            try:
                async with asyncio.timeout(10):
                    await owner.open()
            except (LedgerError, TimeoutError):
                await asyncio.sleep(0.1)
            else:
                owner.failures.clear()
                return

    async def write(self):
        draw = self.draw
        while not self.over:
            owner = self.owners[-1]
            if owner.failures and not owner.session.dead and draw.random() < 0.3:
                await self.reopen(owner)
            for _ in range(draw.choice([1, 1, 2, 10])):
                if owner.stream.writable and owner.pending < 50:
                    owner.append(draw.choice([16, 24, 200]))
            await asyncio.sleep(draw.expovariate(1 / 0.02))

    async def change_owners(self):
        """Some owners die first, others only lose their links."""
        draw = self.draw
        while not self.over:
            await asyncio.sleep(draw.expovariate(1 / 2.0))
            chance = draw.random()
            owner = self.owners[-1]
            try:
                if chance < 0.3:
                    owner.kill()
                    await asyncio.sleep(draw.choice([0.0, 0.5]))
                    await self.new_owner()
                elif chance < 0.4:
                    await self.new_owner()
                elif chance < 0.7:
                    owner.stream.roll_soon()
                else:
                    start, end = owner.stream.start_sequence_id, owner.stream.end_sequence_id
                    await owner.stream.truncate(draw.randint(start, max(start, end)))
            except LedgerError:
                pass

    async def harm(self):
        draw, world = self.draw, self.world
        while not self.over:
            await asyncio.sleep(draw.expovariate(1 / 1.0))
            name = draw.choice(sorted(world.bookies))
            bookie = world.bookies[name]
            if draw.random() < 0.5 and bookie.up:
                bookie.crash()
                await asyncio.sleep(draw.random())
                bookie.restart()
            else:
                host = draw.choice([*world.ports, "follower 0", "follower 1"])
                world.network.cut(host, name)
                await asyncio.sleep(draw.random() * 2)
                world.network.mend()

    # -- followers ----------------------------------------------------------------------------

    def new_follower(self, number):
        lag_s = self.draw.choice([0.0, 0.0, 0.3])
        faults = self.world.metadata_faults
        if lag_s:
            faults = MetadataFaults(self.draw, lag_s=lag_s, unsent=faults.unsent)
        return Follower(self.rig, f"follower {number}", faults=faults)

    async def read(self, follower):
        """Read as clients do: at the tail, from anywhere, or not at all for a while."""
        draw, stream = self.draw, follower.stream
        at, shown = 0, (0, 0, -1)
        while not self.over:
            chance = draw.random()
            if chance < 0.02:
                await stream.close()
                await asyncio.sleep(draw.choice([0.0, 0.5]))
            elif chance < 0.04:
                follower.session.expire()
            elif chance < 0.1:
                at = draw.randint(0, stream.end_sequence_id)
            elif chance < 0.12:
                await asyncio.sleep(draw.choice([0.5, 2.0]))
            at = await self.read_once(stream, at)
            shown = self.check_shown(stream, shown)
            await asyncio.sleep(draw.expovariate(1 / 0.02))

    async def read_once(self, stream, at):
        """Choose where to continue."""
        at = max(at, stream.start_sequence_id)
        try:
            await stream.open()
            bytes_max = self.draw.choice([1, 100, 2000])
            records = stream.read_cached(at, bytes_max)
            if records is None:
                records = await stream.read(at, bytes_max)
        except Truncated:
            return stream.start_sequence_id
        except LedgerError:
            return at
        for record in records:
            if not record.sequence_id == at < record.end_sequence_id:
                self.report(f"{record.sequence_id} was given where {at} is due")
            self.see(record)
            at = record.end_sequence_id
        if at > stream.end_sequence_id:
            self.report(f"{at} was given, the end is {stream.end_sequence_id}")
        return at

    def see(self, record):
        data = b"".join(record.data)
        if self.seen.setdefault(record.sequence_id, data) != data:
            self.report(f"{record.sequence_id} changed: {self.seen[record.sequence_id]}, {data}")

    def check_shown(self, stream, before):
        now = (stream.start_sequence_id, stream.end_sequence_id, stream.epoch)
        if any(new < old for new, old in zip(now, before, strict=True)):
            self.report(f"start, end or epoch fell: {before}, {now}")
        if stream.start_sequence_id > stream.end_sequence_id:
            self.report(f"the start is past the end: {now}")
        return now

    # -- the whole ----------------------------------------------------------------------------

    async def run(self):
        await self.rig.start()
        await self.new_owner()
        followers = [self.new_follower(number) for number in range(2)]
        doing = [self.write(), self.change_owners(), self.harm(), *map(self.read, followers)]
        tasks = [asyncio.ensure_future(one) for one in doing]
        await asyncio.wait(tasks, timeout=STORM_S, return_when=asyncio.FIRST_EXCEPTION)
        self.over = True
        await asyncio.wait(tasks, timeout=10)
        for task in tasks:
            if task.done():
                task.result()
            task.cancel()  # a call of a dead process never returns
        await asyncio.gather(*tasks, return_exceptions=True)
        self.world.heal()
        await self.finish(followers)
        return self.violations

    async def finish(self, followers):
        """Open a last owner, whose log counts, and check that followers catch up with it."""
        async with asyncio.timeout(300):
            self.over = False
            await self.new_owner()
            owner = self.owners[-1]
            await owner.add(3)
            end = owner.stream.end_sequence_id
            log, at = {}, owner.stream.start_sequence_id
            epochs = {}
            while at < end:
                for record in await owner.stream.read(at, 10_000):
                    log[at] = b"".join(record.data)
                    epochs[at] = owner.stream.epoch_at(at)
                    at = record.end_sequence_id
        self.check_log(log, owner)
        for follower in followers:
            await self.check_follower(follower, log, epochs, end)

    def check_log(self, log, last):
        for at, data in self.seen.items():
            if at >= last.stream.start_sequence_id and log.get(at) != data:
                self.report(f"{at} was shown as {data}, the log has {log.get(at)}")
        for owner in self.owners:
            for data, at in owner.answers.items():
                if at in log and log[at] != data:
                    self.report(f"{data} was acknowledged at {at}")

    async def check_follower(self, follower, log, epochs, end):
        stream = follower.stream
        try:
            async with asyncio.timeout(60):
                await self.until_end(follower, end - 1)
                found = await follower.read_all()
        except (TimeoutError, LedgerError) as error:
            self.report(f"{follower.port.port.host}: {stream.end_sequence_id} of {end}: {error!r}")
            return
        expected = {at: data for at, data in log.items() if at < stream.end_sequence_id}
        if found != expected:
            self.report(f"found {len(found)} records from {min(found, default=-1)} on")
        wrong = [at for at in expected if stream.epoch_at(at) != epochs[at]]
        if wrong:
            self.report(f"epoch {stream.epoch_at(wrong[0])} at {wrong[0]}, {epochs[wrong[0]]} due")

    @staticmethod
    async def until_end(follower, end):
        while follower.stream.end_sequence_id < end:
            try:
                await follower.stream.open()
            except LedgerError:
                pass
            await asyncio.sleep(0.05)
        await follower.stream.open()


def run(seed):
    """Return the errors found with this seed. A hang or a crash counts as one."""
    return run_world(Storm, seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", first_at_commit(range(BLOCKS), 1))
def test_a_follower_shows_one_log_whatever_happens(block):
    for seed in range(block * SEEDS // BLOCKS, (block + 1) * SEEDS // BLOCKS):
        assert run(seed) == [], f"repeat with: python -m tests.ledger.test_follower_storms {seed}"


# -- planted mistakes -----------------------------------------------------------------------------


def a_segment_is_left_as_soon_as_it_is_listed_as_completed(patch):
    """The known end is taken for the final one: records that recovery found are skipped."""

    def visible(segments):
        found = real(segments)
        for at in range(1, len(found)):
            if found[at - 1].completed and found[at - 1].record_count > 3:
                start = found[at].start_sequence_id - 1
                found[at] = Segment(
                    number=found[at].number,
                    ledger=found[at].ledger,
                    first_txid=found[at].first_txid,
                    start_sequence_id=start,
                )
                break
        return found[: at + 1] if len(found) > 1 else found

    real = follower_module.visible
    patch.setattr(follower_module, "visible", visible)


def what_is_not_confirmed_is_shown(patch):
    """An entry on any bookie counts as committed."""

    def learn(self, lac):
        self.last_add_confirmed = max(self.last_add_confirmed, lac + (1 if lac >= 0 else 0))

    patch.setattr(LedgerReader, "_raise_lac", learn)


def the_follower_fences(patch):
    async def opened(self, ledger):
        return await self.recover(ledger)

    patch.setattr(LedgerClient, "open", opened)


def the_tail_cache_keeps_what_a_jump_left_out(patch):
    clear = FollowedStream._clear_tail

    def keep(self):
        if not self.is_open:
            clear(self)

    patch.setattr(FollowedStream, "_clear_tail", keep)


def a_jump_forgets_a_record(patch):
    jump = SegmentTail.jump

    async def short(self):
        before = self.count
        await jump(self)
        if self.count > before + 2:
            self.count -= 1

    patch.setattr(SegmentTail, "jump", short)


def the_start_is_read_once(patch):
    from ledger.streams.segment_list import SegmentList

    watch = SegmentList.watch

    def forget(self, on_changed):
        watch(self, on_changed)
        self._unwatch[0]()

    patch.setattr(SegmentList, "watch", forget)


def the_end_is_forgotten_when_it_idles(patch):
    close = FollowedStream.close

    async def forget(self):
        await close(self)
        self._table.end_sequence_id = self.start_sequence_id

    patch.setattr(FollowedStream, "close", forget)


PLANTED = [
    a_segment_is_left_as_soon_as_it_is_listed_as_completed,
    what_is_not_confirmed_is_shown,
    the_follower_fences,
    the_tail_cache_keeps_what_a_jump_left_out,
    a_jump_forgets_a_record,
    the_start_is_read_once,
    the_end_is_forgotten_when_it_idles,
]


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_mistake_is_found(plant, monkeypatch):
    plant(monkeypatch)
    assert first_seeds.found("followers", plant.__name__, run, PLANTED_SEEDS_MAX)


if __name__ == "__main__":
    sys.exit(repeat(run))
