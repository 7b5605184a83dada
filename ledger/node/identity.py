"""Which bookie of which cluster a directory is, and whether it is all that this bookie ever was.

The directory counts its starts and clean stops, and so does the cluster: the version of the
bookie's cookie is that count. So an old copy of a directory shows (it has seen fewer), and a lost
cookie, and a cluster whose metadata were put back to an older state. The directory counts first:
a crash between the two leaves it one ahead, never behind.

    directory  1    2    2    3    4 | copy of 2 put back: 2
    cluster    1    2    2    3    4 |                     4   -> entries may be lost
               start stop     start stop
"""

from __future__ import annotations

import asyncio

from ledger.bookie.directory import (
    Standing,
    State,
    drop_standing,
    forget_other_standings,
    read_standings,
    write_standing,
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
from ledger.ports.disk import Disk
from ledger.ports.metadata import MetadataStore
from ledger.registry.cookie import cookie_path

_ATTEMPTS_MAX = 8
_RETRY_S = 0.1


class Identity:
    """One bookie's standing in its cluster. Made by `learn_identity`."""

    def __init__(
        self, disk: Disk, store: MetadataStore, standing: Standing, cookie: bytes, counted: int
    ) -> None:
        self._disk = disk
        self._store = store
        self._standing = standing
        self._cookie = cookie
        self._path = cookie_path(standing.bookie)
        self.counted = counted  # by the cluster; 0: it has no cookie of this bookie
        self.loss = ""  # why entries may be lost; "": they are not

    @property
    def cluster(self) -> str:
        """Its instance id."""
        return self._standing.cluster

    @property
    def served_before(self) -> bool:
        """The directory has seen a start before this one."""
        return self._standing.serial > 0

    async def started(self) -> None:
        """Directory and cluster have counted this start. Raises BookieIdInUse, OSError,
        MetadataUnavailable."""
        if self.counted < self._standing.serial - 1:
            await self._write(self._standing.serial + 1, "rejoining")
        await self._count_to(self._standing.serial)
        await self._advance("running")

    async def stopped(self) -> None:
        """They have counted this clean stop. Raises as `started`; the directory counts first."""
        await self._advance("stopped")

    async def _advance(self, state: State) -> None:
        serial = max(self.counted, self._standing.serial) + 1
        await self._write(serial, state)
        try:
            await self._count_to(serial)
        except BookieIdInUse:
            drop_standing(self._disk, serial)  # the rival's directory has seen that start
            raise
        forget_other_standings(self._disk, serial)

    async def _write(self, serial: int, state: State) -> None:
        self._standing = self._standing._replace(serial=serial, state=state)
        await write_standing(self._disk, self._standing)

    async def _count_to(self, serial: int) -> None:
        while self.counted < serial:
            await self._count()

    async def _count(self) -> None:
        """The cluster's count is one higher. Raises BookieIdInUse if somebody else raised it."""
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
                    raise self._rival() from error
            self.counted += 1
            return

    async def _was_counted(self) -> bool:
        """Whether the change was ours whose answer was lost."""
        try:
            found = await self._store.get(self._path)
        except NoNode:
            return False
        return found.version == self.counted and found.data == self._cookie

    def _rival(self) -> BookieIdInUse:
        return BookieIdInUse(
            f"bookie {self._standing.bookie}: another process just started as this bookie"
        )


async def is_new(disk: Disk) -> bool:
    """The directory never belonged to a cluster and holds nothing that could have."""
    return not _holds_log(disk) and not await read_standings(disk)


async def learn_identity(
    disk: Disk, store: MetadataStore, wanted: Standing, cookie: bytes
) -> Identity:
    """What directory and cluster know of each other; `wanted` is what a new directory becomes.

    Raises ForeignDirectory, having written nothing, if the directory belongs to another cluster
    or bookie, or has outlived the cluster's metadata.
    """
    standings = await read_standings(disk)
    try:
        counted = (await store.get(cookie_path(wanted.bookie))).version + 1
    except NoNode:
        counted = 0
    if not standings:
        return await _without_standing(disk, store, wanted, cookie, counted)
    standing = standings[-1]
    if standing.cluster != wanted.cluster:
        raise ForeignDirectory(
            f"belongs to cluster {standing.cluster}, but ZooKeeper holds cluster {wanted.cluster}"
        )
    if standing.bookie != wanted.bookie:
        raise ForeignDirectory(
            f"belongs to bookie {standing.bookie}, but the name makes it {wanted.bookie}"
        )
    identity = Identity(disk, store, standing._replace(place=wanted.place), cookie, counted)
    first = standing.serial == 1 and len(standings) > 1 and counted == 0
    identity.loss = "" if first else judge(standing, counted, wanted.place)
    return identity


async def _without_standing(
    disk: Disk, store: MetadataStore, wanted: Standing, cookie: bytes, counted: int
) -> Identity:
    identity = Identity(disk, store, wanted, cookie, counted)
    if counted > 0:
        identity.loss = "the directory has forgotten its cluster, which knows it"
    elif _holds_log(disk):
        raise ForeignDirectory(
            f"it holds a log, but of no cluster that is known (ZooKeeper: cluster {wanted.cluster})"
        )
    else:
        await write_standing(disk, wanted)
    return identity


def _holds_log(disk: Disk) -> bool:
    return any(parse_file_name(name) is not None for name in disk.names())


def judge(standing: Standing, counted: int, place: int) -> str:
    """Why entries may be lost, or "". Raises ForeignDirectory if metadata are the older ones."""
    serial = standing.serial
    if standing.state == "rejoining":
        return "its cookie was missing"
    if serial == 0:
        return "" if counted == 0 else "the directory is older than its first start"
    if counted == 0:
        return "its cookie is missing"
    if serial > counted + 1:
        raise ForeignDirectory(
            f"it has counted {serial} starts and stops, the cluster only {counted}: the metadata "
            f"are older than the data. Bring newer ones back, or delete "
            f"{cookie_path(standing.bookie)} to go on with what is left"
        )
    if serial < counted:
        return f"the directory is an old copy: {serial} of {counted} starts and stops"
    if serial == counted and standing.state == "running" and standing.place != place:
        return "the directory is a copy made while the bookie ran"
    return ""
