"""What goes wrong in a swarm: a method for each kind of fault; most end with their spell."""

import asyncio
from functools import partial

from ledger.ids import BookieId
from tests.sim.cluster import DAY_MS
from tests.sim.disk import ACCIDENTS, DiskFaults
from tests.sim.disk_bookie import DiskBookie
from tests.sim.surprises import DISK_CALLS, TABLE_CALLS, surprise

KINDS = (
    "crash",
    "rolling_restart",
    "cut",
    "cut_requests",
    "cut_replies",
    "part_from_all",
    "slow_links",
    "slow_disk",
    "loss",
    "pause",
    "read_only",
    "overload",
    "metadata_cut",
    "expire",
    "clock_jump",
)
REFUSALS = ("refuse", "refuse_everywhere")
LOSSES = ("come_back_in_limbo", "come_back_empty", "come_back_old", "rot")
REAL_KINDS = ("disk_full", "sync_fails", "rewrite", "disk_accident", "slow_flush")
SURPRISES = ("surprised_host",)
REAL_SURPRISES = ("surprised_bookie",)
REAL_LOSSES = ("misdirected_write",)


class Faults:
    """Draws and applies; `end` undoes all that can be undone."""

    def __init__(self, world):
        self.world = world
        self.draw = draw = world.draw
        if world.kinds is None:
            self.kinds = sorted(draw.sample(KINDS, draw.randint(0, len(KINDS))))
        else:
            self.kinds = list(world.kinds)
        if world.loses_data:
            self.kinds.append(draw.choice(self._losses()))
        if world.real_bookies:
            self.kinds += REAL_KINDS
        if world.refuses:
            self.kinds += REFUSALS
        if world.surprises:
            self.kinds += SURPRISES + (REAL_SURPRISES if world.real_bookies else ())
        self.pace_s = draw.choice([0.03, 0.1, 0.3])
        self.base_loss = world.weather.loss
        self.kept = {}  # disks as they were, for a bookie that comes back old
        self.undo = []
        self.seen = set()

    def _losses(self):
        """Repair does not look for damaged entries, which readers do."""
        world = self.world
        if world.losses or world.repairs:
            return world.losses or LOSSES[:3]
        return LOSSES + REAL_LOSSES if world.real_bookies else LOSSES

    async def run(self):
        draw = self.draw
        while True:
            await asyncio.sleep(draw.expovariate(1 / self.pace_s))
            if not self.kinds or draw.random() < 0.25:
                continue  # a quiet spell
            for kind in draw.sample(self.kinds, draw.randint(1, min(3, len(self.kinds)))):
                self.seen.add(kind)
                getattr(self, kind)()
                await asyncio.sleep(draw.uniform(0.0, self.pace_s))
            await asyncio.sleep(draw.expovariate(1 / self.pace_s))
            self.calm()

    def calm(self):
        """The spell is over; some bookies stay down."""
        self.world.cluster.network.mend()
        self.world.weather.loss = self.base_loss
        undo, self.undo = self.undo, []
        for one in undo:
            one()
        for bookie in self.bookies():
            if not bookie.up and self.draw.random() < 0.7:
                bookie.restart()
            elif isinstance(bookie, DiskBookie) and bookie.up and bookie.bookie.failure:
                bookie.crash()
                bookie.restart()

    def end(self):
        """All that can be undone is."""
        for bookie in self.bookies():
            if isinstance(bookie, DiskBookie):
                bookie.disk.fail_next_sync = False
                self.seen |= bookie.disk.happened
        self.calm()
        for bookie in self.bookies():
            if isinstance(bookie, DiskBookie) and bookie.up:
                bookie.bookie.check_disk_space()

    # -- who -----------------------------------------------------------------------------------

    def bookies(self):
        return list(self.world.cluster.bookies.values())

    def a_bookie(self):
        return self.draw.choice(sorted(self.world.cluster.bookies))

    def a_host(self):
        return self.draw.choice(sorted(self.world.cluster.ports, key=str))

    def hosts(self):
        return sorted(self.world.cluster.ports, key=str)

    # -- kinds ---------------------------------------------------------------------------------

    def crash(self):
        bookie = self.world.cluster.bookies[self.a_bookie()]
        if bookie.up:
            bookie.crash()

    def rolling_restart(self):
        self.world.spawn(self._restart_all())

    async def _restart_all(self):
        for bookie in self.bookies():
            if bookie.up:
                bookie.crash()
            await asyncio.sleep(0.01)
            if not bookie.up:
                bookie.restart()
            await asyncio.sleep(self.draw.uniform(0.0, 0.05))

    def cut(self, way="both"):
        if self.world.cluster.ports:
            self.world.cluster.network.cut(self.a_host(), self.a_bookie(), way)

    def cut_requests(self):
        self.cut("requests")

    def cut_replies(self):
        self.cut("replies")

    def part_from_all(self):
        """One host hears some bookies no more, or one bookie is heard by nobody."""
        network = self.world.cluster.network
        way = self.draw.choice(["both", "both", "requests", "replies"])
        if self.draw.random() < 0.5 and self.world.cluster.ports:
            host = self.a_host()
            for name in sorted(self.world.cluster.bookies):
                if self.draw.random() < 0.7:
                    network.cut(host, name, way)
        else:
            name = self.a_bookie()
            for host in self.hosts():
                network.cut(host, name, way)

    def refuse(self):
        """A bookie refuses what one host asks, or what all ask: their certificates lack a role."""
        name = self.a_bookie()
        hosts = self.hosts()
        if hosts and self.draw.random() < 0.7:
            hosts = [self.draw.choice(hosts)]
        self.world.cluster.network.denied |= {(host, name) for host in hosts}

    def refuse_everywhere(self):
        """Most bookies refuse what one host asks."""
        if self.world.cluster.ports:
            host = self.a_host()
            names = [n for n in sorted(self.world.cluster.bookies) if self.draw.random() < 0.7]
            self.world.cluster.network.denied |= {(host, name) for name in names}

    def slow_links(self):
        factor = self.draw.choice([10, 100])
        name = self.a_bookie()
        for host in self.hosts():
            if self.draw.random() < 0.5:
                self.world.cluster.network.slow[host, name] = factor

    def slow_disk(self):
        bookie = self.world.cluster.bookies[self.a_bookie()]
        factor = self.draw.choice([20.0, 200.0])
        if isinstance(bookie, DiskBookie):
            bookie.disk.faults = DiskFaults(sync_s_max=factor * DiskFaults().sync_s_max)
            self.undo.append(lambda: setattr(bookie.disk, "faults", DiskFaults()))
            return
        bookie.sync_factor = factor
        self.undo.append(lambda: setattr(bookie, "sync_factor", 1.0))

    def loss(self):
        self.world.weather.loss = self.draw.choice([0.1, 0.4])

    def pause(self):
        """A process stands still; what comes for it is there when it goes on."""
        if not self.world.cluster.ports:
            return
        host = self.a_host()
        port, session = self.world.cluster.ports[host], self.world.cluster.sessions[host]
        if session.gate is not None:
            return
        port.pause()
        gate = session.gate = asyncio.Event()

        def resume():
            session.gate = None
            gate.set()
            port.resume()

        if self.draw.random() < 0.5:
            self.undo.append(resume)
        else:  # a zombie sleeps for longer
            delay_s = self.draw.uniform(0.1, 5.0)
            asyncio.get_running_loop().call_later(delay_s, resume)

    def read_only(self):
        bookie = self.world.cluster.bookies[self.a_bookie()]
        if not isinstance(bookie, DiskBookie):
            bookie.read_only = True
            self.undo.append(lambda: setattr(bookie, "read_only", False))

    def overload(self):
        bookie = self.world.cluster.bookies[self.a_bookie()]
        if not isinstance(bookie, DiskBookie):
            bookie.overloaded = True
            self.undo.append(lambda: setattr(bookie, "overloaded", False))

    def metadata_cut(self):
        if self.world.host_faults:
            faults = self.world.host_faults[self.draw.choice(sorted(self.world.host_faults))]
            faults.cut = True
            self.undo.append(lambda: setattr(faults, "cut", False))

    def expire(self):
        if self.world.cluster.sessions:
            host = self.draw.choice(sorted(self.world.cluster.sessions))
            session = self.world.cluster.sessions[host]
            if not session.expired and not session.dead:
                session.expire()

    def surprised_host(self):
        """The next call to the metadata store or to bookies raises what nobody expects."""
        known = self.world.cluster.sessions, self.world.cluster.ports
        of_kind = self.draw.choice(known)
        if not of_kind:
            return
        port = of_kind[self.draw.choice(sorted(of_kind, key=str))]
        port.surprise = surprise(self.draw), self.draw.random() < 0.5
        self.undo.append(lambda: setattr(port, "surprise", None))

    def clock_jump(self):
        """A machine's wall clock is set, forward or back, and stays so."""
        if self.world.cluster.clocks:
            host = self.draw.choice(sorted(self.world.cluster.clocks))
            jump_ms = self.draw.choice([500, 60_000, DAY_MS, 3_650 * DAY_MS])
            self.world.cluster.clocks[host].epoch_ms += self.draw.choice([-1, 1]) * jump_ms

    # -- a bookie loses its data: once in a seed, since more than Qa - 1 may lose entries ---------

    def _loser(self):
        known = self.world.checks.ledgers
        return None if known.lost else self.a_bookie()

    def come_back_in_limbo(self):
        """The disk is empty, the bookie knows it."""
        name = self._loser()
        if name is not None:
            bookie = self.world.cluster.bookies[name]
            bookie.wipe()
            self.world.checks.on_bookie_lost(name)
            self._return_in_limbo(bookie)

    def come_back_empty(self):
        """The disk is empty, which makes it another bookie at the same place."""
        name = self._loser()
        if name is None:
            return
        bookies = self.world.cluster.bookies
        gone = bookies.pop(name)
        gone.kill()
        self.world.checks.on_bookie_lost(name)
        new = BookieId(f"{name}.1")
        bookies[new] = self.world.new_bookie(self.world.cluster.draw)
        self.world.cluster.network.racks[new] = self.world.cluster.network.racks[name]

    def come_back_old(self):
        """First its disk is copied; the next time, the copy is what it has."""
        if not self.kept:
            name = self.a_bookie()
            self.kept[name] = self.world.cluster.bookies[name].keep()
            return
        ((name, kept),) = self.kept.items()
        if not self.world.checks.ledgers.lost and name in self.world.cluster.bookies:
            bookie = self.world.cluster.bookies[name]
            bookie.put_back(kept)
            self.world.checks.on_bookie_lost(name)
            self._return_in_limbo(bookie)

    def rot(self):
        """What one bookie has cannot be read any more, or is not what was written."""
        name = self._loser()
        bookie = name and self.world.cluster.bookies[name]
        if bookie and bookie.rot(self.draw):
            self.world.checks.on_bookie_lost(name)

    def _return_in_limbo(self, bookie):
        bookie.begin_limbo(self.world.next_ledger())
        if self.draw.random() < 0.7:
            bookie.restart()

    # -- real bookies only -----------------------------------------------------------------------

    def disk_full(self):
        bookie = self.world.cluster.bookies[self.a_bookie()]
        disk = bookie.disk
        disk.full = True
        self.undo.append(lambda: setattr(disk, "full", False))

    def disk_accident(self):
        """One or two of the accidents of a disk wait for the next calls that they can end, such as
        those of a roll.
        """
        bookie = self.world.cluster.bookies[self.a_bookie()]
        disk = bookie.disk
        disk.accidents += self.draw.sample(ACCIDENTS, self.draw.randint(1, 2))
        self.undo.append(disk.accidents.clear)
        if self.draw.random() < 0.5:
            self._rewrite(bookie)

    def slow_flush(self):
        """Flushes of the index take longer than many groups of adds."""
        bookie = self.world.cluster.bookies[self.a_bookie()]
        bookie.slow_flushes(self.draw.choice([0.3, 2.0]))
        self.undo.append(bookie.usual_flushes)

    def surprised_bookie(self):
        """A call of the disk or of the index raises what nobody expects."""
        bookie = self.world.cluster.bookies[self.a_bookie()]
        if self.draw.random() < 0.7:
            planted, calls = bookie.planted_disk, DISK_CALLS
        else:
            planted, calls = bookie.planted_table, TABLE_CALLS
        planted[self.draw.choice(calls)] = surprise(self.draw)
        self.undo.append(planted.clear)

    def misdirected_write(self):
        name = self._loser()
        bookie = name and self.world.cluster.bookies[name]
        if bookie and bookie.up:
            bookie.on_lost = partial(self.world.checks.on_bookie_lost, name)
            bookie.misdirect()
            self.undo.append(bookie.disk.accidents.clear)

    def rewrite(self):
        """All that one bookie holds moves to new log files, while it serves."""
        self._rewrite(self.world.cluster.bookies[self.a_bookie()])

    def _rewrite(self, bookie):
        if bookie.up and bookie.bookie.failure is None:
            self.world.spawn(bookie.rewrite())

    def sync_fails(self):
        self.world.cluster.bookies[self.a_bookie()].disk.fail_next_sync = True
