"""Who is registered, as last seen: watched, not asked for each time.

While the store is unreachable the last known picture stays: a bookie is where it was until
somebody who can tell says otherwise.
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

_RETRY_S_FIRST = 0.1
_RETRY_S_MAX = 5.0
_READONLY_NAME = READONLY.rpartition("/")[2]


class Discovery:
    """The registered bookies of one cluster, from `start` to `stop`."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._known: Mapping[BookieId, BookieInfo] = MappingProxyType({})
        self._told: list[Callable[[], None]] = []
        self._changed = asyncio.Event()
        self._unwatch: list[Unwatch] = []
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """The picture is whole, and kept so. Raises MetadataUnavailable."""
        store, wake = self._store, self._changed.set
        self._unwatch = [store.watch(path, wake) for path in (AVAILABLE, READONLY)]
        self._unwatch.append(store.watch_session(wake))
        self._known = await self._look()
        self._task = asyncio.get_running_loop().create_task(self._keep())

    def registered(self) -> Mapping[BookieId, BookieInfo]:
        """Every bookie that is alive as far as is known. Never changes; another one follows."""
        return self._known

    def on_changed(self, call: Callable[[], None]) -> Unwatch:
        """`call` runs after each change of `registered`, on the loop."""
        self._told.append(call)

        def unwatch() -> None:
            if call in self._told:
                self._told.remove(call)

        return unwatch

    async def stop(self) -> None:
        """Nothing is watched any more; the last picture stays."""
        for unwatch in self._unwatch:
            unwatch()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep(self) -> None:
        retry_s = _RETRY_S_FIRST
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                found = await self._look()
            except MetadataUnavailable:
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, _RETRY_S_MAX)
                self._changed.set()
                continue
            retry_s = _RETRY_S_FIRST
            if found != self._known:
                self._known = found
                for call in tuple(self._told):
                    call()

    async def _look(self) -> Mapping[BookieId, BookieInfo]:
        """As registered now. One in both lists, for it moves, counts as read-only.

        One that is missing while something changed may have moved from one list to the other
        between the looks at them: it stays until the next look, which follows.
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
            return {}  # nobody laid the cluster out yet
        bookies = [BookieId(name) for name in names if name != _READONLY_NAME]
        infos = await asyncio.gather(*[self._info(path, each, read_only) for each in bookies])
        return {
            bookie: info for bookie, info in zip(bookies, infos, strict=True) if info is not None
        }

    async def _info(self, path: str, bookie: BookieId, read_only: bool) -> BookieInfo | None:
        """None when it has just gone, or says something that nobody understands."""
        try:
            data = (await self._store.get(f"{path}/{bookie}")).data
            return service_info.decode(data, bookie, read_only=read_only)
        except (NoNode, CorruptFormat):
            return None
