"""Positions without a record, and why a reader passes them.

A reader covers every position of a stream once and in order: by records, by a gap, or by an entry
of control records, which it passes without a word. Kinds and numbers are LogDevice's; a position
is its LSN, with the number of the segment for the epoch and the entry for the ESN.
Source: seed 002, "Gaps"; LogDevice, `include/Record.h` (`GapType`, `GapRecord`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from ledger.core.loss import CopyState, Verdict
from ledger.ids import EntryId, LedgerId


class GapKind(IntEnum):
    """Why a range of positions has no record. The numbers are LogDevice's."""

    BRIDGE = 1  # the rest of a completed segment, behind its last entry
    HOLE = 2  # an entry that recovery plugged; striped recovery cuts instead, so none is written
    DATALOSS = 3  # acknowledged entries that no bookie can hold any more
    TRIM = 4  # entries before the start of the stream, which truncation or retention removed
    ACCESS = 5  # a bookie refused the ledger's key; the reader ends
    NOTINCONFIG = 6  # the stream was deleted; the reader ends
    FILTERED_OUT = 7  # reserved


ENTRY_MAX = EntryId(2**63 - 1)
"""The last position of each segment: a BRIDGE runs up to it."""

OFFSET_MAX = 2**63 - 1


class Position(NamedTuple):
    """The place of an entry in a stream. Positions are ordered as they are written.

    A record's own place, its DLSN, has the number of the record within the entry besides.
    """

    segment: int
    entry: EntryId

    @property
    def before(self) -> Position:
        """Return the position before this one, which may be the last one of a segment."""
        if self.entry > 0:
            return Position(self.segment, EntryId(self.entry - 1))
        return Position(self.segment - 1, ENTRY_MAX)


FIRST_POSITION = Position(1, EntryId(0))
LAST_POSITION = Position(2**63 - 1, ENTRY_MAX)


class OffsetRange(NamedTuple):
    """The Kafka offsets of a gap, both ends inclusive; empty if `last` is below `first`."""

    first: int
    last: int
    # False if a side of the gap is unknown: then at most these offsets are in it.
    exact: bool = True


class Acceptance(NamedTuple):
    """Who accepted a loss, and when."""

    at_ms: int  # wall clock
    by: str


class Evidence(NamedTuple):
    """Why entries count as lost: the answers of the bookies of their write set."""

    ledger: LedgerId
    verdict: Verdict  # COMPLETE or NON_AUTHORITATIVE
    copies: tuple[CopyState, ...]
    # The version of the log of authoritative statuses that was read; 0 while there is none.
    status_version: int = 0
    acceptance: Acceptance | None = None


class Gap(NamedTuple):
    """A range of positions without a record, both ends inclusive.

    A DATALOSS lies in one segment; a TRIM may span many. `evidence` belongs to a DATALOSS only.
    """

    kind: GapKind
    first: Position
    last: Position
    offsets: OffsetRange
    evidence: Evidence | None = None


def joined(evidence: Sequence[Evidence]) -> Evidence:
    """Return the evidence of neighbouring lost entries of one segment as that of one gap.

    A bookie whose copies are in different states is named once for each state. The gap counts as
    accepted if all of its entries were accepted together.
    """
    first = evidence[0]
    if all(each == first for each in evidence):
        return first
    weak = any(each.verdict is Verdict.NON_AUTHORITATIVE for each in evidence)
    together = all(each.acceptance == first.acceptance for each in evidence)
    return Evidence(
        first.ledger,
        Verdict.NON_AUTHORITATIVE if weak else Verdict.COMPLETE,
        tuple(dict.fromkeys(copy for each in evidence for copy in each.copies)),
        max(each.status_version for each in evidence),
        first.acceptance if together else None,
    )
