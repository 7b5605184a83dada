"""A bookie says that it is there: one ephemeral node, in the list of the writable or the read-only.

The node goes with the session; it is made again in the next one. Two processes never register one
id: the second waits for the session of the first to end, and gives up when it does not.
Source: BookKeeper, `discover/ZKRegistrationManager.java`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from ledger.errors import BookieIdInUse, CorruptFormat, MetadataUnavailable, NodeExists, NoNode
from ledger.ids import BookieId
from ledger.ports.bookies import BookieInfo
from ledger.ports.metadata import Create, Delete, MetadataStore, Unwatch
from ledger.registry import service_info
from ledger.registry.layout import AVAILABLE, READONLY

_RETRY_S_FIRST = 0.1
_RETRY_S_MAX = 5.0
_LOOK_AGAIN_S = 0.5  # a watch wakes earlier; a lost one costs no more than this


class Registration:
    """Keeps one bookie registered from `start` to `stop`. One per process and id."""

    def __init__(
        self,
        store: MetadataStore,
        bookie: BookieId,
        info: BookieInfo,
        *,
        wait_s: float = 10.0,
        on_problem: Callable[[str], None] | None = None,
    ) -> None:
        self._store = store
        self._bookie = bookie
        self._info = info
        self._data = service_info.encode(bookie, info)
        self._wait_s = wait_s
        self._on_problem = on_problem
        self._read_only = info.read_only
        self._held: str | None = None  # our node of this session, as far as is known
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._unwatch: list[Unwatch] = []

    async def start(self) -> None:
        """Registered, and kept so.

        A left-over of our own (it names the address where only we can listen) is replaced at
        once, any other is waited for. Raises BookieIdInUse, MetadataUnavailable.
        """
        await wait_until_unregistered(
            self._store, self._bookie, self._info, self._wait_s, replace=True
        )
        await self._settle()
        store, paths = self._store, _paths(self._bookie)
        self._unwatch = [store.watch(path, self._changed.set) for path in paths]
        self._unwatch.append(store.watch_session(self._on_renewed))
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def set_read_only(self, read_only: bool) -> None:
        """Listed among the read-only bookies, or among the writable ones again.

        Returns when it is so; while the store is unreachable that may take long.
        """
        if read_only != self._read_only:
            self._read_only = read_only
            self._settled.clear()
            self._changed.set()
        await self._settled.wait()

    async def stop(self) -> None:
        """Not registered any more. Never raises: the node goes with the session at the latest."""
        for unwatch in self._unwatch:
            unwatch()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._held is not None:
            with suppress(NoNode, MetadataUnavailable):
                await self._store.delete(self._held)
            self._held = None

    def _on_renewed(self) -> None:
        self._held = None
        self._settled.clear()
        self._changed.set()

    async def _keep(self) -> None:
        retry_s = _RETRY_S_FIRST
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._settle()
                retry_s = _RETRY_S_FIRST
            except (BookieIdInUse, MetadataUnavailable) as error:
                if self._on_problem is not None:
                    self._on_problem(f"not registered: {error}")
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, _RETRY_S_MAX)
                self._changed.set()

    async def _settle(self) -> None:
        """The one node is there and the other is not. Raises BookieIdInUse, MetadataUnavailable."""
        writable, readonly = _paths(self._bookie)
        read_only = self._read_only
        wanted, other = (readonly, writable) if read_only else (writable, readonly)
        if self._held == other and await self._move(other, wanted):
            self._held = wanted
        if self._held != wanted or not await self._store.exists(wanted):
            await self._remove_left_over(other)
            await self._create(wanted)
            self._held = wanted
        if self._read_only == read_only:
            self._settled.set()

    async def _move(self, source: str, target: str) -> bool:
        """At no time in both lists or in none; False when the nodes are not as they should be."""
        try:
            await self._store.multi([Delete(source), Create(target, self._data, ephemeral=True)])
        except (NoNode, NodeExists):
            return False
        return True

    async def _create(self, path: str) -> None:
        """The node is there. One with our own data is ours: the reply to its creation was lost,
        or it goes with the session that ended, and then the watch tells."""
        try:
            await self._store.create(path, self._data, ephemeral=True)
        except NodeExists:
            with suppress(NoNode):
                found = await self._store.get(path)
                if found.data != self._data:
                    raise _in_use(self._bookie, found.data) from None
                return
            self._changed.set()

    async def _remove_left_over(self, path: str) -> None:
        with suppress(NoNode):
            found = await self._store.get(path)
            if found.data == self._data:
                await self._store.delete(path, found.version)


async def wait_until_unregistered(
    store: MetadataStore, bookie: BookieId, info: BookieInfo, wait_s: float, *, replace: bool
) -> None:
    """Nobody else is registered as `bookie`. Raises BookieIdInUse when that lasts `wait_s`.

    A node that names our own address is no obstacle; with `replace` it is gone.
    """
    changed = asyncio.Event()
    unwatch = [store.watch(path, changed.set) for path in _paths(bookie)]
    until_s = asyncio.get_running_loop().time() + wait_s
    try:
        while (data := await _obstacle(store, bookie, info, replace)) is not None:
            left_s = until_s - asyncio.get_running_loop().time()
            if left_s <= 0:
                raise _in_use(bookie, data)
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), min(left_s, _LOOK_AGAIN_S))
            changed.clear()
    finally:
        for disarm in unwatch:
            disarm()


async def _obstacle(
    store: MetadataStore, bookie: BookieId, info: BookieInfo, replace: bool
) -> bytes | None:
    """The data of a node that is not our own, or None."""
    own = service_info.encode(bookie, info)
    for path in _paths(bookie):
        with suppress(NoNode):
            found = await store.get(path)
            if found.data != own:
                return found.data
            if replace:
                await store.delete(path, found.version)
    return None


def _paths(bookie: BookieId) -> tuple[str, str]:
    return f"{AVAILABLE}/{bookie}", f"{READONLY}/{bookie}"


def _in_use(bookie: BookieId, data: bytes) -> BookieIdInUse:
    try:
        info = service_info.decode(data, bookie, read_only=False)
        where = f" at {info.host}:{info.port}"
    except CorruptFormat:
        where = ""
    return BookieIdInUse(f"bookie {bookie} is registered by another process{where}")
