"""The samples of a bookie process and of an auditor, collected when they are asked for."""

from __future__ import annotations

import asyncio
import os
import resource
from pathlib import Path
from typing import Final

from ledger.bookie.bookie import Bookie
from ledger.bookie.gc.scheduler import GcScheduler
from ledger.command_line.version import __version__
from ledger.exposition import Buckets, Declared, Families, Family, Kind
from ledger.ids import LedgerId
from ledger.ports.bookies import Status
from ledger.ports.clock import Histogram, measured_s
from ledger.repair.entry_copier import RepairProgress
from ledger.repair.underreplicated_ledgers import UnderreplicatedLedgers

DECLARED: Final[dict[str, Declared]] = {
    "bookie_info": Declared("1. Its id and release.", ("bookie", "release")),
    "bookie_sync_seconds": Declared(
        "Seconds for which groups of records were written and synced.", (), Kind.HISTOGRAM
    ),
    "bookie_group_bytes": Declared("Bytes of these groups.", (), Kind.HISTOGRAM),
    "bookie_queue_bytes": Declared("Bytes of records that wait for the next group."),
    "bookie_adds_total": Declared(
        "Adds of entries by the status that answered them.", ("status",), Kind.COUNTER
    ),
    "bookie_reads_total": Declared(
        "Reads of entries by the status that answered them.", ("status",), Kind.COUNTER
    ),
    "bookie_disk_bytes": Declared("Size of its log files and of the free space of its disk."),
    "bookie_disk_free_bytes": Declared("Free bytes of its disk."),
    "bookie_disk_needed_bytes": Declared("Free bytes below which it is read-only."),
    "bookie_writable": Declared("1: it takes adds; 0: it is read-only, or its disk failed."),
    "bookie_ledgers": Declared("Ledgers of which it stores entries."),
    "bookie_damaged_adds_total": Declared(
        "Adds refused because their digest does not match.", (), Kind.COUNTER
    ),
    "bookie_collections_total": Declared(
        "Collections of deleted ledgers, by outcome.", ("outcome",), Kind.COUNTER
    ),
    "bookie_collected_files_total": Declared(
        "Log files that collections dropped, rewrote, or kept as damaged.", ("how",), Kind.COUNTER
    ),
    "bookie_audit_leader": Declared("1: this process is the elected auditor."),
    "bookie_audit_underreplicated_ledgers": Declared(
        "Ledgers that lack copies. Only the elected auditor reports it."
    ),
    "bookie_audit_hopeless_ledgers": Declared(
        "Those with entries that no bookie has. Only the elected auditor reports it."
    ),
    "bookie_audit_repaired_ledgers_total": Declared(
        "Ledgers that this process gave all their copies.", (), Kind.COUNTER
    ),
    "bookie_audit_copied_entries_total": Declared(
        "Entries that this process copied.", (), Kind.COUNTER
    ),
    "bookie_audit_copied_bytes_total": Declared("Bytes of these entries.", (), Kind.COUNTER),
    "bookie_audit_marked_ledgers_total": Declared(
        "Ledgers that this process marked as under-replicated.", (), Kind.COUNTER
    ),
}
PROCESS: Final[dict[str, Declared]] = {
    "process_cpu_seconds_total": Declared("CPU seconds of the process.", (), Kind.COUNTER),
    "process_resident_memory_bytes": Declared("Memory of the process."),
    "process_start_time_seconds": Declared("Start of the process, seconds since 1970."),
    "process_open_fds": Declared("Open files of the process."),
    "process_max_fds": Declared("Files that it may open."),
}
_STATUSES: Final = (Status.OK, Status.OVERLOADED, Status.READ_ONLY, Status.IO_ERROR, Status.FENCED)
"""Statuses with a sample from the start, so that rates have a beginning."""
_NOTES_MAX: Final = 500  # under-replicated ledgers whose notes are read for one answer
_NOTES_AT_ONCE: Final = 20
_NOTE_S: Final = 60.0  # for which a note counts


async def bookie_families(bookie: Bookie, collector: GcScheduler) -> list[Family]:
    """Return the samples of a bookie."""
    found = Families(DECLARED)
    journal, stats = bookie.journal, await bookie.stats()
    found.add("bookie_info", 1, bookie.bookie_id, __version__)
    found.add("bookie_sync_seconds", _buckets(journal.synced))
    found.add("bookie_group_bytes", _buckets(journal.group_sizes))
    found.add("bookie_queue_bytes", journal.queue_bytes)
    for status in sorted({*_STATUSES, *bookie.adds}):
        found.add("bookie_adds_total", bookie.adds[status], status.name)
    for status in sorted({*_STATUSES, *bookie.reads}):
        found.add("bookie_reads_total", bookie.reads[status], status.name)
    if stats.status is Status.OK:
        found.add("bookie_disk_bytes", stats.disk_bytes)
        found.add("bookie_disk_free_bytes", stats.free_bytes)
        found.add("bookie_ledgers", stats.ledgers)
    found.add("bookie_disk_needed_bytes", bookie.disk_space[1])
    found.add("bookie_writable", int(bookie.writable))
    found.add("bookie_damaged_adds_total", bookie.damaged_adds)
    found.add("bookie_collections_total", collector.succeeded, "done")
    found.add("bookie_collections_total", collector.failed, "failed")
    total = collector.total
    found.add("bookie_collected_files_total", total.files_dropped, "dropped")
    found.add("bookie_collected_files_total", total.files_rewritten, "rewritten")
    found.add("bookie_collected_files_total", total.files_damaged, "damaged")
    return found.all()


class AuditSamples:
    """The samples of a repair process. Notes of ledgers are read again after a minute."""

    def __init__(self, underreplicated: UnderreplicatedLedgers, progress: RepairProgress) -> None:
        self._underreplicated = underreplicated
        self._progress = progress
        # Whether a marked ledger has lost entries, and when that was read.
        self._lost: dict[LedgerId, tuple[bool, float]] = {}

    async def families(self, *, leads: bool, marked: int) -> list[Family]:
        """Return the samples. Raises MetadataUnavailable.

        The lists of the cluster are the same for all processes, so that only the elected auditor
        reports them: a sum over processes is right.
        """
        found = Families(DECLARED)
        found.add("bookie_audit_leader", int(leads))
        found.add("bookie_audit_repaired_ledgers_total", self._progress.ledgers)
        found.add("bookie_audit_copied_entries_total", self._progress.entries)
        found.add("bookie_audit_copied_bytes_total", self._progress.bytes)
        found.add("bookie_audit_marked_ledgers_total", marked)
        if leads:
            ledgers = await self._underreplicated.ledgers()
            found.add("bookie_audit_underreplicated_ledgers", len(ledgers))
            found.add("bookie_audit_hopeless_ledgers", await self._hopeless(ledgers))
        return found.all()

    async def _hopeless(self, ledgers: list[LedgerId]) -> int:
        now_s = measured_s()
        self._lost = {each: self._lost[each] for each in ledgers if each in self._lost}
        due = [each for each in ledgers if self._lost.get(each, (False, 0.0))[1] < now_s - _NOTE_S]
        for at in range(0, min(len(due), _NOTES_MAX), _NOTES_AT_ONCE):
            some = due[at : at + _NOTES_AT_ONCE]
            notes = await asyncio.gather(*map(self._underreplicated.note, some))
            for ledger, note in zip(some, notes, strict=True):
                self._lost[ledger] = bool(note.lost), now_s
        return sum(lost for lost, _ in self._lost.values())


def process_families() -> list[Family]:
    """Return the samples of this process, with the names of Prometheus' client libraries."""
    found = Families(PROCESS)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    found.add("process_cpu_seconds_total", usage.ru_utime + usage.ru_stime)
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        booted = next(
            int(line.split()[1])
            for line in Path("/proc/stat").read_text().splitlines()
            if line.startswith("btime ")
        )
        found.add("process_resident_memory_bytes", pages * resource.getpagesize())
        found.add("process_start_time_seconds", booted + ticks / os.sysconf("SC_CLK_TCK"))
        found.add("process_open_fds", sum(1 for _ in Path("/proc/self/fd").iterdir()))
    except (OSError, ValueError, IndexError, StopIteration):
        pass  # the system does not show them
    found.add("process_max_fds", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    return found.all()


def _buckets(histogram: Histogram) -> Buckets:
    return Buckets(histogram.bounds, histogram.counts, histogram.total_s)
