"""Bookies, links and metadata of one simulated cluster, with checks that watch all the while.

`Cluster` gives each host its own `LedgerClient` over its own port and metadata session.
"""

import asyncio
import random
from functools import partial

from ledger.client import metadata_format
from ledger.client.client import LedgerClient
from ledger.client.config import LedgerClientConfig
from ledger.errors import LedgerError
from ledger.ids import BookieId
from tests.sim.checks import Checks
from tests.sim.loop import SimClock
from tests.sim.metadata import MetadataFaults, MetadataTree, SimMetadata
from tests.sim.model_bookie import ModelBookie
from tests.sim.network import Network, SimBookies, Weather

DAY_MS = 86_400_000


class Cluster:
    """`bookies` of them, by seed. Hosts are named; a host's client lives until `kill`."""

    def __init__(self, seed, *, bookies=5, weather=None, config=None, bookie=None):
        self.draw = random.Random(f"{seed}:cluster")
        self.weather = weather or Weather()
        self.config = config or LedgerClientConfig(read_timeout_s=2 * self.weather.timeout_s)
        new_bookie = bookie or model_bookie
        self.bookies = {BookieId(f"b{n}"): new_bookie(self.draw) for n in range(bookies)}
        self.network = Network(self.draw, self.weather, self.bookies)
        self.tree = MetadataTree()
        self.metadata_faults = MetadataFaults(self.draw, node_by_node=True)
        # In every other world a lone recovery takes the way of many.
        self.together_min = random.Random(f"{seed}:together").choice([1, 2])
        self.clocks = {}  # by host: its wall clock, which differs from the others'
        self.draw_clock = random.Random(f"{seed}:clocks")
        self.ports = {}
        self.sessions = {}
        self.checks = Checks()
        self.checks.attach(self)

    async def start(self):
        """All bookies serve; those of the model do so from the beginning."""
        await asyncio.gather(*(bookie.start() for bookie in self.bookies.values()))

    async def all_up(self):
        while not all(bookie.up for bookie in self.bookies.values()):
            await asyncio.sleep(0.01)
            self._restart_all()

    def _restart_all(self):
        for bookie in self.bookies.values():
            if not bookie.up:
                bookie.restart()

    def client(self, host, faults=None):
        """A new process on `host`: its own metadata session and its own connections."""
        port, session = self.connect(host, faults)
        client = LedgerClient(session, port, self.clock(host), self.config)
        client.recoveries.together_min = self.together_min
        return client

    def clock(self, host):
        """The clock of the machine on which `host` runs; its processes come and go."""
        clock = self.clocks.get(host)
        if clock is None:
            clock = self.clocks[host] = SimClock()
            clock.epoch_ms += self.draw_clock.choice([0, -3_000, 3_000, -DAY_MS, DAY_MS])
        return clock

    def connect(self, host, faults=None):
        """A new process's port to the bookies and its metadata session."""
        port = self.ports[host] = SimBookies(self.network, host)
        session = self.sessions[host] = SimMetadata(self.tree, faults or self.metadata_faults)
        session.on_set = partial(self.checks.on_host_set, host)
        return port, session

    def kill(self, host):
        """The process hears nothing any more; what it sent is still on its way."""
        self.ports[host].dead = self.sessions[host].dead = True

    def heal(self):
        """From now on everything works."""
        self.network.heal()
        self.metadata_faults.unsent = self.metadata_faults.reply_lost = 0.0
        self._restart_all()

    def metadata_of(self, ledger):
        record = self.tree.get(metadata_format.ledger_path(ledger))
        return metadata_format.decode(record.data, ledger)


async def retried(attempt, draw):
    """Retry until it succeeds, with pauses drawn, and return the result.

    Raises errors that are not retryable.
    """
    while True:
        try:
            return await attempt()
        except LedgerError as error:
            if not error.retryable:
                raise
            await asyncio.sleep(draw.uniform(0.01, 0.3))


def drawn_weather(draw):
    """Draw the weather of a story about writers, recovery and readers."""
    return Weather(
        latency_s=0.001 * draw.choice([1, 1, 5]),
        tail_rate=draw.choice([0.02, 0.1, 0.35]),
        tail_factor=draw.choice([20.0, 100.0]),
        loss=draw.choice([0.0, 0.0, 0.05, 0.15]),
        timeout_s=draw.choice([0.3, 1.0]),
    )


def model_bookie(draw):
    return ModelBookie(lambda: draw.expovariate(1 / 0.0005))
