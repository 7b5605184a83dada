"""Ranges of lost offsets and entries as text for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ledger.core.gaps import ENTRY_MAX


def show_offsets(row: Mapping[str, Any]) -> str:
    """Return the offsets of a row: `5-9`, `at most 5-9`, or `none`."""
    first, last = row["offsets"]
    if last < first:
        return "none"
    return f"{'' if row['exact'] else 'at most '}{first}-{last}"


def show_entries(entries: Sequence[int] | None) -> str | None:
    """Return a range of entries: `5-9`, or `5-` for all that follow."""
    if entries is None:
        return None
    first, last = entries
    return f"{first}-" if last == ENTRY_MAX else f"{first}-{last}"
