"""What the commands about lost records print: `topic gaps`, `topic accept-loss`, `ledger gaps`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ledger.command_line.shape import Column, Kind, Shape, Tone, rows, text, truth, whole


def _offsets(row: Mapping[str, Any]) -> str:
    from gateway.admin.loss_table import show_offsets

    return show_offsets(row)


def _entries(entries: list[int]) -> str | None:
    from gateway.admin.loss_table import show_entries

    return show_entries(entries)


def _evidence(copies: list[Mapping[str, Any]]) -> str:
    return ",".join(f"{copy['bookie']}:{copy['answer']}/{copy['status']}" for copy in copies)


def _accepted(row: Mapping[str, Any]) -> str | None:
    at = row.get("accepted_at")
    return None if at is None else f"{at} by {row.get('accepted_by')}"


OFFSETS: Final = Column(
    "offsets",
    Kind.wholes,
    "First and last offset; the last is below the first if there are no records.",
    show_row=_offsets,
)
EXACT: Final = truth(
    "exact", "Whether these are the offsets; false if at most these are concerned.", wide=True
)
LOSS: Final = (
    text(
        "kind",
        "Kind of the gap: DATALOSS, BRIDGE (the rest of a segment, without records) or TRIM "
        "(deleted records); null while a bookie may still have the entries.",
        nullable=True,
    ),
    text(
        "state",
        "lost, waiting (for a bookie), accepted, found again or trimmed; null for BRIDGE.",
        nullable=True,
        tones={"lost": Tone.bad, "waiting": Tone.warning},
    ),
    OFFSETS,
    EXACT,
    whole("segment", "Number of the segment; null for TRIM.", nullable=True, wide=True),
    whole("ledger", "Id of the ledger; null for TRIM.", nullable=True),
    Column(
        "entries",
        Kind.wholes,
        "First and last entry of the ledger; null for TRIM.",
        nullable=True,
        show=_entries,
    ),
    text(
        "verdict",
        "What the answers of the bookies prove: complete or non-authoritative (lost), incomplete "
        "or none (wait).",
        wide=True,
    ),
    rows(
        "evidence",
        "The answers of the bookies.",
        text("bookie", "Id of the bookie."),
        text("answer", "held, denied, lost, empty, damaged or unknown."),
        text(
            "status",
            "What its denial is worth: FULLY_AUTHORITATIVE, UNDERREPLICATION, AUTHORITATIVE_EMPTY "
            "or UNAVAILABLE.",
        ),
        show=_evidence,
    ),
    text(
        "accepted_at",
        "When the loss was accepted; null if it was not.",
        nullable=True,
        heading="ACCEPTED",
        show_row=_accepted,
    ),
    text(
        "accepted_by",
        "Who accepted the loss: user@host; null if nobody did.",
        nullable=True,
        wide=True,
    ),
    text(
        "found_again",
        "Entries of which a copy turned up, such as 3-5, 9; null if none did.",
        nullable=True,
    ),
)
"""A range of entries that are lost, or wait for a bookie."""
_ONLY_OF_LOSSES: Final = ("verdict", "evidence", "accepted_at", "accepted_by", "found_again")
GAP: Final = tuple(
    replace(each, optional=True, meaning=f"{each.meaning} Absent for BRIDGE and TRIM.")
    if each.key in _ONLY_OF_LOSSES
    else each
    for each in LOSS
)
"""A range of entries without readable records."""

LISTED: Final = Shape(
    (
        text("topic", "Name of the topic.", wide=True),
        whole("partition", "Number of the partition."),
        *GAP,
    )
)
ACCEPTED: Final = Shape(LOSS, rows="accepted")
OF_LEDGER: Final = Shape(GAP)
