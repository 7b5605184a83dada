"""Prints lost entries as a table for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ledger.command_line.output import as_table, headings
from ledger.core.gaps import ENTRY_MAX

_COLUMNS = ("kind", "state", "offsets", "ledger", "entries", "evidence", "accepted", "found_again")


def loss_table(rows: Sequence[Mapping[str, Any]], *columns: str) -> str:
    """Return the rows as a table, with further columns on the left."""
    return as_table(headings(*columns, *_COLUMNS), [_shown(row) for row in rows])


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    evidence = [
        f"{copy['bookie']}:{copy['answer']}/{copy['status']}" for copy in row.get("evidence") or ()
    ]
    by, at = row.get("accepted_by"), row.get("accepted_at")
    return {
        **row,
        "offsets": show_offsets(row),
        "entries": show_entries(row["entries"]),
        "evidence": ",".join(evidence),
        "accepted": None if at is None else f"{at} by {by}",
    }


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
