"""Follows the nodes below one parent: created, changed and deleted on any broker.

    watch of the parent ─▶ list it ─▶ watch new nodes ─▶ read them ─▶ `on_found`
    watch of a node ───────────────────────────────────▶ read it ───▶ `on_found` or `on_gone`

A node is watched before it is read, so that no change is missed. Changes during a round are read
together in the next round, so that a burst of a thousand changes costs a few rounds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from gateway.log import logger
from ledger.errors import LedgerError, NoNode
from ledger.ports.metadata import MetadataStore, Node, Unwatch
from ledger.tasks import start_restarting

_READS_AT_ONCE = 128
# The pause as a multiple of the round's duration, so that rounds take a tenth of the time.
_REST_SHARE = 9
_REST_S_MIN, _REST_S_MAX = 0.02, 1.0
_RETRY_S_FIRST, _RETRY_S_MAX = 0.1, 5.0


class NodeListener(Protocol):
    """The owner of a local copy of the nodes. Not called while it calls the store."""

    def known_names(self) -> set[str]:
        """Return the names of the nodes in the local copy. Called when a round begins."""
        ...

    def on_found(self, name: str, node: Node) -> None:
        """Take a node as it was read. It may be older than the local copy: compare versions."""
        ...

    def on_gone(self, name: str) -> None:
        """Drop a node that the store no longer has."""
        ...

    def on_round_over(self) -> None:
        """End the round: all of its nodes were reported."""
        ...


class NodeWatch:
    """The watches of one parent and its children. Call `start` once and `stop` once."""

    def __init__(
        self, store: MetadataStore, root: str, listener: NodeListener, what: str = "topics"
    ) -> None:
        """Create a watch that is not started. `what` names the nodes in logs."""
        self._store = store
        self._root = root
        self._listener = listener
        self._what = what
        # The watch of each child, from its first listing until the child is deleted or `stop`.
        self._watches: dict[str, Unwatch] = {}
        # The watches of the parent and of the session, from `start` to `stop`.
        self._unlisten: list[Unwatch] = []
        # True from the end of `start`. Rounds wait for it: `start` would report a node that it had
        # read before a round found it deleted.
        self._started = False
        # True if the parent must be listed in the next round.
        self._list_due = False
        # The names of the nodes to read in the next round.
        self._changed: set[str] = set()
        # True from a new session until the next sync: its server may lag behind the old one.
        self._renewed = False
        # The task that runs rounds while nodes must be read. None or done otherwise.
        self._task: asyncio.Task[None] | None = None
        # The pause after the next failed round. Doubles with each failure.
        self._retry_s = _RETRY_S_FIRST

    async def start(self) -> None:
        """Report every existing node, and every change from now on. Raises LedgerError."""
        self._unlisten.append(self._store.watch(self._root, self._on_listed))
        self._unlisten.append(self._store.watch_session(self._on_renewed))
        for name in await self._store.children(self._root):
            self._watch(name)
        for path, node in (await self._store.read_tree(self._root)).items():
            name = path.rpartition("/")[2]
            self._watch(name)
            self._listener.on_found(name, node)
        self._listener.on_round_over()
        self._started = True
        if self._list_due or self._changed:
            self._wake()

    async def stop(self) -> None:
        """Remove all watches and end the task."""
        for unwatch in (*self._unlisten, *self._watches.values()):
            unwatch()
        self._unlisten.clear()
        self._watches.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def relist(self) -> None:
        """List and read all nodes again, after a change of unknown outcome."""
        self._on_listed()

    # -- events -------------------------------------------------------------------------------

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
        self._list_due = True
        self._wake()

    def _on_renewed(self) -> None:
        """Sync before the next read, because the new server may lag. All watches fire as well."""
        self._renewed = True
        self._on_listed()

    def _wake(self) -> None:
        if self._started and self._unlisten and (self._task is None or self._task.done()):
            self._task = start_restarting(
                f"the watch on {self._what}", self._rounds, self._on_rounds_died
            )

    def _on_rounds_died(self) -> None:
        self._list_due = True  # a round forgets what was due when it begins
        self._changed |= self._watches.keys()

    # -- reading ------------------------------------------------------------------------------

    async def _rounds(self) -> None:
        loop = asyncio.get_running_loop()
        while self._list_due or self._changed:
            start_s = loop.time()
            list_due, self._list_due = self._list_due, False
            changed, self._changed = self._changed, set()
            try:
                await self._round(list_due, changed)
            except LedgerError as error:
                self._list_due, self._changed = True, self._changed | changed
                logger().warning(
                    f"cannot read {self._what} changed by other brokers", reason=str(error)
                )
                await asyncio.sleep(self._retry_s)
                self._retry_s = min(2 * self._retry_s, _RETRY_S_MAX)
            else:
                self._retry_s = _RETRY_S_FIRST
                rest_s = _REST_SHARE * (loop.time() - start_s)
                await asyncio.sleep(min(max(rest_s, _REST_S_MIN), _REST_S_MAX))

    async def _round(self, list_due: bool, changed: set[str]) -> None:
        if self._renewed:
            await self._store.sync(self._root)
            self._renewed = False
        if list_due:
            known = self._listener.known_names() | self._watches.keys()
            listed = set(await self._store.children(self._root))
            for name in listed - self._watches.keys():
                self._watch(name)
                changed.add(name)
            changed |= known - listed
        gone = await self._read(changed)
        if gone:  # after a sync, confirm that these nodes do not exist
            await self._store.sync(self._root)
            for name in await self._read(gone):
                self._forget(name)
        self._listener.on_round_over()

    async def _read(self, names: set[str]) -> set[str]:
        """Report nodes that exist through `on_found`. Return the names of missing nodes."""
        absent: set[str] = set()
        ordered = sorted(names)
        for at in range(0, len(ordered), _READS_AT_ONCE):
            some = ordered[at : at + _READS_AT_ONCE]
            nodes = await asyncio.gather(*(self._get(name) for name in some))
            for name, node in zip(some, nodes, strict=True):
                if node is None:
                    absent.add(name)
                else:
                    self._listener.on_found(name, node)
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
        self._listener.on_gone(name)
