"""Reading and changing ledger metadata by compare-and-set, with retries.

A version is only used with the content that it was read with. After a refused or unanswered set
the content is read again before any decision. A success whose reply was lost is thus recognised,
and the change of a rival is never overwritten.
Source: BookKeeper, `MetadataUpdateLoop.java`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from ledger.client import metadata_format
from ledger.client.config import LedgerClientConfig
from ledger.core.ledger_metadata import LedgerMetadata, Versioned
from ledger.errors import (
    BadVersion,
    CorruptFormat,
    LedgerError,
    MetadataUnavailable,
    NodeExists,
    NoNode,
    NoSuchLedger,
)
from ledger.ids import LedgerId
from ledger.ports.metadata import MetadataStore

Change = Callable[[LedgerMetadata], LedgerMetadata | None]
"""Returns the metadata to store, or None to keep the given ones. May raise to abandon
the change.
"""


class RetryBudget:
    """The attempts left after MetadataUnavailable. Each wait is twice the previous wait."""

    def __init__(self, config: LedgerClientConfig) -> None:
        # Attempts left, including the present one. The count only falls.
        self._attempts_left = config.metadata_attempts_max
        self._wait_s = config.metadata_retry_s

    async def wait_or_raise(self, error: MetadataUnavailable) -> None:
        """Wait before the next attempt. Raises `error` if no attempt is left."""
        self._attempts_left -= 1
        if self._attempts_left <= 0:
            raise error
        await asyncio.sleep(self._wait_s)
        self._wait_s *= 2


class LedgerMetadataStore:
    """The metadata of all ledgers, in the metadata store."""

    def __init__(self, store: MetadataStore, config: LedgerClientConfig) -> None:
        self.store = store
        self._config = config

    async def read(self, ledger: LedgerId) -> Versioned:
        """Read the metadata of `ledger`. Raises NoSuchLedger, CorruptFormat, MetadataUnavailable.

        The store may answer from a replica that lags behind.
        """
        budget = RetryBudget(self._config)
        path = metadata_format.ledger_path(ledger)
        while True:
            try:
                node = await self.store.get(path)
            except NoNode as error:
                raise NoSuchLedger(f"ledger {ledger}") from error
            except MetadataUnavailable as error:
                await budget.wait_or_raise(error)
                continue
            return Versioned(metadata_format.decode(node.data, ledger), node.version)

    async def read_latest(self, ledger: LedgerId) -> Versioned:
        """Read as `read`, and include every change that was complete before the call."""
        budget = RetryBudget(self._config)
        while True:
            try:
                await self.store.sync(metadata_format.ledger_path(ledger))
            except MetadataUnavailable as error:
                await budget.wait_or_raise(error)
                continue
            except NoNode as error:
                raise NoSuchLedger(f"ledger {ledger}") from error
            return await self.read(ledger)

    async def read_many(self, ledgers: Sequence[LedgerId]) -> dict[LedgerId, Versioned]:
        """Read the metadata of these ledgers as `read_latest`, in one pipelined batch.

        A ledger that cannot be read is missing in the result.
        """
        if not ledgers:
            return {}
        try:
            await self.store.sync(metadata_format.ledger_path(ledgers[0]))
        except (MetadataUnavailable, NoNode):
            return {}
        gets = (self.store.get(metadata_format.ledger_path(each)) for each in ledgers)
        nodes = await asyncio.gather(*gets, return_exceptions=True)
        found: dict[LedgerId, Versioned] = {}
        for ledger, node in zip(ledgers, nodes, strict=True):
            if isinstance(node, LedgerError):
                continue
            if isinstance(node, BaseException):
                raise node
            try:
                found[ledger] = Versioned(metadata_format.decode(node.data, ledger), node.version)
            except CorruptFormat:
                continue
        return found

    async def create(self, metadata: LedgerMetadata) -> bool:
        """Store the metadata of a new ledger. Returns False if another ledger has that id."""
        budget = RetryBudget(self._config)
        path = metadata_format.ledger_path(metadata.ledger)
        data = metadata_format.encode(metadata)
        while True:
            try:
                await self.store.create(path, data, parents=True)
            except MetadataUnavailable as error:
                await budget.wait_or_raise(error)
            except NoNode:  # an empty parent was removed at the same time
                continue
            except NodeExists:
                stored = await self.read(metadata.ledger)
                return stored.metadata.token == metadata.token
            else:
                return True

    async def update(self, known: Versioned, change: Change) -> Versioned:
        """Apply `change` to the newest metadata, store the result, and return it.

        The first attempt applies `change` to `known`. If `change` returns None, nothing is stored,
        and the metadata as read are returned. Raises the errors of `change`, NoSuchLedger and
        MetadataUnavailable.
        """
        budget = RetryBudget(self._config)
        current = known
        path = metadata_format.ledger_path(known.metadata.ledger)
        while True:
            wanted = change(current.metadata)
            if wanted is None:
                return current
            try:
                data = metadata_format.encode(wanted)
                version = await self.store.set(path, data, current.version)
            except BadVersion:
                pass
            except MetadataUnavailable as error:
                await budget.wait_or_raise(error)
            except NoNode as error:
                raise NoSuchLedger(f"ledger {known.metadata.ledger}") from error
            else:
                return Versioned(wanted, version)
            current = await self.read(known.metadata.ledger)
