"""The check that `metadata.sqlite` and the embedded bookies are of one directory and one moment.

A bookie deletes the ledgers that metadata does not list. So a lost, exchanged or older
`metadata.sqlite` must end the start before the first garbage collection. Three facts prove it:

    cluster id     /ledgers/INSTANCEID and the bookie's identity file hold the same id
    start count    each start and clean stop is counted by the bookie first, then by its cookie
    ledger ids     the next id of the metadata is above every ledger that the bookie ever had

A bookie directory of an earlier version has no identity file. It is accepted if the ids fit and
the metadata names a bookie of this data directory. Not every bookie is named: one that was
switched off by `--bookies 1` keeps ledgers that were deleted meanwhile. Source:
`ledger.node.identity`, the same for a bookie process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ledger.adapters.system.machine import new_instance_id
from ledger.bookie.bookie import Bookie
from ledger.bookie.identity_file import StartCount, read_start_counts, write_start_count
from ledger.client import metadata_format
from ledger.core.journal_format import parse_file_name
from ledger.errors import CorruptFormat, ForeignDirectory, ForeignLayout, NoNode
from ledger.ids import BookieId
from ledger.node.identity import BookieIdentity
from ledger.ports.disk import Disk
from ledger.ports.metadata import MetadataStore
from ledger.registry import layout
from ledger.registry.cookie import Cookie, cookie_path, encode

METADATA: Final = "metadata.sqlite"
_REMEDY: Final = (
    "restore the newest metadata.sqlite of this directory, or move its bookie-* directories away "
    "to start without their records"
)
_STOP_S: Final = 1.0  # longest wait for failed metadata at the end
_NO_INODE: Final = 0  # metadata and bookies are copied together, so a copy proves no loss


def require_metadata(data: Path) -> None:
    """Raise ForeignDirectory if `metadata.sqlite` is missing beside a bookie that has a log."""
    if (data / METADATA).exists():
        return
    for bookie in sorted(data.glob("bookie-*")):
        if bookie.is_dir() and any(parse_file_name(file.name) for file in bookie.iterdir()):
            raise ForeignDirectory(f"{METADATA} is missing beside {bookie.name}: {_REMEDY}")


async def read_cluster(metadata: MetadataStore) -> str:
    """Return the cluster id of the metadata, or "" if there is none yet."""
    try:
        return await layout.read_instance_id(metadata)
    except ForeignLayout:
        return ""


async def lay_out(metadata: MetadataStore) -> str:
    """Return the cluster id of the metadata, which is created if there is none."""
    fresh = new_instance_id()
    return await layout.init_layout(metadata, lambda: fresh)


class EmbeddedIdentity:
    """The identity of one embedded bookie. `check`, then `accept` and `stopped`."""

    def __init__(self, name: str, metadata: MetadataStore, cluster: str) -> None:
        """`name` is the bookie's directory; `cluster` is empty if the metadata has no id yet."""
        self.name = name
        self._metadata = metadata
        self._cluster = cluster
        # The directory and its bookie id. Set once by `check`.
        self._disk: Disk | None = None
        self._bookie: BookieId | None = None
        # The highest identity file of the directory, None if there is none. Set by `check`.
        self._count: StartCount | None = None
        # The starts and clean stops that the metadata counted. Set by `check`.
        self._counted = 0
        # Counts this start and the clean stop. None until `accept`.
        self._counting: BookieIdentity | None = None
        # The reason why the bookie may have lost entries, or "". Set by `check`.
        self.loss = ""

    async def check(self, disk: Disk, bookie: BookieId) -> None:
        """Compare the directory with the metadata, without writing.

        Raises ForeignDirectory if the metadata is another cluster's, or older than the directory.
        """
        self._disk, self._bookie = disk, bookie
        counts = await read_start_counts(disk)
        self._counted = await _counted_starts(self._metadata, bookie)
        if not counts:
            if self._counted:
                self.loss = "the directory has no identity file, but its starts were counted"
            return
        count = self._count = counts[-1]
        if count.cluster != self._cluster or count.bookie != bookie:
            raise ForeignDirectory(
                f"{METADATA} is of cluster {self._cluster or '(none)'}, but {self.name} is of "
                f"cluster {count.cluster} ({count.bookie}): {_REMEDY}"
            )
        # The older identity file is deleted once the metadata has counted, so a bookie with one
        # file is never ahead
        if count.serial - self._counted > (len(counts) > 1):
            raise ForeignDirectory(
                f"{METADATA} is older than {self.name}: it counts {self._counted} starts and "
                f"stops of {count.serial}: {_REMEDY}"
            )
        if count.serial < self._counted:
            self.loss = (
                f"the directory is an old copy: {count.serial} of {self._counted} starts and stops"
            )

    @property
    def proved(self) -> bool:
        """True if an identity shows that metadata and directory belong together. Call `check`."""
        return self._count is not None or self._counted > 0

    @property
    def served_before(self) -> bool:
        """True if this directory was started before. Call `check` first."""
        return self._count is not None and self._count.serial > 0

    async def accept(self, cluster: str, place: str) -> BookieIdentity:
        """Count this start of the bookie, whose directory is `place`.

        Call once every bookie of the process has passed its checks. Raises OSError,
        MetadataUnavailable.
        """
        disk, bookie = self._disk, self._bookie
        assert disk is not None
        assert bookie is not None
        cookie = Cookie(bookie, place, (place,), cluster, (f"{place}/index",))
        count = self._count
        if count is None:
            count = StartCount(cluster, bookie, self._counted, "stopped", _NO_INODE)
            await write_start_count(disk, count)
        counting = BookieIdentity(disk, self._metadata, count, encode(cookie), self._counted)
        await counting.started()
        self._counting = counting
        return counting

    async def stopped(self) -> None:
        """Count a clean stop of a bookie that was accepted. Raises OSError, MetadataUnavailable."""
        if self._counting is not None:
            async with asyncio.timeout(_STOP_S):
                await self._counting.stopped()


async def check_named(
    metadata: MetadataStore, bookies: Sequence[tuple[EmbeddedIdentity, Bookie]]
) -> None:
    """Raise ForeignDirectory if no bookie of a data directory is known to the metadata.

    Call with all of them, after their checks. Bookies without a ledger lose nothing.
    """
    holding = [it.name for it, bookie in bookies if not it.proved and bookie.ledgers()]
    if not holding:
        return
    named = await _named_bookies(metadata)
    if named and named.isdisjoint(each.bookie_id for _, each in bookies):
        raise ForeignDirectory(f"{METADATA} has ledgers, but none of {holding[0]}: {_REMEDY}")


async def _counted_starts(metadata: MetadataStore, bookie: BookieId) -> int:
    try:
        return (await metadata.get(cookie_path(bookie))).version + 1
    except NoNode:
        return 0


async def _named_bookies(metadata: MetadataStore) -> set[BookieId]:
    """Return the bookies of all ledgers in the metadata."""
    found: set[BookieId] = set()
    for path, node in (await metadata.read_tree(layout.LEDGERS)).items():
        ledger = metadata_format.ledger_of_path(path)
        if ledger is None:
            continue
        try:
            fragments = metadata_format.decode(node.data, ledger).fragments
        except CorruptFormat:
            continue
        found.update(bookie for fragment in fragments for bookie in fragment.ensemble)
    return found
