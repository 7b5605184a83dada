"""A metadata store in memory, with a log of its multis and a way to make the next ones fail."""

from __future__ import annotations

import asyncio

from ledger.errors import BadVersion, LedgerError, NodeExists, NoNode, NotEmpty
from ledger.world.metadata import ANY_VERSION, Check, Create, Delete, Node, Set


class MemoryMetadata:
    """The parts of the `MetadataStore` port that positions need. `delay_s` is each write's time."""

    def __init__(self, delay_s: float = 0.0):
        self.nodes: dict[str, Node] = {}
        self.multis: list[list] = []
        self.failures: list[LedgerError] = []  # the next multis raise these, nothing written
        self.delay_s = delay_s
        self.reads_wait: asyncio.Event | None = None

    async def get(self, path):
        if self.reads_wait is not None:
            await self.reads_wait.wait()
        return self._get(path)

    def _get(self, path):
        if path not in self.nodes:
            raise NoNode(path)
        return self.nodes[path]

    async def children(self, path):
        self._get(path)
        return sorted(self._names(path))

    def _names(self, path):
        return [p.rpartition("/")[2] for p in self.nodes if p.rpartition("/")[0] == path]

    async def read_tree(self, path):
        return {p: node for p, node in self.nodes.items() if p.startswith(path + "/")}

    async def create(self, path, data=b"", *, ephemeral=False, sequential=False, parents=False):
        assert not ephemeral and not sequential
        parent = path.rpartition("/")[0]
        if parents and parent and parent not in self.nodes:
            await self.create(parent, parents=True)
        self._apply(Create(path, data))
        return path

    async def set(self, path, data, version):
        await asyncio.sleep(self.delay_s)
        self._apply(Set(path, data, version))
        return self.nodes[path].version

    async def delete(self, path, version=ANY_VERSION):
        self._apply(Delete(path, version))

    async def multi(self, ops):
        await asyncio.sleep(self.delay_s)
        self.multis.append(list(ops))
        if self.failures:
            raise self.failures.pop(0)
        before = dict(self.nodes)
        try:
            for op in ops:
                self._apply(op)
        except LedgerError:
            self.nodes = before
            raise

    def _apply(self, op):
        if isinstance(op, Create):
            if op.path in self.nodes:
                raise NodeExists(op.path)
            parent = op.path.rpartition("/")[0]
            if parent and parent not in self.nodes:
                raise NoNode(parent)
            self.nodes[op.path] = Node(op.data, 0)
            return
        node = self._get(op.path)
        if op.version not in (ANY_VERSION, node.version):
            raise BadVersion(op.path)
        if isinstance(op, Set):
            self.nodes[op.path] = Node(op.data, node.version + 1)
        elif isinstance(op, Delete):
            if self._names(op.path):
                raise NotEmpty(op.path)
            del self.nodes[op.path]
        else:
            assert isinstance(op, Check)
