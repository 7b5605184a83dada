"""Watches that stay armed, made of ZooKeeper's, which fire once and are lost with a connection.

A path is armed by two requests, `exists` (the node and its data) and `getChildren`. When either
fires, or the connection was another, both are asked again, and what they say is compared with what
they said before: so a change between firing and arming is told too. The last changes of a node's
data and of its children are two transaction ids in its stat; they are all that is compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from kazoo.exceptions import NoNodeError

from ledger.ports.metadata import Unwatch

Arm = Callable[[str], tuple[Awaitable[Any], Awaitable[Any]]]
"""Asks for a node's stat (None: no such node) and for its children and stat, watches set."""

_NEVER: Final = (-1, -1, -1)  # armed for the first time: nothing to compare with
_UNKNOWN: Final = (-2, -2, -2)  # a change may have been missed: told when armed again


class _Watched:
    """One path; `seen` is what it looked like when it was last armed."""

    __slots__ = ("again", "arming", "callbacks", "path", "seen", "tell")

    def __init__(self, path: str) -> None:
        self.path = path
        self.callbacks: list[Callable[[], None]] = []
        self.seen: tuple[int, int, int] | None = _NEVER
        self.arming = False
        self.again = False  # it fired, or the connection changed, while it was being armed
        self.tell = False  # it fired


class Watches:
    """All watches of a session. Callbacks run by `call_soon`."""

    def __init__(self, arm: Arm) -> None:
        self._arm_both = arm
        self._watched: dict[str, _Watched] = {}
        self._under_way: set[asyncio.Future[tuple[Any, Any]]] = set()
        self._closed = False

    def watch(self, path: str, on_changed: Callable[[], None]) -> Unwatch:
        """`on_changed` runs after each later change, or once for several."""
        watched = self._watched.get(path)
        armed_already = watched is not None
        if watched is None:
            watched = self._watched[path] = _Watched(path)
        callbacks = watched.callbacks
        armed = True

        def notify() -> None:
            if armed and not self._closed:
                on_changed()

        def unwatch() -> None:
            nonlocal armed
            if armed:
                armed = False
                callbacks.remove(notify)

        callbacks.append(notify)
        if not armed_already:
            self._arm(watched)
        return unwatch

    def on_fired(self, path: str) -> None:
        """ZooKeeper has told a change of `path` and forgotten the watch."""
        watched = self._watched.get(path)
        if watched is None:
            return
        if not watched.callbacks and not watched.arming:
            del self._watched[path]
            return
        watched.tell = True
        self._arm(watched)

    def on_connected(self, *, renewed: bool) -> None:
        """Watches are lost with their connection; after another session each is told once."""
        for watched in list(self._watched.values()):
            if not watched.callbacks and not watched.arming:
                del self._watched[watched.path]
                continue
            if renewed:
                watched.seen = _UNKNOWN
            self._arm(watched)

    def close(self) -> None:
        self._closed = True
        self._watched.clear()

    def _arm(self, watched: _Watched) -> None:
        if self._closed:
            return
        if watched.arming:
            watched.again = True
            return
        watched.arming = True
        node, children = self._arm_both(watched.path)
        both = asyncio.gather(node, children, return_exceptions=True)
        self._under_way.add(both)

        def on_answered(answered: asyncio.Future[tuple[Any, Any]]) -> None:
            self._under_way.discard(answered)
            if not self._closed and not answered.cancelled():
                self._on_answered(watched, *answered.result())

        both.add_done_callback(on_answered)

    def _on_answered(self, watched: _Watched, node: Any, children: Any) -> None:
        watched.arming = False
        failed = isinstance(node, BaseException) or (
            isinstance(children, BaseException) and not isinstance(children, NoNodeError)
        )
        if failed:
            watched.seen = _UNKNOWN  # armed again on the next connection
        else:
            self._compare(watched, node, children)
        if watched.again:
            watched.again = False
            if watched.callbacks:
                self._arm(watched)
            else:
                del self._watched[watched.path]

    def _compare(self, watched: _Watched, node: Any, children: Any) -> None:
        """What was asked last decides: it saw whatever the first one saw, or its watch fires."""
        stat = None if isinstance(children, NoNodeError) else children[1]
        seen = None if stat is None else (stat.czxid, stat.mzxid, stat.pzxid)
        changed = seen != watched.seen and watched.seen != _NEVER
        watched.seen = seen
        if changed or watched.tell:
            watched.tell = False
            loop = asyncio.get_running_loop()
            for notify in list(watched.callbacks):
                loop.call_soon(notify)
