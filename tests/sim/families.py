"""Swarms drawn for one purpose: each makes some rare meeting of events a common one."""

from tests.sim.swarm import SAFE_SHAPES, Swarm


class Calm(Swarm):
    """Nothing but what a subclass says."""

    def adjust(self):
        self.real_bookies = self.repairs = self.loses_data = self.deletes = self.surprises = False
        self.refuses = False
        self.metadata_loss = 0.0
        self.lag_s = 0.0
        self.ledgers_max = 1
        self.kinds = ()


class Overtaken(Calm):
    """No crash, no cut, no loss: only messages that are overtaken by others sent later."""

    shapes = ((3, 3, 2),)
    takers = (1, 1, 2)

    def adjust(self):
        super().adjust()
        self.weather.loss = 0.0
        self.weather.tail_rate = self.draw.choice([0.2, 0.35])
        self.weather.tail_factor = 100.0
        self.entries_max = 12

    def build(self):
        super().build()
        slower = self.draw.choice([10, 30])
        for name in sorted(self.cluster.bookies):
            self.cluster.network.slow["writer0", name] = self.draw.choice([1, slower])


class Changing(Calm):
    """Bookies fail for writers, and are replaced while entries are pending."""

    takers = (0, 0, 1)
    shapes = ((3, 3, 2), (3, 2, 2), (4, 3, 2))

    def adjust(self):
        super().adjust()
        self.weather.loss = self.draw.choice([0.0, 0.05])
        self.weather.timeout_s = 0.3
        self.entries_max = 30
        self.heal_s = 3.0
        self.kinds = ("cut", "cut_replies", "cut_requests", "read_only", "slow_links", "crash")


class Unanswered(Changing):
    """The same, and the metadata store's replies are lost."""

    def adjust(self):
        super().adjust()
        self.metadata_loss = 0.3


class Crashing(Calm):
    """Bookies crash and come back while ledgers are taken over."""

    takers = (1, 2)
    shapes = SAFE_SHAPES

    def adjust(self):
        super().adjust()
        self.weather.timeout_s = 0.3
        self.kinds = ("crash", "rolling_restart", "slow_disk", "slow_links")


class Losing(Calm):
    """A bookie loses its data, and comes back."""

    takers = (1, 1, 2)
    shapes = ((3, 3, 2), (3, 2, 2))

    def adjust(self):
        super().adjust()
        self.loses_data = True
        self.entries_max = self.draw.choice([3, 12])
        self.kinds = ("crash", "cut", "slow_links")


class Wiped(Losing):
    losses = ("come_back_in_limbo", "come_back_old")


class Gone(Losing):
    losses = ("come_back_empty",)
    give_up_s = 100.0


class Rotten(Losing):
    losses = ("rot",)

    def adjust(self):
        super().adjust()
        self.readers = True


class Mended(Losing):
    """Auditor and worker mend what was lost."""

    losses = ("come_back_in_limbo", "come_back_empty", "come_back_old")

    def adjust(self):
        super().adjust()
        self.repairs = True


class Replaced(Changing):
    """Those who recover lose bookies too, and die half way."""

    takers = (2,)
    shapes = ((3, 2, 2), (3, 3, 2))

    def adjust(self):
        super().adjust()
        self.entries_max = 12
        self.heal_s = 2.0


class Deleted(Calm):
    """A ledger is deleted while it is written."""

    takers = (0, 1)

    def adjust(self):
        super().adjust()
        self.deletes = True


class Lagging(Deleted):
    """The same, and whoever asks the metadata store hears of things late."""

    def adjust(self):
        super().adjust()
        self.lag_s = 1.0
        self.ledgers_max = 3


class Refused(Calm):
    """Bookies refuse the requests of some hosts, which take ledgers over and read them."""

    takers = (1, 2)
    shapes = SAFE_SHAPES

    def adjust(self):
        super().adjust()
        self.refuses = self.readers = True
        self.weather.timeout_s = 0.3
        self.heal_s = 3.0


class RefusedAtRepair(Refused):
    """The same, and auditor and worker mend what was lost."""

    losses = ("come_back_in_limbo", "come_back_empty")

    def adjust(self):
        super().adjust()
        self.loses_data = self.repairs = True


class Watched(Changing):
    """Readers follow every ledger."""

    takers = (0, 1)

    def adjust(self):
        super().adjust()
        self.readers = True


class RealCrashing(Calm):
    """Real bookies on simulated disks: power cuts, kills, failed syncs."""

    takers = (0, 1)
    shapes = SAFE_SHAPES

    def adjust(self):
        super().adjust()
        self.real_bookies = True
        self.kinds = ("crash", "rolling_restart", "sync_fails")


class RealLimbo(Calm):
    """One of the real bookies does not sync: power cuts lead to limbo."""

    takers = (0, 1, 2)
    shapes = ((3, 3, 2), (3, 2, 2))

    def adjust(self):
        super().adjust()
        self.real_bookies = True
        self.repairs = self.draw.random() < 0.3
        self.kinds = ("crash", "rolling_restart", "cut")

    def build(self):
        super().build()
        name = self.draw.choice(sorted(self.cluster.bookies))
        careless = self.cluster.bookies[name]
        careless.never_sync()
        careless.on_lost = lambda: self.checks.on_bookie_lost(name)


class RealTaken(RealCrashing):
    """The same, and ledgers are taken over meanwhile."""

    takers = (1, 2)

    def adjust(self):
        super().adjust()
        self.weather.timeout_s = 0.3
        self.kinds = ("crash", "rolling_restart", "slow_disk", "slow_links", "sync_fails")


class RealWiped(Wiped):
    """A real bookie's disk is emptied, or put back as it once was; log files are rewritten."""

    def adjust(self):
        super().adjust()
        self.real_bookies = True


class RealRotten(Rotten):
    """All that a real bookie holds rots; log files are rewritten."""

    def adjust(self):
        super().adjust()
        self.real_bookies = True


class RealMended(Mended):
    """Auditor and worker repair what real bookies lost."""

    def adjust(self):
        super().adjust()
        self.real_bookies = True


class RealAccidents(RealCrashing):
    """Reads, writes, syncs, creations and unlinks fail, and flushes of the index are slow."""

    takers = (0, 1, 2)

    def adjust(self):
        super().adjust()
        self.kinds = ("crash", "disk_accident", "disk_full", "slow_flush", "rewrite")


class RealMisdirected(Losing):
    """One write of a real bookie lands at another place; bookies crash."""

    losses = ("misdirected_write",)

    def adjust(self):
        super().adjust()
        self.real_bookies = True
        self.entries_max = 30
        self.kinds = ("crash", "rolling_restart")


class Surprised(Changing):
    """Calls of clients, of repair and of readers raise what nobody expects."""

    takers = (0, 1, 2)

    def adjust(self):
        super().adjust()
        self.surprises = True
        self.repairs = self.draw.random() < 0.3
        self.readers = self.draw.random() < 0.5


class RealSurprised(RealCrashing):
    """So do calls of the disks and indexes of real bookies."""

    takers = (0, 1, 2)

    def adjust(self):
        super().adjust()
        self.surprises = True
        self.kinds = ("crash", "slow_flush", "cut_replies")


FAMILIES = (
    Overtaken,
    Changing,
    Unanswered,
    Crashing,
    Wiped,
    Gone,
    Rotten,
    Mended,
    Replaced,
    Deleted,
    Lagging,
    Watched,
    Refused,
    RefusedAtRepair,
    RealCrashing,
    RealLimbo,
    RealTaken,
    RealWiped,
    RealRotten,
    RealMended,
    RealAccidents,
    RealMisdirected,
    Surprised,
    RealSurprised,
)
