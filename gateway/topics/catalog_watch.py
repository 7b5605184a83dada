"""Follows nodes below one parent, whoever changes them: created, changed, gone.

    watch of the parent ─▶ list it ─▶ watch what is new ─▶ read it ─▶ `found`
    watch of a node ────────────────────────────────────▶ read it ─▶ `found`, or `gone`

A node is watched before it is read, so nothing is missed in between. Whatever changes during a
round is one more round: a storm of a thousand changes costs a few readings, not a thousand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from gateway.log import logger
from ledger.errors import LedgerError, NoNode
from ledger.ports.metadata import MetadataStore, Node, Unwatch

_READS_AT_ONCE = 128
_REST_SHARE = 9  # after a round it rests nine times as long: at most a tenth of the time is reading
_REST_S_MIN, _REST_S_MAX = 0.02, 1.0
_RETRY_S_FIRST, _RETRY_S_MAX = 0.1, 5.0


class Followed(Protocol):
    """Who keeps what is read. Called on the loop; never during its own calls to the store."""

    def known(self) -> set[str]:
        """Names of the nodes that it has."""
        ...

    def found(self, name: str, node: Node) -> None:
        """The node as it was read; perhaps older than what is known, its version tells."""
        ...

    def gone(self, name: str) -> None:
        """The store has no such node any more."""
        ...

    def round_over(self) -> None:
        """All that was read is told."""
        ...


class NodeWatch:
    """One per parent. `start` once, `stop` once."""

    def __init__(self, store: MetadataStore, root: str, followed: Followed) -> None:
        self._store = store
        self._root = root
        self._followed = followed
        self._watches: dict[str, Unwatch] = {}
        self._unlisten: list[Unwatch] = []
        self._listing = False  # the parent's children are to be listed
        self._changed: set[str] = set()  # names of nodes to read
        self._renewed = False  # the new session may be served by who is behind
        self._task: asyncio.Task[None] | None = None
        self._retry_s = _RETRY_S_FIRST

    async def start(self) -> None:
        """Everything there is was told, and so is every change from now on. Raises LedgerError."""
        self._unlisten.append(self._store.watch(self._root, self._on_listed))
        self._unlisten.append(self._store.watch_session(self._on_renewed))
        for name in await self._store.children(self._root):
            self._watch(name)
        for path, node in (await self._store.read_tree(self._root)).items():
            name = path.rpartition("/")[2]
            self._watch(name)
            self._followed.found(name, node)
        self._followed.round_over()

    async def stop(self) -> None:
        """Nothing is followed any more."""
        for unwatch in (*self._unlisten, *self._watches.values()):
            unwatch()
        self._unlisten.clear()
        self._watches.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def look_again(self) -> None:
        """Something may have changed though nobody told: a change whose outcome is unknown."""
        self._on_listed()

    # -- what is to be read -------------------------------------------------------------------

    def _watch(self, name: str) -> None:
        if name not in self._watches:
            self._watches[name] = self._store.watch(
                f"{self._root}/{name}", self._on_changed_of(name)
            )

    def _on_changed_of(self, name: str) -> Callable[[], None]:
        def on_changed() -> None:
            self._changed.add(name)
            self._wake()

        return on_changed

    def _on_listed(self) -> None:
        self._listing = True
        self._wake()

    def _on_renewed(self) -> None:
        """Every watch is told besides; what they are told about must be read from who knows."""
        self._renewed = True
        self._on_listed()

    def _wake(self) -> None:
        if self._unlisten and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._rounds())

    # -- reading ------------------------------------------------------------------------------

    async def _rounds(self) -> None:
        loop = asyncio.get_running_loop()
        while self._listing or self._changed:
            start_s = loop.time()
            listing, self._listing = self._listing, False
            changed, self._changed = self._changed, set()
            try:
                await self._round(listing, changed)
            except LedgerError as error:
                self._listing, self._changed = True, self._changed | changed
                logger().warning("changes by others are not seen yet", reason=str(error))
                await asyncio.sleep(self._retry_s)
                self._retry_s = min(2 * self._retry_s, _RETRY_S_MAX)
            else:
                self._retry_s = _RETRY_S_FIRST
                rest_s = _REST_SHARE * (loop.time() - start_s)
                await asyncio.sleep(min(max(rest_s, _REST_S_MIN), _REST_S_MAX))

    async def _round(self, listing: bool, changed: set[str]) -> None:
        if self._renewed:
            await self._store.sync(self._root)
            self._renewed = False
        if listing:
            known = self._followed.known() | self._watches.keys()
            listed = set(await self._store.children(self._root))
            for name in listed - self._watches.keys():
                self._watch(name)
                changed.add(name)
            changed |= known - listed
        gone = await self._read(changed)
        if gone:  # a second proof of absence, from a store that is not behind
            await self._store.sync(self._root)
            for name in await self._read(gone):
                self._forget(name)
        self._followed.round_over()

    async def _read(self, names: set[str]) -> set[str]:
        """What exists is told; the others are returned."""
        absent: set[str] = set()
        ordered = sorted(names)
        for at in range(0, len(ordered), _READS_AT_ONCE):
            some = ordered[at : at + _READS_AT_ONCE]
            nodes = await asyncio.gather(*(self._get(name) for name in some))
            for name, node in zip(some, nodes, strict=True):
                if node is None:
                    absent.add(name)
                else:
                    self._followed.found(name, node)
        return absent

    async def _get(self, name: str) -> Node | None:
        try:
            return await self._store.get(f"{self._root}/{name}")
        except NoNode:
            return None

    def _forget(self, name: str) -> None:
        unwatch = self._watches.pop(name, None)
        if unwatch is not None:
            unwatch()
        self._followed.gone(name)
