"""Entries that an operator gave up, in the metadata of a ledger that belongs to no stream.

A log of committed offsets is one ledger with plain records, so it has no node of its own for
accepted losses. They are a sealed document among the custom metadata. They stay lost for every
reader, even if a copy turns up again. Format: docs/formats/losses.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

from ledger.client.update_metadata import LedgerMetadataStore
from ledger.core.accepted_losses import RANGES_MAX
from ledger.core.gaps import Acceptance
from ledger.core.ledger_metadata import LedgerMetadata
from ledger.errors import CorruptFormat, InvalidArgument
from ledger.ids import EntryId, LedgerId
from ledger.sealed import seal, unseal

ACCEPTED_LOSS_KEY = "accepted-loss"
"""Key in the custom metadata of a ledger."""

_Range = tuple[EntryId, EntryId]


def accepted_entries(metadata: LedgerMetadata) -> tuple[_Range, ...]:
    """Return the entries that were given up, as ranges with both ends, rising and apart.

    Raises CorruptFormat, naming the ledger.
    """
    stored = metadata.custom.get(ACCEPTED_LOSS_KEY)
    if stored is None:
        return ()
    where = f"ledger {metadata.ledger}: {ACCEPTED_LOSS_KEY}"
    rows = unseal(stored, where).get("entries")
    try:
        ranges = tuple(_range_of(row) for row in cast("list[list[Any]]", rows))
    except (TypeError, ValueError) as error:
        raise CorruptFormat(f"{where}: it has no list of ranges: {error}") from error
    if _merged(ranges) != ranges:
        raise CorruptFormat(f"{where}: the ranges overlap or are not in order")
    return ranges


async def accept_entries(
    store: LedgerMetadataStore, ledger: LedgerId, added: Iterable[_Range], acceptance: Acceptance
) -> None:
    """Give further entries up. Those that were given up already change nothing.

    Raises InvalidArgument for more than 1,000 ranges, NoSuchLedger, CorruptFormat,
    MetadataUnavailable.
    """
    ranges = tuple(added)

    def change(current: LedgerMetadata) -> LedgerMetadata | None:
        before = accepted_entries(current)
        after = _merged(sorted((*before, *ranges)))
        if after == before:
            return None
        if len(after) > RANGES_MAX:
            raise InvalidArgument(f"{RANGES_MAX} ranges of lost entries are the most of one ledger")
        document = {"entries": after, "at_ms": acceptance.at_ms, "by": acceptance.by}
        return replace(current, custom={**current.custom, ACCEPTED_LOSS_KEY: seal(document)})

    await store.update(await store.read_latest(ledger), change)


def _range_of(row: list[Any]) -> _Range:
    first, last = row
    if type(first) is not int or type(last) is not int or not 0 <= first <= last:
        raise ValueError(f"{first!r} to {last!r} is no range")
    return EntryId(first), EntryId(last)


def _merged(ranges: Iterable[_Range]) -> tuple[_Range, ...]:
    """Merge ranges that rise by their first entry and may overlap."""
    found: list[_Range] = []
    for first, last in ranges:
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return tuple(found)
