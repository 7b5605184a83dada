"""Register a bookie: one ephemeral node in the list of the writable or the read-only bookies.

The node ends with the session and is created again in the next session. Two processes never
register one id: the second process waits for the first one's session to end, then gives up. Source:
BookKeeper, `discover/ZKRegistrationManager.java`.
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
from ledger.tasks import start_vital

_RETRY_S_FIRST = 0.1
_RETRY_S_MAX = 5.0
_POLL_S = 0.5  # time between two checks, in case a watch is lost


class Registration:
    """The registration of one bookie from `start` to `stop`. One per process and id."""

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
        # True if the bookie should be read-only, as last set.
        self._read_only = info.read_only
        # The path of this session's node, or None if unknown. Reset with each new session.
        self._node: str | None = None
        # Set by watches and by `set_read_only`. `_run` clears it and reconciles the nodes.
        self._changed = asyncio.Event()
        # Set while the registered state is the wanted state.
        self._settled = asyncio.Event()
        # The task of `_run`, from `start` to `stop`.
        self._task: asyncio.Task[None] | None = None
        # Functions that end the watches; filled by `start`.
        self._unwatch: list[Unwatch] = []

    async def start(self) -> None:
        """Register, and stay registered.

        An old node with this address is replaced at once; for any other node, wait until its
        session ends. Raises BookieIdInUse, MetadataUnavailable.
        """
        await wait_until_unregistered(
            self._store, self._bookie, self._info, self._wait_s, replace=True
        )
        await self._reconcile()
        store, paths = self._store, _paths(self._bookie)
        self._unwatch = [store.watch(path, self._changed.set) for path in paths]
        self._unwatch.append(store.watch_session(self._on_new_session))
        self._task = start_vital("the registration of this bookie", self._run())

    async def set_read_only(self, read_only: bool) -> None:
        """Move to the read-only bookies, or back to the writable ones.

        Returns after the move, which may take long while the store is unavailable.
        """
        if read_only != self._read_only:
            self._read_only = read_only
            self._settled.clear()
            self._changed.set()
        await self._settled.wait()

    async def stop(self) -> None:
        """Unregister. Never raises, because the node expires with the session at the latest."""
        for unwatch in self._unwatch:
            unwatch()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._node is not None:
            with suppress(NoNode, MetadataUnavailable):
                await self._store.delete(self._node)
            self._node = None

    def _on_new_session(self) -> None:
        self._node = None
        self._settled.clear()
        self._changed.set()

    async def _run(self) -> None:
        retry_s = _RETRY_S_FIRST
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._reconcile()
                retry_s = _RETRY_S_FIRST
            except (BookieIdInUse, MetadataUnavailable) as error:
                if self._on_problem is not None:
                    self._on_problem(f"not registered: {error}")
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, _RETRY_S_MAX)
                self._changed.set()

    async def _reconcile(self) -> None:
        """Create the wanted node and delete the other one. Raises BookieIdInUse,
        MetadataUnavailable.
        """
        writable, readonly = _paths(self._bookie)
        read_only = self._read_only
        wanted, other = (readonly, writable) if read_only else (writable, readonly)
        if self._node == other and await self._move(other, wanted):
            self._node = wanted
        if self._node != wanted or not await self._store.exists(wanted):
            await self._delete_old_node(other)
            await self._create(wanted)
            self._node = wanted
        if self._read_only == read_only:
            self._settled.set()

    async def _move(self, source: str, target: str) -> bool:
        """Move the node atomically. False if `source` is missing or `target` exists."""
        try:
            await self._store.multi([Delete(source), Create(target, self._data, ephemeral=True)])
        except (NoNode, NodeExists):
            return False
        return True

    async def _create(self, path: str) -> None:
        """Create the node, or accept an existing node with the same data.

        An existing node may be this process's own, if the reply was lost. Or it belongs to an ended
        session; then a watch fires when the node is removed.
        """
        try:
            await self._store.create(path, self._data, ephemeral=True)
        except NodeExists:
            with suppress(NoNode):
                found = await self._store.get(path)
                if found.data != self._data:
                    raise _in_use(self._bookie, found.data) from None
                return
            self._changed.set()

    async def _delete_old_node(self, path: str) -> None:
        with suppress(NoNode):
            found = await self._store.get(path)
            if found.data == self._data:
                await self._store.delete(path, found.version)


async def wait_until_unregistered(
    store: MetadataStore, bookie: BookieId, info: BookieInfo, wait_s: float, *, replace: bool
) -> None:
    """Wait until no other process is registered as `bookie`.

    A node with this process's own address does not count; with `replace` such a node is deleted.
    Raises BookieIdInUse after `wait_s`.
    """
    changed = asyncio.Event()
    unwatch = [store.watch(path, changed.set) for path in _paths(bookie)]
    until_s = asyncio.get_running_loop().time() + wait_s
    try:
        while (data := await _other_owner(store, bookie, info, replace)) is not None:
            left_s = until_s - asyncio.get_running_loop().time()
            if left_s <= 0:
                raise _in_use(bookie, data)
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), min(left_s, _POLL_S))
            changed.clear()
    finally:
        for disarm in unwatch:
            disarm()


async def _other_owner(
    store: MetadataStore, bookie: BookieId, info: BookieInfo, replace: bool
) -> bytes | None:
    """Return the data of another process's node, or None."""
    for path in _paths(bookie):
        with suppress(NoNode):
            found = await store.get(path)
            if not _has_address(found.data, bookie, info):
                return found.data
            if replace:
                await store.delete(path, found.version)
    return None


def _paths(bookie: BookieId) -> tuple[str, str]:
    return f"{AVAILABLE}/{bookie}", f"{READONLY}/{bookie}"


def _has_address(data: bytes, bookie: BookieId, info: BookieInfo) -> bool:
    """Return whether the node was registered at the address of `info`, by whichever process."""
    try:
        found = service_info.decode(data, bookie, read_only=False)
    except CorruptFormat:
        return False
    return (found.host, found.main_port) == (info.host, info.main_port)


def _in_use(bookie: BookieId, data: bytes) -> BookieIdInUse:
    try:
        info = service_info.decode(data, bookie, read_only=False)
        where = f" at {info.host}:{info.main_port}"
    except CorruptFormat:
        where = ""
    return BookieIdInUse(f"bookie {bookie} is registered by another process{where}")
