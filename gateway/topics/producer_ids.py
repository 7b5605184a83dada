"""Allocates producer ids in blocks from the metadata store, so that each id is used once.

The rest of a block is lost when the process ends, and after some seconds: so ids tell which
producers began after a moment. Source: Kafka, KIP-730.
"""

from __future__ import annotations

import asyncio

from gateway.core.producer_losses import ProducerLosses
from ledger.errors import BadVersion, CorruptFormat, NodeExists, NoNode
from ledger.ports.metadata import MetadataStore
from ledger.sealed import seal, unseal

PATH = "/gateway/producer_ids"
BLOCK = 1_000  # Kafka: PRODUCER_ID_BLOCK_SIZE
BLOCK_S = 10.0
"""Time in which a block is used. A producer that gets a new id later has one of a newer block."""


async def next_block(store: MetadataStore) -> int:
    """Return the first id of the next block. All ids that were ever given out are below it."""
    await store.sync(PATH)
    try:
        return _first_of((await store.get(PATH)).data)
    except NoNode:
        return 0


async def learn_certain_id(losses: ProducerLosses, metadata: MetadataStore) -> None:
    """Find the first id of producers that begin after the loss, unless it is known."""
    if losses.needs_certain_id:
        losses.first_certain_id = await next_block(metadata)


def _first_of(data: bytes) -> int:
    first = unseal(data, PATH).get("next")
    if not isinstance(first, int) or first < 0:
        raise CorruptFormat(f"{PATH}: has no next producer id")
    return first


class ProducerIds:
    """The producer ids of one broker. Source: Kafka, ProducerIdManager."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        # The unused ids of the current block are [_next, _end). Both are equal before the first
        # block and at the end of a block. The next id then claims a block.
        self._next = 0
        self._end = 0
        # Loop time when the current block was claimed.
        self._claimed_s = 0.0
        # Held while a block is claimed, so that concurrent callers claim only one block.
        self._claiming = asyncio.Lock()

    async def next(self) -> int:
        """Return an id that no broker has used or will use. Raises MetadataUnavailable."""
        while self._used_up():
            async with self._claiming:
                if self._used_up():
                    first = await self._claim()
                    self._next, self._end = first, first + BLOCK
                    self._claimed_s = asyncio.get_running_loop().time()
        self._next += 1
        return self._next - 1

    def _used_up(self) -> bool:
        old_s = asyncio.get_running_loop().time() - self._claimed_s
        return self._next == self._end or old_s > BLOCK_S

    async def _claim(self) -> int:
        """Claim a block durably and return its first id."""
        while True:
            try:
                node = await self._store.get(PATH)
                first = _first_of(node.data)
                await self._store.set(PATH, seal({"next": first + BLOCK}), node.version)
            except BadVersion:
                continue  # another broker claimed this block first
            except NoNode:
                try:
                    await self._store.create(PATH, seal({"next": 0}), parents=True)
                except NodeExists:
                    pass
                continue
            return first
