"""The settings of the whole cluster that admin requests change, as one part of a gateway."""

from __future__ import annotations

from gateway.settings.client_quotas import ClientQuotas
from gateway.settings.resource_configs import ResourceConfigs
from gateway.settings.scram_users import ScramUsers
from ledger.ports.metadata import MetadataStore


class StoredSettings:
    """The tables of settings in the metadata store. Call `load` once before and `close` after."""

    def __init__(self, store: MetadataStore) -> None:
        self.quotas = ClientQuotas(store)
        self.scram = ScramUsers(store)
        self.configs = ResourceConfigs(store)

    async def load(self) -> None:
        """Read all tables, and follow the changes of other gateways from now on."""
        for table in (self.quotas, self.scram, self.configs):
            await table.load()

    async def close(self) -> None:
        """Stop following the changes of other gateways."""
        for table in (self.quotas, self.scram, self.configs):
            await table.close()
