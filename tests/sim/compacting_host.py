"""A gateway of a simulated cluster with its cleaner.

The cleaner, its rounds and the core of its child process are real. Only the pipes to the child are
not: requests are answered in place, after a while, unless the child is killed.
"""

from __future__ import annotations

import asyncio

from gateway.cleaning.child import answer
from gateway.cleaning.cleaner import Cleaner
from gateway.cleaning.process import CleanerEnded
from gateway.core.cleaning import Cleaning
from tests.gateway.slot_replies import SlotReplies
from tests.sim.transacting_host import TransactionHost

DEATHS = 0.003  # the probability that the child is killed, per request


class SimCleanerProcess:
    """The port of the cleaner process, with the state of the child inside."""

    def __init__(self, world, host):
        self.world = world
        self.host = host
        self.cleaning = None  # None while no child runs
        self.one_at_a_time = asyncio.Lock()
        self.replies = SlotReplies()

    async def start(self):
        if self.cleaning is None:
            self.cleaning = Cleaning()

    async def ask(self, kind, *payload):
        answered, child = False, self.cleaning
        try:
            with self.replies.of_request() as keep:
                async with self.one_at_a_time:
                    reply = keep(await self._answered(child, kind, b"".join(payload)))
            answered = True
            return reply
        finally:
            if not answered and child is self.cleaning:
                self.cleaning = None

    async def _answered(self, child, kind, payload):
        draw = self.world.draw
        await asyncio.sleep(draw.expovariate(1 / self.world.child_s))
        await self.host.awake()
        killed = draw.random() < DEATHS * (not self.world.healing)
        if child is None or child is not self.cleaning or killed:
            raise CleanerEnded("the cleaner process has ended")
        return answer(child, kind, payload)

    def succeeded(self):
        pass

    async def stop(self):
        self.cleaning = None


class CompactingHost(TransactionHost):
    """One process under a node id, with transactions and a cleaner."""

    async def start(self):
        await super().start()
        ctx, world = self.ctx, self.world
        settings = world.cleaner_settings
        self.cleaner = Cleaner(
            ctx.catalog, ctx.partitions, ctx.features, ctx.clock, lambda: settings
        )
        self.cleaner.process = SimCleanerProcess(world, self)
        ctx.cleaner = self.cleaner
        self.cleaner.start()

    async def awake(self):
        """Wait until the process runs: it may stand still, or be dead."""
        while self.session.gate is not None:
            await self.session.gate.wait()
        if not self.alive:
            await asyncio.Event().wait()

    async def stop(self):
        self.leaving = True
        await self.cleaner.stop()
        await super().stop()
