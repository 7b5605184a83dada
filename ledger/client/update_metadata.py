"""Read a ledger's metadata, change it, compare-and-set, again: until it holds or must not.

A version travels only together with the content it was read with, and after a refused or an
unanswered set the content is read anew before anything is decided: so a lost reply of one's own
success is seen as success, and a rival's change is never overwritten.
Source: BookKeeper, `MetadataUpdateLoop.java`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ledger.client import metadata_format
from ledger.client.config import LedgerClientConfig
from ledger.core.ledger_metadata import LedgerMetadata, Versioned
from ledger.errors import BadVersion, MetadataUnavailable, NodeExists, NoNode, NoSuchLedger
from ledger.ids import LedgerId
from ledger.ports.metadata import MetadataStore

Change = Callable[[LedgerMetadata], LedgerMetadata | None]
"""The value to store, or None when the one read is already right. May raise to withdraw."""


class RetryBudget:
    """Attempts left after MetadataUnavailable; each wait is twice the one before."""

    def __init__(self, config: LedgerClientConfig) -> None:
        self._attempts_left = config.metadata_attempts_max
        self._wait_s = config.metadata_retry_s

    async def wait_or_raise(self, error: MetadataUnavailable) -> None:
        """Some time has passed; raises `error` when no attempt is left."""
        self._attempts_left -= 1
        if self._attempts_left <= 0:
            raise error
        await asyncio.sleep(self._wait_s)
        self._wait_s *= 2


class LedgerMetadataStore:
    """The metadata of all ledgers, over the metadata port."""

    def __init__(self, store: MetadataStore, config: LedgerClientConfig) -> None:
        self.store = store
        self._config = config

    async def read(self, ledger: LedgerId) -> Versioned:
        """Raises NoSuchLedger, CorruptFormat, MetadataUnavailable."""
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
        """As `read`, and no change that was complete before the call is missed."""
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

    async def create(self, metadata: LedgerMetadata) -> bool:
        """The ledger exists with this content; False: another ledger has that id."""
        budget = RetryBudget(self._config)
        path = metadata_format.ledger_path(metadata.ledger)
        data = metadata_format.encode(metadata)
        while True:
            try:
                await self.store.create(path, data, parents=True)
            except MetadataUnavailable as error:
                await budget.wait_or_raise(error)
            except NoNode:  # a parent was removed, empty, in the same moment
                continue
            except NodeExists:
                stored = await self.read(metadata.ledger)
                return stored.metadata.token == metadata.token
            else:
                return True

    async def update(self, known: Versioned, change: Change) -> Versioned:
        """What is stored now: `change` of the newest content, or that content if it was right.

        Raises what `change` raises, and NoSuchLedger, MetadataUnavailable.
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
