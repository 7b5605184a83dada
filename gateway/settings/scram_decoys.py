"""The secret from which made-up SCRAM keys follow. All gateways of a cluster have the same one."""

from __future__ import annotations

import base64
import secrets

from gateway.core.scram_decoy import SECRET_BYTES
from gateway.settings.scram_users import DECOY_SECRET as PATH
from ledger.errors import CorruptFormat, NodeExists, NoNode
from ledger.ports.metadata import MetadataStore
from ledger.sealed import seal, unseal


async def load_decoy_secret(store: MetadataStore) -> bytes:
    """Return the secret of this cluster. The first caller makes it. Raises LedgerError."""
    try:
        return _decode((await store.get(PATH)).data)
    except NoNode:
        pass
    secret = secrets.token_bytes(SECRET_BYTES)
    try:
        await store.create(PATH, seal({"secret": base64.b64encode(secret).decode()}), parents=True)
    except NodeExists:  # another gateway was faster
        return _decode((await store.get(PATH)).data)
    return secret


def _decode(data: bytes) -> bytes:
    found = unseal(data, PATH).get("secret")
    if not isinstance(found, str):
        raise CorruptFormat(f"{PATH}: has no secret")
    return base64.b64decode(found)
