"""Writers, takeovers, readers, deletions and repair on one cluster, with faults in random subsets.

A seed draws how bad the links are, which faults may happen at all, who is there and what they do.
Faults come in spells, each of some kinds, a quarter of the spells is quiet. Then all is healed,
every ledger is recovered (in some worlds repaired too) and read. `run(seed)` returns what the
checks found wrong.
"""

import asyncio
import hashlib
import random
from functools import partial

from ledger.client.config import LedgerClientConfig
from ledger.errors import LedgerError
from ledger.ports.bookies import ReadManyReply
from tests.sim.cluster import Cluster, drawn_weather, retried
from tests.sim.disk_bookie import DiskBookie
from tests.sim.loop import simulate
from tests.sim.metadata import MetadataFaults
from tests.sim.model_bookie import ModelBookie
from tests.sim.surprises import is_surprise
from tests.sim.swarm_faults import Faults
from tests.sim.swarm_hosts import Collector, Mender, follow, take_over, write

GIVE_UP_S = 600.0
SETTLED_S_MAX = 30.0
SHAPES = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (4, 3, 2), (3, 3, 3), (3, 2, 1), (1, 1, 1))
SAFE_SHAPES = tuple(shape for shape in SHAPES if shape[2] >= 2)


class Swarm:
    """One seed. A family of scenarios is a subclass that draws otherwise."""

    shapes = None  # (E, Qw, Qa) to draw from; None: any
    kinds = None  # of faults; None: any
    losses = None  # ways for a bookie to lose its data; None: any
    takers = (0, 1, 1, 2)  # who recover a ledger
    give_up_s = GIVE_UP_S

    def __init__(self, seed):
        self.seed = seed
        draw = self.draw = random.Random(f"{seed}:swarm")
        self.weather = drawn_weather(draw)
        self.real_bookies = draw.random() < 0.5
        self.repairs = draw.random() < 0.12
        self.loses_data = draw.random() < 0.3
        self.ledgers_max = draw.choice([1, 1, 1, 2, 3])
        self.entries_max = draw.choice([3, 12, 30])
        self.readers = draw.random() < 0.25
        self.deletes = draw.random() < 0.15
        self.lag_s = draw.choice([0.0, 0.0, 0.05, 1.0])
        self.heal_s = draw.uniform(0.3, 3.0)
        self.metadata_loss = draw.choice([0.0, 0.0, 0.05, 0.2])
        self.surprises = draw.random() < 0.15
        # Drawn apart, so that seeds of other worlds stay what they were.
        self.refuses = random.Random(f"{seed}:refusals").random() < 0.15
        self.healed = False
        self.created = []
        self.tasks = []
        self.host_faults = {}
        self.adjust()

    def adjust(self):
        """For families: change what was drawn."""

    def build(self):
        draw = self.draw
        config = LedgerClientConfig(
            pending_entries_max=draw.choice([3, 1000]),
            recovery_window_entries=draw.choice([1, 2, 16]),
            read_timeout_s=2 * self.weather.timeout_s,
            ensemble_change_s_max=draw.choice([1.0, 5.0]),
            failed_bookie_pause_s=draw.choice([0.1, 10.0]),
            failing_s=draw.choice([0.5, 10.0]),
            metadata_retry_s=0.01,
        )
        self.sync_factors = {}
        self.cluster = Cluster(
            self.seed,
            bookies=draw.choice([4, 5, 5, 6]),
            weather=self.weather,
            config=config,
            bookie=self.new_bookie,
        )
        cluster = self.cluster
        for number, name in enumerate(sorted(cluster.bookies)):
            cluster.network.racks[name] = f"/rack{number % 2}"
        self.checks = cluster.checks
        self.faults = Faults(self)

    def new_bookie(self, draw):
        if not self.real_bookies:
            return self.model_bookie(draw)
        bookie = DiskBookie(draw)
        bookie.next_ledger = self.next_ledger
        bookie.surprising = self.surprises
        bookie.on_ended = self.on_ended
        return bookie

    def model_bookie(self, draw):
        bookie = ModelBookie(lambda: draw.expovariate(1 / 0.0005) * bookie.sync_factor)
        bookie.sync_factor = 1.0
        return bookie

    def next_ledger(self):
        """No ledger at or above it exists."""
        return max(self.checks.ledgers.metadata, default=-1) + 1

    # -- hosts ---------------------------------------------------------------------------------

    def faults_of(self, host):
        known = self.host_faults.get(host)
        if known is None:
            known = self.host_faults[host] = MetadataFaults(
                self.draw,
                lag_s=self.lag_s,
                unsent=self.metadata_loss / 2,
                reply_lost=self.metadata_loss,
                node_by_node=True,
            )
        return known

    def connect(self, host):
        return self.cluster.connect(host, self.faults_of(host))

    def client(self, host):
        """A new process on `host`."""
        return self.cluster.client(host, self.faults_of(host))

    def spawn(self, work):
        self.tasks.append(asyncio.create_task(work))

    async def process(self, host, work, *, again=True):
        """A process on `host` that does `work`: a surprise ends it, and the next one begins."""
        while True:
            try:
                await work()
            except Exception as error:
                if not is_surprise(error):
                    raise
                self.cluster.kill(host)
                if again:
                    continue
            return

    async def retry(self, attempt):
        return await retried(attempt, self.draw)

    def shape(self):
        if self.shapes:
            return self.draw.choice(self.shapes)
        return self.draw.choice(SAFE_SHAPES if self.loses_data else SHAPES)

    def on_created(self, ledger):
        """A writer has a new ledger: others get to know of it."""
        self.created.append(ledger)
        draw = self.draw
        for number in range(draw.choice(self.takers)):
            host = f"taker{ledger}.{number}"
            self.spawn(self.process(host, partial(take_over, self, host, ledger)))
        if self.readers:
            host = f"reader{ledger}"
            self.spawn(self.process(host, partial(follow, self, host, ledger)))

    # -- the run -------------------------------------------------------------------------------

    def on_exception(self, loop, context):
        """What a callback or a task raised that nobody awaits."""
        error = context.get("exception")
        if error is not None and not is_surprise(error):
            self.checks.report("errors", f"{context['message']}: {error!r}")

    def on_ended(self, name, error):
        """The process of a bookie ended by itself."""
        if not is_surprise(error):
            self.checks.report("errors", f"a bookie ends: {name}: {error!r}")

    async def run(self):
        self.build()
        asyncio.get_running_loop().set_exception_handler(self.on_exception)
        cluster = self.cluster
        await cluster.start()
        for number in range(self.draw.randint(1, self.ledgers_max)):
            host = f"writer{number}"
            self.spawn(self.process(host, partial(write, self, host), again=False))
        self.mender = Mender(self) if self.repairs else None
        if self.mender:
            self.mender.start()
        collector = Collector(self)
        if self.deletes:
            self.spawn(self.process("deleter", collector.delete_some))
        faults = asyncio.create_task(self.faults.run())
        await asyncio.sleep(self.heal_s)
        faults.cancel()
        await asyncio.gather(faults, return_exceptions=True)
        self.heal()
        try:
            async with asyncio.timeout(self.give_up_s):
                await self.finish()
        except TimeoutError:
            self.checks.report("liveness", f"not over {self.give_up_s} s after all was healed")
        except LedgerError as error:
            self.checks.report("errors", f"a host did not expect {error!r}")
        return self.checks.violations

    def heal(self):
        self.healed = True
        self.faults.end()
        for faults in self.host_faults.values():
            faults.unsent = faults.reply_lost = 0.0
            faults.cut = False
        self.metadata_loss = 0.0
        self.cluster.heal()

    async def _check_settled(self, name, bookie):
        """Nobody waits for ever for a record that the bookie accepted."""
        try:
            async with asyncio.timeout(SETTLED_S_MAX):
                await bookie.settled()
        except TimeoutError:
            self.checks.report("liveness", f"{name} leaves records unanswered")

    async def finish(self):
        await self.cluster.all_up()
        for name, bookie in sorted(self.cluster.bookies.items()):
            if isinstance(bookie, DiskBookie):
                await self._check_settled(name, bookie)
        while self.tasks:
            tasks, self.tasks = self.tasks, []
            await asyncio.gather(*tasks)
        living = [
            ledger
            for ledger in self.checks.ledgers.metadata
            if ledger not in self.checks.ledgers.deleted
        ]
        last = self.client("last")
        for ledger in living:
            await self.retry(partial(last.recover, ledger))
        if self.mender:
            await self.mender.finish()
        for ledger in living:
            await self.checks.final(ledger, repaired=self.mender is not None)


def run(seed, kind=Swarm):
    """What was found wrong."""
    return simulate(kind(seed).run(), order_of(seed))


def order_of(seed):
    """In every other seed, tasks that are ready together run in an order by seed."""
    return random.Random(f"{seed}:order") if seed % 2 else None


def told_of(facts):
    """The facts as text: without metadata, which hold a random token, and addresses of buffers."""
    plain = []
    for fact in facts:
        if isinstance(fact, ReadManyReply):
            fact = fact._replace(bodies=len(fact.bodies))
        if isinstance(fact, bytes) and fact.startswith(b"BookieMetadata"):
            continue
        plain.append(fact)
    return tuple(plain)


def story(seed, kind=Swarm, tell=lambda line: None):
    """A digest of all that happened, the same for the same seed; `tell` hears every event."""
    world = kind(seed)
    digest = hashlib.sha256()
    build = world.build

    def hear(name, listeners):
        def heard(*facts):
            line = f"{asyncio.get_running_loop().time():.6f} {name} {told_of(facts)}"
            digest.update(line.encode())
            tell(line)
            listeners(*facts)

        return heard

    def build_and_listen():
        build()
        checks = world.checks
        for name in checks.events:
            setattr(checks, name, hear(name, getattr(checks, name)))
        world.cluster.network.on_added = checks.on_durable
        world.cluster.tree.on_set = checks.on_metadata

    world.build = build_and_listen
    found = simulate(world.run(), order_of(seed))
    return digest.hexdigest(), found
