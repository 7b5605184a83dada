"""The entries of a ledger whose loss was accepted, which repair neither copies nor reports."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ledger.core.ledger_metadata import LedgerMetadata
from ledger.repair.entry_ranges import EMPTY, EntryRanges

AcceptedEntries = Callable[[LedgerMetadata], Awaitable[EntryRanges]]
"""Returns these entries. Raises CorruptFormat, MetadataUnavailable."""


async def nothing_accepted(metadata: LedgerMetadata) -> EntryRanges:
    """Return no entry, for ledgers of which nobody accepts losses."""
    return EMPTY
