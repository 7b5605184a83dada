"""The ledgers of a bookie's own cluster, for garbage collection.

A bookie deletes ledgers that metadata no longer lists. So the metadata must be that of the bookie's
own cluster, and not older than the bookie's own start; otherwise nothing is deleted.
"""

from __future__ import annotations

from ledger.client import metadata_format
from ledger.errors import MetadataError, NoNode
from ledger.ids import LedgerId
from ledger.node.identity import BookieIdentity
from ledger.ports.metadata import MetadataStore
from ledger.registry.cookie import cookie_path
from ledger.registry.layout import LEDGERS, read_instance_id


class MetadataMismatch(MetadataError):
    """The error for metadata of another cluster or of a state before the bookie's last start."""


async def list_ledgers(store: MetadataStore) -> list[LedgerId]:
    """List every ledger, linearizably. Raises MetadataUnavailable."""
    await store.sync(LEDGERS)
    found = map(metadata_format.ledger_of_path, await store.paths(LEDGERS))
    return [ledger for ledger in found if ledger is not None]


class ClusterLedgers:
    """The list of ledgers, refused if the metadata is another cluster's or an older state."""

    def __init__(self, store: MetadataStore, identity: BookieIdentity) -> None:
        self._store = store
        self._identity = identity

    async def list_all(self) -> list[LedgerId]:
        """List every ledger. Raises MetadataMismatch, MetadataUnavailable."""
        ledgers = await list_ledgers(self._store)
        await self._check_metadata()
        return ledgers

    async def exists(self, ledger: LedgerId) -> bool:
        """True if metadata has this ledger. Raises MetadataUnavailable."""
        return await self._store.exists(metadata_format.ledger_path(ledger))

    async def _check_metadata(self) -> None:
        """Raise MetadataMismatch if the metadata is another cluster's or an older state."""
        identity = self._identity
        cluster = await read_instance_id(self._store)
        if cluster != identity.cluster:
            raise MetadataMismatch(f"cluster {cluster} instead of {identity.cluster}")
        try:
            counted = (await self._store.get(cookie_path(identity.bookie))).version + 1
        except NoNode:
            counted = 0
        if counted != identity.counted:
            raise MetadataMismatch(f"{counted} starts of this bookie instead of {identity.counted}")
