"""The lines of `bookie audit -o json`, each an object with the name of its event."""

from __future__ import annotations

from typing import Final

from ledger.command_line.shape import Column, Kind, Shape, text, whole

_COUNTERS: Final = (
    whole("entries", "Number of copied entries."),
    whole("bytes", "Bytes of them."),
    whole("swaps", "Number of bookies that were replaced in fragments."),
    whole("fills", "Number of times that a bookie got all entries that it lacked of a fragment."),
    whole("fences", "Number of ledgers that were fenced and closed."),
    whole("limbos_ended", "Number of times that limbo of a ledger ended at a bookie."),
    whole("widened", "Number of closed ledgers whose quorum sizes were widened."),
    whole("ledgers", "Number of ledgers that were re-replicated and taken off the list."),
    whole("checked", "Number of copies that were read and verified."),
    whole("checked_bytes", "Bytes of these copies."),
    whole("marked", "Number of ledgers that this process marked as under-replicated."),
)

STARTED: Final = Shape(
    fields=(text("event", "started."), text("audit", "Name of this process.")),
    lines=True,
    when="The first line, without `--once`:",
)
PROGRESS: Final = Shape(
    fields=(text("event", "progress."), *_COUNTERS),
    lines=True,
    when="Every 10 s if anything was done, without `--once`; numbers since the start:",
)
LEFT: Final = Shape(
    fields=(
        text("event", "left."),
        whole("ledger", "Id of the ledger."),
        Column("reasons", Kind.texts, "Why it is left."),
    ),
    lines=True,
    when="A ledger that is still under-replicated, with `--once`:",
)
DONE: Final = Shape(
    fields=(
        text("event", "done."),
        whole("left", "Number of ledgers that are left; 0 is exit code 0."),
        *_COUNTERS,
    ),
    lines=True,
    when="The last line, with `--once`:",
)
