"""Watches that stay armed, built on ZooKeeper's watches, which fire once and end with a connection.

Two requests arm a path: `exists` (the node and its data) and `getChildren`. After either fires,
both are sent again, and their answers are compared with the earlier ones. So a change between
firing and arming is reported too. The comparison needs only the transaction ids of the last changes
of the node's data and of its children. Both ids are in the node's stat.

On another connection of the same session, SetWatches restores many armed paths by one request; the
server fires those that changed meanwhile. A new session arms each path again. The first arming of a
path is sent at once, because a read may follow it. All other requests leave in bounded batches, so
that requests of the store wait for one batch at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

from kazoo.exceptions import NoNodeError

from ledger.ports.metadata import Unwatch

ARMED_AT_ONCE = 64  # paths that are armed again, or removed, at the same time
RESTORED_BYTES = 64 * 1024  # size of the paths of one SetWatches, far below `jute.maxbuffer`
RETRY_S_MIN = 0.1
RETRY_S_MAX = 5.0

# State before the first arming: there is no earlier state to compare with
_NEVER: Final = (-1, -1, -1)
# State after a possible missed change: the watch fires when armed again
_UNKNOWN: Final = (-2, -2, -2)


class WatchRequests(Protocol):
    """The requests that set and remove watches at the server."""

    def arm(self, path: str) -> tuple[Awaitable[Any], Awaitable[Any]]:
        """Request a node's stat (None for a missing node) and its children with stat, and set both
        watches.
        """
        ...

    def restore(
        self, since_zxid: int, present: Sequence[str], missing: Sequence[str]
    ) -> asyncio.Future[Any]:
        """Set the watches of an earlier connection again. Those that changed since then fire."""
        ...

    def remove(self, path: str) -> asyncio.Future[Any]:
        """Remove both watches of a path, as far as they are set."""
        ...


class _Watched:
    """One watched path. `seen` is the state of the node when the path was last armed."""

    __slots__ = ("again", "armed", "arming", "callbacks", "path", "seen", "tell")

    def __init__(self, path: str) -> None:
        self.path = path
        # Callbacks, run at each change. When the last one is removed, the path is no longer
        # watched.
        self.callbacks: list[Callable[[], None]] = []
        # The transaction ids at the last arming; None for a missing node. `_NEVER` before the first
        # arming, `_UNKNOWN` after a loss.
        self.seen: tuple[int, int, int] | None = _NEVER
        # True while both watches are set at the server, or wait to be restored there. False from
        # the moment one fires, or might have been lost, until the path is armed again.
        self.armed = False
        # True while the two requests are in flight; at most one pair for each path.
        self.arming = False
        # True if the path fired, or the connection changed, while it was being armed.
        self.again = False
        # True if the watch fired, so that the callbacks run even if the comparison shows no change.
        self.tell = False


class Watches:
    """All watches of a session. Callbacks run by `call_soon`."""

    def __init__(self, requests: WatchRequests) -> None:
        self._requests = requests
        # Every path with at least one callback, and paths whose watch is about to be removed.
        self._watched: dict[str, _Watched] = {}
        # Paths to arm again, oldest first. Filled by events and failures, emptied in batches.
        self._due: dict[str, _Watched] = {}
        # Armed paths of earlier connections whose watches are not set on this one, the next last.
        self._unrestored: list[_Watched] = []
        # True while a SetWatches is in flight; at most one.
        self._restoring = False
        # Every change up to this transaction has fired the watches that were armed before it.
        self._since_zxid = 0
        # Paths that lost their last callback. Their watches are removed on the next pass.
        self._unwanted: dict[str, _Watched] = {}
        # The requests that arm or remove paths, kept so that they are not collected.
        self._under_way: set[asyncio.Future[Any]] = set()
        # After a failure: the timer that continues, and its next delay. None while there is none.
        self._pause: asyncio.TimerHandle | None = None
        self._retry_s = RETRY_S_MIN
        # Set once, by `close`; no callback runs afterwards.
        self._closed = False

    def watch(self, path: str, on_changed: Callable[[], None]) -> Unwatch:
        """Run `on_changed` after each later change, or once for several changes."""
        watched = self._watched.get(path)
        armed_already = watched is not None
        if watched is None:
            watched = self._watched[path] = _Watched(path)
        callbacks = watched.callbacks
        wanted = True

        def notify() -> None:
            if wanted and not self._closed:
                on_changed()

        def unwatch() -> None:
            nonlocal wanted
            if wanted:
                wanted = False
                callbacks.remove(notify)
                if not callbacks:
                    self._drop(watched)

        callbacks.append(notify)
        if not armed_already:
            self._arm(watched)
        return unwatch

    def on_fired(self, path: str) -> None:
        """Arm `path` again: ZooKeeper reported a change and removed its watch."""
        watched = self._watched.get(path)
        if watched is None:
            return
        watched.tell = True
        self._mark_due(watched)
        self._continue()

    def on_connected(self, *, renewed: bool, since_zxid: int) -> None:
        """Set all watches on a new connection. After a new session each watch fires once.

        Every change up to `since_zxid` was reported by earlier connections.
        """
        if not self._unrestored and not self._restoring:
            self._since_zxid = since_zxid
        self._unrestored = []
        self._cancel_pause()
        self._retry_s = RETRY_S_MIN
        for watched in list(self._watched.values()):
            if not watched.callbacks and not watched.arming:
                self._forget(watched)
            elif watched.armed and not renewed:
                self._unrestored.append(watched)
            else:
                watched.seen = _UNKNOWN if renewed else watched.seen
                self._mark_due(watched)
        self._continue()

    def close(self) -> None:
        self._closed = True
        self._cancel_pause()
        for paths in (self._watched, self._due, self._unwanted):
            paths.clear()
        self._unrestored.clear()

    # The following methods arm paths.

    def _mark_due(self, watched: _Watched) -> None:
        """Arm the path behind earlier ones, once `_continue` finds room for it."""
        watched.armed = False
        if watched.arming:
            watched.again = True
        elif self._watched.get(watched.path) is watched:
            self._due[watched.path] = watched

    def _continue(self) -> None:
        """Send the requests that fit into this batch."""
        if self._closed or self._pause is not None:
            return
        if self._unrestored and not self._restoring:
            self._restore()
        while self._due and len(self._under_way) < ARMED_AT_ONCE:
            watched = self._due.pop(next(iter(self._due)))
            if watched.callbacks:
                self._arm(watched)
        if not self._due:
            self._remove_unwanted()

    def _arm(self, watched: _Watched) -> None:
        if self._closed:
            return
        watched.arming = True
        node, children = self._requests.arm(watched.path)
        both = asyncio.gather(node, children, return_exceptions=True)
        self._under_way.add(both)

        def on_answered(answered: asyncio.Future[tuple[Any, Any]]) -> None:
            self._under_way.discard(answered)
            if not self._closed and not answered.cancelled():
                self._on_answered(watched, *answered.result())
                self._continue()

        both.add_done_callback(on_answered)

    def _on_answered(self, watched: _Watched, node: Any, children: Any) -> None:
        watched.arming = False
        again, watched.again = watched.again, False
        failed = isinstance(node, BaseException) or (
            isinstance(children, BaseException) and not isinstance(children, NoNodeError)
        )
        if failed:
            self._on_failed([watched])
        else:
            watched.armed = True
            fired = again and watched.tell
            self._compare(watched, node, children)
            if again:
                # The callbacks run once more: a missing node may come and go before the arming.
                watched.tell = fired
                self._mark_due(watched)
            elif not self._due and not self._restoring:
                self._retry_s = RETRY_S_MIN
        if not watched.callbacks:
            self._drop(watched)

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

    def _restore(self) -> None:
        """Set the watches of the next paths again."""
        some: list[_Watched] = []
        size = 0
        while self._unrestored and size < RESTORED_BYTES:
            watched = self._unrestored.pop()
            if watched.armed and self._watched.get(watched.path) is watched:
                some.append(watched)
                size += len(watched.path)
        if not some:
            return
        self._restoring = True
        present = [watched.path for watched in some if watched.seen is not None]
        missing = [watched.path for watched in some if watched.seen is None]

        def on_answered(answered: asyncio.Future[Any]) -> None:
            self._restoring = False
            if answered.cancelled() or self._closed:
                return
            if answered.exception() is not None:
                self._on_failed(some)
            self._continue()

        asked = self._requests.restore(self._since_zxid, present, missing)
        asked.add_done_callback(on_answered)

    def _on_failed(self, some: Sequence[_Watched]) -> None:
        """Arm these paths again after a pause, or on the next connection. A change may be lost."""
        for watched in some:
            watched.seen = _UNKNOWN
            self._mark_due(watched)
        if self._pause is None:
            loop = asyncio.get_running_loop()
            self._pause = loop.call_later(self._retry_s, self._on_paused)
            self._retry_s = min(2 * self._retry_s, RETRY_S_MAX)

    def _on_paused(self) -> None:
        self._pause = None
        self._continue()

    def _cancel_pause(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    # The following methods remove watches that have no callback.

    def _drop(self, watched: _Watched) -> None:
        """Remove the watch on a later pass, unless the path is watched again until then."""
        if self._closed or self._watched.get(watched.path) is not watched:
            return
        if not self._unwanted:
            asyncio.get_running_loop().call_soon(self._continue)
        self._unwanted[watched.path] = watched

    def _forget(self, watched: _Watched) -> None:
        del self._watched[watched.path]
        self._due.pop(watched.path, None)
        self._unwanted.pop(watched.path, None)

    def _remove_unwanted(self) -> None:
        while self._unwanted and len(self._under_way) < ARMED_AT_ONCE:
            path, watched = next(iter(self._unwanted.items()))
            del self._unwanted[path]
            if watched.callbacks or watched.arming or self._watched.get(path) is not watched:
                continue  # wanted again, or dropped again when it was armed
            self._forget(watched)
            removed = asyncio.gather(self._requests.remove(path), return_exceptions=True)
            self._under_way.add(removed)
            removed.add_done_callback(self._on_removed)

    def _on_removed(self, removed: asyncio.Future[Any]) -> None:
        """Go on, whatever the answer: a lost watch was removed too."""
        self._under_way.discard(removed)
        self._continue()
