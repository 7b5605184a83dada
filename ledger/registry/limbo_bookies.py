"""Bookies that may have lost entries and whose ledgers no auditor has examined since.

    a bookie starts and may have lost entries ─▶ announce_limbo ─▶ registration
    the auditor examines the ledgers that name it, marks them    ─▶ settle_limbo

One node per bookie, below `UNDERREPLICATION`. Without it, only an auditor that saw the bookie leave
would examine its ledgers before the next full check.
"""

from __future__ import annotations

from typing import Final

from ledger.errors import BadVersion, NodeExists, NoNode
from ledger.ids import BookieId
from ledger.ports.metadata import ANY_VERSION, MetadataStore
from ledger.registry.layout import UNDERREPLICATION

LIMBO: Final = f"{UNDERREPLICATION}/limbo"


async def announce_limbo(store: MetadataStore, bookie: BookieId) -> None:
    """Ask the auditor to examine every ledger that names the bookie. Raises MetadataUnavailable.

    Call before the bookie registers. Another call renews the request.
    """
    path = f"{LIMBO}/{bookie}"
    while True:
        try:
            await store.set(path, b"", ANY_VERSION)
        except NoNode:
            if not await _created(store, path):
                continue  # this call's own request, after a lost reply, or a rival's
        return


async def _created(store: MetadataStore, path: str) -> bool:
    try:
        await store.create(path, parents=True)
    except NodeExists:
        return False
    return True


async def announced_limbo(store: MetadataStore) -> dict[BookieId, int]:
    """Return the bookies whose ledgers are to be examined, and the version of each request."""
    try:
        names = await store.children(LIMBO)
    except NoNode:
        return {}
    found: dict[BookieId, int] = {}
    for name in names:
        try:
            found[BookieId(name)] = (await store.get(f"{LIMBO}/{name}")).version
        except NoNode:
            continue  # settled meanwhile
    return found


async def settle_limbo(store: MetadataStore, bookie: BookieId, version: int) -> None:
    """Delete the request, because the ledgers are examined, unless it was renewed since."""
    try:
        await store.delete(f"{LIMBO}/{bookie}", version)
    except (NoNode, BadVersion):
        return
