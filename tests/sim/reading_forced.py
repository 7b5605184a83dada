"""Reading worlds in which ledgers are closed by force.

Two of the three bookies of the segment in progress are gone, and the third may lack
entries that were acknowledged. The operator closes the ledger by force. No offset behind its end
may be assigned again, and all readers must see the same loss.
"""

import asyncio

from ledger.ids import BookieId
from tests.sim.reading_world import Lossy


class Forced(Lossy):
    """Two of three bookies go, with the writer."""

    shapes = ((3, 3, 2),)
    losses_of_copies = ()

    def build(self):
        super().build()
        while len(self.cluster.bookies) < 6:
            name = BookieId(f"b{len(self.cluster.bookies)}")
            self.cluster.bookies[name] = self.new_bookie(self.cluster.draw)
            self.cluster.network.racks[name] = "/rack0"
        self.gone = {}

    async def operate(self):
        await asyncio.sleep(self.draw.uniform(0.3, self.heal_s))
        if self.stopping:
            return
        ledger = await self._disaster()
        while ledger is not None and not await self.accept_ledger(ledger):
            await asyncio.sleep(0.3)
        if self.gone and self.draw.random() < 0.4:
            self._return_one(ledger)

    async def _disaster(self):
        """The ledger of the segment in progress, which too few bookies are left to recover."""
        oracle = self.oracle
        number = max(oracle.segments, default=None)
        if number is None or oracle.segments[number].completed:
            return None
        self.kill_owners()
        ledger = oracle.segments[number].ledger
        ensemble = oracle.ledgers.metadata[ledger].last_fragment.ensemble
        left, *lost = self.draw.sample(ensemble, len(ensemble))
        for name in lost:
            bookie = self.cluster.bookies.pop(name, None)
            if bookie is not None:
                bookie.kill()
                self.gone[name] = bookie
        if left in self.cluster.bookies and self.draw.random() < 0.6:
            held = self.cluster.bookies[left].durable_entries(ledger)
            for entry in sorted(held)[self.draw.randint(0, len(held)) :]:
                del held[entry]
        oracle.on_copies_lost()
        oracle.seen["two of three bookies went"] += 1
        return ledger

    def _return_one(self, ledger):
        """A bookie that was given up comes back with its copies."""
        name = self.draw.choice(sorted(self.gone))
        bookie = self.cluster.bookies[name] = self.gone.pop(name)
        bookie.restart()
        for entry in bookie.durable_entries(ledger):
            self.oracle.on_found_again(ledger, entry)
        self.oracle.seen["a bookie that was given up came back"] += 1
