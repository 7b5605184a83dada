"""Discover the registered bookies through watches, without a request per use.

While the store is unavailable, the last known bookies are kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType

from ledger.errors import CorruptFormat, MetadataUnavailable, NoNode
from ledger.ids import BookieId
from ledger.ports.bookies import BookieInfo
from ledger.ports.metadata import MetadataStore, Unwatch
from ledger.registry import service_info
from ledger.registry.layout import AVAILABLE, READONLY
from ledger.tasks import reported, start_restarting

_RETRY_S_FIRST = 0.1
_RETRY_S_MAX = 5.0
_READONLY_NAME = READONLY.rpartition("/")[2]


class Discovery:
    """The registered bookies of one cluster, from `start` to `stop`."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        # The bookies as last read. Replaced as a whole, never changed.
        self._known: Mapping[BookieId, BookieInfo] = MappingProxyType({})
        # Callbacks of `on_changed`, in order of registration.
        self._listeners: list[Callable[[], None]] = []
        # Set by watches. `_run` clears it and reads the bookies again.
        self._changed = asyncio.Event()
        # Functions that end the watches; filled by `start`.
        self._unwatch: list[Unwatch] = []
        # The task of `_run`, from `start` to `stop`.
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the bookies, and keep them up to date. Raises MetadataUnavailable."""
        store, wake = self._store, self._changed.set
        self._unwatch = [store.watch(path, wake) for path in (AVAILABLE, READONLY)]
        self._unwatch.append(store.watch_session(wake))
        self._known = await self._read()
        self._task = start_restarting("the discovery of bookies", self._run, self._changed.set)

    def registered(self) -> Mapping[BookieId, BookieInfo]:
        """Return every bookie known to be alive. The mapping never changes; updates replace it."""
        return self._known

    def on_changed(self, call: Callable[[], None]) -> Unwatch:
        """Call `call` on the loop after each change of `registered`."""
        self._listeners.append(call)

        def unwatch() -> None:
            if call in self._listeners:
                self._listeners.remove(call)

        return unwatch

    async def stop(self) -> None:
        """Stop watching. The last known bookies are kept."""
        for unwatch in self._unwatch:
            unwatch()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        retry_s = _RETRY_S_FIRST
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                found = await self._read()
            except MetadataUnavailable:
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, _RETRY_S_MAX)
                self._changed.set()
                continue
            retry_s = _RETRY_S_FIRST
            if found != self._known:
                self._known = found
                self._notify()

    def _notify(self) -> None:
        for call in tuple(self._listeners):
            with reported("a listener of bookies"):
                call()

    async def _read(self) -> Mapping[BookieId, BookieInfo]:
        """Read the registered bookies. A bookie in both lists counts as read-only, as it is moving.

        A bookie may move between the reads of the two lists. If something changed meanwhile,
        missing bookies are therefore kept until the next read, which follows at once.
        """
        writable = await self._list(AVAILABLE, read_only=False)
        found = writable | await self._list(READONLY, read_only=True)
        if self._changed.is_set():
            found = dict(self._known) | found
        return MappingProxyType(found)

    async def _list(self, path: str, *, read_only: bool) -> dict[BookieId, BookieInfo]:
        try:
            names = await self._store.children(path)
        except NoNode:
            return {}  # the cluster is not laid out yet
        bookies = [BookieId(name) for name in names if name != _READONLY_NAME]
        infos = await asyncio.gather(*[self._info(path, each, read_only) for each in bookies])
        return {
            bookie: info for bookie, info in zip(bookies, infos, strict=True) if info is not None
        }

    async def _info(self, path: str, bookie: BookieId, read_only: bool) -> BookieInfo | None:
        """Return a bookie's info, or None if its node has just gone or does not parse."""
        try:
            data = (await self._store.get(f"{path}/{bookie}")).data
            return service_info.decode(data, bookie, read_only=read_only)
        except (NoNode, CorruptFormat):
            return None
