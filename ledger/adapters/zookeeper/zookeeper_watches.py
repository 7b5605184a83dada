"""Watches that stay armed, built on ZooKeeper's watches, which fire once and end with a connection.

Two requests arm a path: `exists` (the node and its data) and `getChildren`. After either fires, or
on another connection, both are sent again, and their answers are compared with the earlier ones. So
a change between firing and arming is reported too. The comparison needs only the transaction ids of
the last changes of the node's data and of its children. Both ids are in the node's stat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from kazoo.exceptions import NoNodeError

from ledger.ports.metadata import Unwatch

Arm = Callable[[str], tuple[Awaitable[Any], Awaitable[Any]]]
"""Requests a node's stat (None for a missing node) and its children with stat, and sets both
watches.
"""

# State before the first arming: there is no earlier state to compare with
_NEVER: Final = (-1, -1, -1)
# State after a possible missed change: the watch fires when armed again
_UNKNOWN: Final = (-2, -2, -2)


class _Watched:
    """One watched path. `seen` is the state of the node when the path was last armed."""

    __slots__ = ("again", "arming", "callbacks", "path", "seen", "tell")

    def __init__(self, path: str) -> None:
        self.path = path
        # Callbacks, run at each change. When the last one is removed, the path is no longer
        # watched.
        self.callbacks: list[Callable[[], None]] = []
        # The transaction ids at the last arming. `_NEVER` before the first, `_UNKNOWN` after a
        # loss.
        self.seen: tuple[int, int, int] | None = _NEVER
        # True while the two requests are in flight; at most one pair for each path.
        self.arming = False
        # True if the path fired, or the connection changed, while it was being armed.
        self.again = False
        # True if the watch fired, so that the callbacks run even if the comparison shows no change.
        self.tell = False


class Watches:
    """All watches of a session. Callbacks run by `call_soon`."""

    def __init__(self, arm: Arm) -> None:
        self._arm_both = arm
        # Every path with at least one callback.
        self._watched: dict[str, _Watched] = {}
        # The pairs of requests in flight, kept so that they are not collected.
        self._under_way: set[asyncio.Future[tuple[Any, Any]]] = set()
        # Set once, by `close`; no callback runs afterwards.
        self._closed = False

    def watch(self, path: str, on_changed: Callable[[], None]) -> Unwatch:
        """Run `on_changed` after each later change, or once for several changes."""
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
        """Arm `path` again: ZooKeeper reported a change and removed its watch."""
        watched = self._watched.get(path)
        if watched is None:
            return
        if not watched.callbacks and not watched.arming:
            del self._watched[path]
            return
        watched.tell = True
        self._arm(watched)

    def on_connected(self, *, renewed: bool) -> None:
        """Arm all watches on a new connection. After a new session each watch fires once."""
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
            watched.seen = _UNKNOWN  # the path is armed again on the next connection
        else:
            self._compare(watched, node, children)
        if watched.again:
            watched.again = False
            if watched.callbacks:
                self._arm(watched)
            else:
                del self._watched[watched.path]

    def _compare(self, watched: _Watched, node: Any, children: Any) -> None:
        """Compare with the last state. The later request saw all that the first saw, or
        it fires.
        """
        stat = None if isinstance(children, NoNodeError) else children[1]
        seen = None if stat is None else (stat.czxid, stat.mzxid, stat.pzxid)
        changed = seen != watched.seen and watched.seen != _NEVER
        watched.seen = seen
        if changed or watched.tell:
            watched.tell = False
            loop = asyncio.get_running_loop()
            for notify in list(watched.callbacks):
                loop.call_soon(notify)
