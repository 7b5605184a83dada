"""A gateway of a simulated cluster that coordinates groups, and can lose its bookies."""

from __future__ import annotations

import asyncio

from ledger.ports.bookies import Status
from tests.sim.gateway_host import HeldPort
from tests.sim.groups_oracle import RecordingStore
from tests.sim.transacting_host import TransactionHost

UNREACHABLE_S = 0.2  # after it an add to a bookie that is out of reach ends without an answer


class CutPort(HeldPort):
    """The way to bookies, which may be cut: no answer arrives, and half of the adds do."""

    def __init__(self, bookies, draw):
        super().__init__(bookies)
        self.draw = draw
        self.reached = asyncio.Event()
        self.reached.set()

    def add(self, bookie, ledger, entry, master_key, body, on_added, *, recovery=False):
        if self.reached.is_set():
            super().add(bookie, ledger, entry, master_key, body, on_added, recovery=recovery)
            return
        if self.draw.random() < 0.5:
            words = (bookie, ledger, entry, master_key, body, lambda _: None)
            super().add(*words, recovery=recovery)
        loop = asyncio.get_running_loop()
        loop.call_later(UNREACHABLE_S, self._tell, on_added, Status.UNREACHABLE)

    async def _heard(self, reply):
        await self.reached.wait()
        return await super()._heard(reply)


class GroupsHost(TransactionHost):
    """One process under a node id. Its store notes what happens to the group."""

    def __init__(self, world, node_id):
        super().__init__(world, node_id)
        self.port = CutPort(world.storage.bookies, world.draw)
        self.ended = asyncio.Event()  # the process is gone: connections to it break

    def _open_store(self, logs, clock):
        return RecordingStore(super()._open_store(logs, clock), self, self.world.oracle)

    def _context(self, *words):
        context = super()._context(*words)
        self.groups.consumers.timing_of = lambda _: self.world.timing
        return context

    @property
    def loaded(self):
        """The group as it is in memory here, or None."""
        groups = self.groups._loaded_groups.groups if self.serving else {}
        return groups.get(self.world.group)

    def unplug(self):
        """Cut this gateway off from all bookies. Clients and the metadata store reach it."""
        self.port.reached.clear()

    def plug(self):
        self.port.reached.set()

    def kill(self):
        super().kill()
        self.ended.set()

    async def stop(self):
        await super().stop()
        self.ended.set()
