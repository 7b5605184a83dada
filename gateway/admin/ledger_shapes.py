"""The shapes of what the commands `gateway ledger ...` print, except for `gaps`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.admin.topic_loss_shapes import LOSS
from ledger.command_line.output import show_bytes
from ledger.command_line.shape import (
    Column,
    Kind,
    Shape,
    Tone,
    pairs,
    rows,
    text,
    truth,
    whole,
)


def _offsets(row: Mapping[str, Any]) -> str | None:
    from gateway.admin.loss_table import show_offsets

    return show_offsets(row) if "offsets" in row else None


def _served(row: Mapping[str, Any]) -> str | None:
    return show_bytes(row["bytes"])


_ID: Final = whole("ledger", "Id of the ledger.")
_STATE: Final = text("state", "OPEN, IN_RECOVERY or CLOSED.", tones={"IN_RECOVERY": Tone.warning})
_LAST: Final = whole(
    "last_entry", "Id of the last entry, -1 if it has none; null while it is open.", nullable=True
)
_BOOKIE_TONES: Final = {
    "ro": Tone.warning,
    "rw,limbo": Tone.warning,
    "ro,limbo": Tone.warning,
    "away": Tone.bad,
    "away,limbo": Tone.bad,
}
_STATUS: Final = text(
    "status",
    "rw or ro, as the bookie answered or is registered, or away; with ,limbo if it may have lost "
    "entries.",
    tones=_BOOKIE_TONES,
)
_BECAUSE: Final = Column("because", Kind.texts, "The explanation, in sentences.")
_SUMMARY: Final = (
    _ID,
    text(
        "topic",
        "Topic that the ledger belongs to, or (deleted), or another program's name of the log; "
        "null if it belongs to none.",
        nullable=True,
    ),
    whole("partition", "Partition of the topic; null without one.", nullable=True),
    text("group", "Consumer group whose offsets it has; null without one.", nullable=True),
    _STATE,
    text("quorum", "Ensemble size, write quorum and ack quorum, such as 3/3/2."),
    whole("entries", "Number of entries; null while it is open.", nullable=True),
    whole(
        "bytes",
        "Length of all entries; null while it is open.",
        nullable=True,
        heading="SIZE",
        show=show_bytes,
    ),
    whole("fragments", "Number of fragments, each with its own bookies."),
    text("created", "Time of its creation; null if it is not known.", nullable=True),
    truth(
        "lacks_copies",
        "Whether it is marked as under-replicated.",
        tones={"true": Tone.bad},
    ),
)

LISTED: Final = Shape(_SUMMARY)
SHOWN: Final = Shape(
    fields=(
        *_SUMMARY,
        _LAST,
        whole("last_add_confirmed", "The last entry that readers may read, as bookies report it."),
        text("digest", "Digest of the entries: CRC32, HMAC, CRC32C or DUMMY."),
        pairs("custom", "Custom metadata."),
    ),
    rows="copies",
    columns=(
        whole("fragment", "First entry of the fragment."),
        whole("to", "Last entry of the fragment; null while it is open.", nullable=True),
        text("bookie", "Id of the bookie."),
        _STATUS,
        whole("should_hold", "Number of the fragment's entries that the bookie should have."),
        whole("holds", "Number of them that it has; null if it did not answer.", nullable=True),
        text(
            "missing",
            "Entries that it lacks, such as 0-4, 7; null if it did not answer.",
            nullable=True,
        ),
    ),
)
VERIFIED: Final = Shape(
    fields=(
        whole("ledgers", "Number of ledgers that were read."),
        whole("copies_read", "Number of copies of entries that were read."),
        whole("bytes_read", "Bytes of these copies."),
        truth("clean", "Whether there is no damage."),
        rows("accepted", "Accepted losses, which are no damage.", *LOSS),
        rows(
            "unreadable",
            "Ledgers whose accepted losses cannot be read.",
            _ID,
            text("reason", "Why they cannot be read."),
        ),
    ),
    rows="damage",
    columns=(
        _ID,
        whole("fragment", "First entry of the fragment."),
        text("bookie", "Id of the bookie."),
        _STATUS,
        text("missing", "Entries that it lacks, such as 0-4, 7."),
        text("damaged", "Entries of which its copy has a wrong digest."),
        text("unknown", "Entries that it should have, if its list of entries is incomplete."),
        text("no_readable_copy", "Those of them that no bookie returned."),
        text("lost", "Those of them that are proved lost."),
    ),
)
ACCEPTED: Final = Shape(LOSS)
"""The accepted losses of `VERIFIED`."""

_CLOSED: Final = (
    _ID,
    _STATE,
    _LAST,
    whole("bytes", "Length of all entries.", heading="SIZE", show=show_bytes),
)
RECOVERED: Final = Shape(fields=_CLOSED, when="Without `--accept-loss`:")
GIVEN_UP: Final = Shape(
    fields=(
        *_CLOSED,
        text("given_up", "Entries that were given up, such as 5-9, 12.", wide=True),
        whole("given_up_entries", "Number of entries that were given up."),
        Column(
            "limbo_ended", Kind.texts, "Bookies at which limbo of this ledger ended.", wide=True
        ),
        truth("forced", "Whether it was closed without the quorum that a recovery needs."),
        rows("accepted", "The losses that were accepted.", *LOSS, json_only=True),
        rows(
            "waiting",
            "Entries that were not given up, because a registered bookie may have them.",
            *LOSS,
            json_only=True,
        ),
    ),
    when="With `--accept-loss`:",
)

EXPLAINED: Final = Shape(fields=(_ID, _BECAUSE), when="Without `ENTRY`:")
ENTRY_EXPLAINED: Final = Shape(
    fields=(_ID, whole("entry", "Id of the entry."), _BECAUSE),
    rows="bookies",
    columns=(
        text("bookie", "Id of a bookie that should have the entry."),
        whole("index", "Its place in the ensemble, from 0."),
        text(
            "says",
            "Its answer: shows, damaged, denies, limbo, silent or away.",
            tones={"damaged": Tone.bad, "away": Tone.bad, "silent": Tone.warning},
        ),
    ),
    when="With `ENTRY`:",
)

_ENTRY: Final = (
    text("kind", "entry."),
    whole("entry", "Id of the entry."),
    whole("bytes", "Length of the entry."),
    whole(
        "records",
        "Number of its records, 0 for control records; null if another program wrote it.",
        nullable=True,
    ),
    Column(
        "offsets",
        Kind.wholes,
        "First and last offset; absent without records.",
        optional=True,
        show_row=_offsets,
    ),
    truth("exact", "true; absent without records.", optional=True),
)
READ: Final = Shape(fields=_ENTRY, lines=True, when="An entry:")
PASSED: Final = Shape(fields=LOSS, lines=True, when="A loss:")
ENDED: Final = Shape(
    fields=(
        text("kind", "BRIDGE: the rest of the segment, without records."),
        Column("entries", Kind.wholes, "First position behind the last entry; and 2^63 - 1."),
        Column("offsets", Kind.wholes, "The next offset, and the one before it."),
        truth("exact", "Whether the next offset is known; it is 0 otherwise."),
    ),
    lines=True,
    when="The end of a closed segment:",
)
SERVED: Final = Shape(
    fields=(
        text("kind", "stats."),
        rows(
            "served",
            "What each bookie returned.",
            text("bookie", "Id of the bookie."),
            whole("bytes", "Bytes of entries."),
        ),
    ),
    lines=True,
    when="The last line, with `--stats`:",
)
LINE: Final = Shape(
    fields=(*_ENTRY, *(each for each in LOSS if each.key not in ("kind", "offsets", "exact"))),
    lines=True,
    tables_only=True,
)
"""An entry or a gap, as a row."""
STATS: Final = Shape(
    (
        text("bookie", "Id of the bookie."),
        whole("bytes", "Bytes of entries that it returned."),
        text("served", "The same with a unit.", show_row=_served),
    )
)
"""The bytes that bookies returned, for people."""
