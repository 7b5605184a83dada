"""The identity of a bookie's directory, and the check that it is the bookie's latest state.

The directory counts its starts and clean stops, and so does the cluster: the version of the
bookie's cookie is the cluster's count. An old copy of a directory therefore shows a lower count. A
lost cookie, or metadata restored from a backup, shows a lower count in the cluster. The directory
counts first, so a crash between the two leaves the directory one ahead, never behind.

    directory  1    2    2    3    4 | copy of 2 restored: 2
    cluster    1    2    2    3    4 |                     4   -> entries may be lost
               start stop     start stop
"""

from __future__ import annotations

import asyncio

from ledger.bookie.identity_file import (
    RunState,
    StartCount,
    delete_other_start_counts,
    delete_start_count,
    read_start_counts,
    write_start_count,
)
from ledger.core.journal_format import parse_file_name
from ledger.errors import (
    BadVersion,
    BookieIdInUse,
    ForeignDirectory,
    MetadataUnavailable,
    NodeExists,
    NoNode,
)
from ledger.ids import BookieId
from ledger.ports.disk import Disk
from ledger.ports.metadata import MetadataStore
from ledger.registry.cookie import cookie_path

_ATTEMPTS_MAX = 8
_RETRY_S = 0.1


class BookieIdentity:
    """One bookie's membership in its cluster. Made by `load_identity`."""

    def __init__(
        self, disk: Disk, store: MetadataStore, count: StartCount, cookie: bytes, counted: int
    ) -> None:
        self._disk = disk
        self._store = store
        self._cookie = cookie
        self._path = cookie_path(count.bookie)
        # The directory's count, as last written. Rises with each start and clean stop.
        self._count = count
        # The cluster's count: the cookie's version + 1, or 0 without a cookie. Rises by one with
        # each successful write, and equals `_count.serial` between `started` and `stopped`.
        self.counted = counted
        # The reason why entries may be lost, or "". Set by `load_identity`.
        self.loss = ""

    @property
    def bookie(self) -> BookieId:
        """The bookie's id."""
        return self._count.bookie

    @property
    def cluster(self) -> str:
        """The cluster's instance id."""
        return self._count.cluster

    @property
    def served_before(self) -> bool:
        """True if this directory was started before."""
        return self._count.serial > 0

    async def started(self) -> None:
        """Count this start in the directory and in the cluster.

        Raises BookieIdInUse, OSError, MetadataUnavailable.
        """
        if self.counted < self._count.serial - 1:
            await self._write(self._count.serial + 1, "rejoining")
        await self._count_to(self._count.serial)
        await self._advance("running")

    async def stopped(self) -> None:
        """Count this clean stop in the directory, then in the cluster.

        Raises BookieIdInUse, OSError, MetadataUnavailable.
        """
        await self._advance("stopped")

    async def _advance(self, state: RunState) -> None:
        serial = max(self.counted, self._count.serial) + 1
        await self._write(serial, state)
        try:
            await self._count_to(serial)
        except BookieIdInUse:
            # The count belongs to another copy of the directory
            delete_start_count(self._disk, serial)
            raise
        delete_other_start_counts(self._disk, serial)

    async def _write(self, serial: int, state: RunState) -> None:
        self._count = self._count._replace(serial=serial, state=state)
        await write_start_count(self._disk, self._count)

    async def _count_to(self, serial: int) -> None:
        while self.counted < serial:
            await self._count_once()

    async def _count_once(self) -> None:
        """Raise the cluster's count by one. Raises BookieIdInUse if another process raised it."""
        unanswered = 0
        while True:
            try:
                if self.counted == 0:
                    await self._store.create(self._path, self._cookie, parents=True)
                else:
                    await self._store.set(self._path, self._cookie, self.counted - 1)
            except MetadataUnavailable:
                unanswered += 1
                if unanswered == _ATTEMPTS_MAX:
                    raise
                await asyncio.sleep(_RETRY_S * unanswered)
                continue
            except (BadVersion, NodeExists, NoNode) as error:
                if not unanswered or not await self._was_counted():
                    raise self._in_use() from error
            self.counted += 1
            return

    async def _was_counted(self) -> bool:
        """True if the change was made by this process and only its reply was lost."""
        try:
            found = await self._store.get(self._path)
        except NoNode:
            return False
        return found.version == self.counted and found.data == self._cookie

    def _in_use(self) -> BookieIdInUse:
        return BookieIdInUse(f"another process just started as bookie {self._count.bookie}")


async def is_new(disk: Disk) -> bool:
    """True if the directory never belonged to a cluster and has no log."""
    return not _has_log(disk) and not await read_start_counts(disk)


async def load_identity(
    disk: Disk, store: MetadataStore, wanted: StartCount, cookie: bytes
) -> BookieIdentity:
    """Compare the directory's identity with the cluster's identity.

    `wanted` is the identity of a new directory. Raises ForeignDirectory, without writing, if the
    directory belongs to another cluster or bookie, or is newer than the cluster's metadata.
    """
    counts = await read_start_counts(disk)
    try:
        counted = (await store.get(cookie_path(wanted.bookie))).version + 1
    except NoNode:
        counted = 0
    if not counts:
        return await _without_identity_file(disk, store, wanted, cookie, counted)
    count = counts[-1]
    if count.cluster != wanted.cluster:
        raise ForeignDirectory(
            f"belongs to cluster {count.cluster}, but ZooKeeper holds cluster {wanted.cluster}"
        )
    if count.bookie != wanted.bookie:
        raise ForeignDirectory(
            f"belongs to bookie {count.bookie}, but the configured name makes it {wanted.bookie}"
        )
    identity = BookieIdentity(disk, store, count._replace(inode=wanted.inode), cookie, counted)
    first = count.serial == 1 and len(counts) > 1 and counted == 0
    identity.loss = "" if first else find_loss(count, counted, wanted.inode)
    return identity


async def _without_identity_file(
    disk: Disk, store: MetadataStore, wanted: StartCount, cookie: bytes, counted: int
) -> BookieIdentity:
    identity = BookieIdentity(disk, store, wanted, cookie, counted)
    if counted > 0:
        identity.loss = "the cluster has a cookie of this bookie, but the directory has no identity"
    elif _has_log(disk):
        raise ForeignDirectory(
            "it has a log but no identity file, and ZooKeeper (cluster "
            f"{wanted.cluster}) has no cookie of this bookie"
        )
    else:
        await write_start_count(disk, wanted)
    return identity


def _has_log(disk: Disk) -> bool:
    return any(parse_file_name(name) is not None for name in disk.names())


def find_loss(count: StartCount, counted: int, inode: int) -> str:
    """Return why entries may be lost, or "". Raises ForeignDirectory if the metadata is older."""
    serial = count.serial
    if count.state == "rejoining":
        return "its cookie was missing"
    if serial == 0:
        return "" if counted == 0 else "the directory is older than its first start"
    if counted == 0:
        return "its cookie is missing"
    if serial > counted + 1:
        raise ForeignDirectory(
            f"it counts {serial} starts and stops, the cluster only {counted}: the metadata is "
            f"older than the data. Restore newer metadata, or delete {cookie_path(count.bookie)} "
            "to continue with the data that is left"
        )
    if serial < counted:
        return f"the directory is an old copy: {serial} of {counted} starts and stops"
    if serial == counted and count.state == "running" and count.inode != inode:
        return "the directory is a copy made while the bookie ran"
    return ""
