"""Keeps the SCRAM credentials of the cluster's users: in the store, and in memory of each gateway.

The store holds salts, stored keys and server keys, as Kafka's metadata log does. They are secret. A
reader of the store can pose as the server, and can guess passwords with the salt. With one
authentication that it overheard, it can compute the client key and pose as the user. Source:
RFC 5802, section 9.
"""

from __future__ import annotations

import base64

from gateway.core.scram_credentials import (
    Change,
    Credential,
    Deletion,
    Mechanism,
    derived,
)
from gateway.settings.stored_rows import StoredRows, Value
from ledger.ports.metadata import MetadataStore

ROOT = "/gateway/scram"
DECOY_SECRET = "/gateway/scram-decoy"
_NO_ROW: Value = {
    "iterations": 0,
    "salt": base64.b64encode(bytes(26)).decode(),
    "stored_key": base64.b64encode(bytes(64)).decode(),
    "server_key": base64.b64encode(bytes(64)).decode(),
}


class ScramUsers:
    """The credentials of each user."""

    def __init__(self, store: MetadataStore) -> None:
        self._rows = StoredRows(store, ROOT, "SCRAM users")
        self.load = self._rows.load
        self.close = self._rows.close
        # Called after a credential changed on any gateway.
        self.on_changed = self._rows.on_changed

    def names(self) -> list[str]:
        """Return the users that have a credential, sorted."""
        return sorted(name for name, _ in self._rows.items())

    def iterations(self, name: str) -> dict[int, int]:
        """Return the iterations of each mechanism of a user. Empty if the user has none."""
        value = self._rows.get(name) or {}
        return {int(mechanism): int(row["iterations"]) for mechanism, row in sorted(value.items())}

    def all_iterations(self, mechanism: Mechanism) -> list[int]:
        """Return the iterations of each credential of a mechanism."""
        rows = (value.get(str(mechanism.value)) for _, value in self._rows.items())
        return [int(row["iterations"]) for row in rows if row is not None]

    def credential(self, name: str, mechanism: Mechanism) -> Credential | None:
        """Return the credential of a user by one mechanism, or None.

        A user without one takes the same steps: the time shows a client nothing.
        """
        row = (self._rows.get(name) or {}).get(str(mechanism.value), _NO_ROW)
        salt, stored, server = (
            base64.b64decode(row[field]) for field in ("salt", "stored_key", "server_key")
        )
        found = Credential(row["iterations"], salt, stored, server)
        return None if row is _NO_ROW else found

    async def alter(self, change: Change) -> None:
        """Make a checked change. Raises TableFull and LedgerError."""
        mechanism = str(change.mechanism)
        row = None if isinstance(change, Deletion) else _encode(derived(change))

        def changed(value: Value | None) -> Value | None:
            after = {name: each for name, each in (value or {}).items() if name != mechanism}
            if row is not None:
                after[mechanism] = row
            return after or None

        await self._rows.change(change.name, changed)


def _encode(credential: Credential) -> dict[str, object]:
    return {
        "iterations": credential.iterations,
        "salt": base64.b64encode(credential.salt).decode(),
        "stored_key": base64.b64encode(credential.stored_key).decode(),
        "server_key": base64.b64encode(credential.server_key).decode(),
    }
