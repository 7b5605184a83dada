"""Producer ids, unique for ever: claimed from the metadata store in blocks.

What is left of a block when the process ends is never used. Source: Kafka, KIP-730.
"""

from __future__ import annotations

import asyncio

from gateway.core.sealed import seal, unseal
from ledger.errors import BadVersion, CorruptFormat, NodeExists, NoNode
from ledger.ports.metadata import MetadataStore

PATH = "/gateway/producer_ids"
BLOCK = 1_000  # Kafka: PRODUCER_ID_BLOCK_SIZE


class ProducerIds:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._next = 0
        self._end = 0  # first id that is not ours
        self._claiming = asyncio.Lock()

    async def next(self) -> int:
        """An id that nobody ever had and nobody else will get. Raises MetadataUnavailable."""
        while self._next == self._end:
            async with self._claiming:
                if self._next == self._end:
                    first = await self._claim()
                    self._next, self._end = first, first + BLOCK
        self._next += 1
        return self._next - 1

    async def _claim(self) -> int:
        """First id of a block that is ours alone, durably."""
        while True:
            try:
                node = await self._store.get(PATH)
                first = unseal(node.data, PATH).get("next")
                if not isinstance(first, int) or first < 0:
                    raise CorruptFormat(f"{PATH}: no next id in it")
                await self._store.set(PATH, seal({"next": first + BLOCK}), node.version)
            except BadVersion:
                continue  # another gateway took that block
            except NoNode:
                try:
                    await self._store.create(PATH, seal({"next": 0}), parents=True)
                except NodeExists:
                    pass
                continue
            return first
