"""The simulated metadata store with a log of its multis, slow writes and failures on demand."""

import asyncio

from ledger.errors import LedgerError
from ledger.ports.metadata import Node
from tests.sim.metadata import MetadataTree, SimMetadata, _Record


class MemoryMetadata(SimMetadata):
    def __init__(self, tree: MetadataTree | None = None, delay_s: float = 0.0):
        super().__init__(tree)
        self.delay_s = delay_s  # the duration of each write
        self.multis = []
        self.failures: list[LedgerError] = []  # the next multis raise these and write nothing

    async def set(self, path, data, version):
        await asyncio.sleep(self.delay_s)
        return await super().set(path, data, version)

    async def multi(self, ops):
        await asyncio.sleep(self.delay_s)
        self.multis.append(list(ops))
        if self.failures:
            raise self.failures.pop(0)
        await super().multi(ops)

    def nodes(self):
        """Return all nodes, as values."""
        return {p: Node(record.data, record.version) for p, record in self.tree.nodes.items()}

    def put(self, path, node):
        self.tree.nodes[path] = _Record(node.data, node.version)
