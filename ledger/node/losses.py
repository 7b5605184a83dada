"""Ledgers of which a bookie may have lost entries, from metadata alone, before it serves.

Source: seed 002 (a node may answer "no such record" only if it is certain that it lost nothing);
BookKeeper, `bookie/datainteg`.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Final

from ledger.client import metadata_format
from ledger.errors import CorruptFormat, NoNode
from ledger.ids import BookieId, LedgerId
from ledger.node.cluster_ledgers import list_ledgers
from ledger.ports.metadata import MetadataStore

_AT_ONCE: Final = 256  # metadata reads in flight at once


async def ledgers_at_risk(store: MetadataStore, bookie: BookieId) -> list[LedgerId]:
    """List ledgers, open and closed, that have, or may have, entries on `bookie`.

    A bookie that lost entries of a closed ledger would deny them as if they never were. A ledger
    whose metadata does not parse is included. Raises MetadataUnavailable.
    """
    waiting = iter(await list_ledgers(store))
    found: list[LedgerId] = []
    while ledgers := list(islice(waiting, _AT_ONCE)):
        risks = await asyncio.gather(*[_is_at_risk(store, each, bookie) for each in ledgers])
        found += [ledger for ledger, risk in zip(ledgers, risks, strict=True) if risk]
    return found


async def _is_at_risk(store: MetadataStore, ledger: LedgerId, bookie: BookieId) -> bool:
    try:
        node = await store.get(metadata_format.ledger_path(ledger))
        metadata = metadata_format.decode(node.data, ledger)
    except NoNode:
        return False  # the ledger was deleted since it was listed
    except CorruptFormat:
        return True
    return any(bookie in fragment.ensemble for fragment in metadata.fragments)
