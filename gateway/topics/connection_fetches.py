"""The fetches of one connection: one at a time, and the partitions of a client without a session.

    submitted ─▶ waiting for an earlier fetch ─▶ running ─▶ answered

Kafka's brokers read the next request of a connection when the last one is answered. Here other
requests overtake a waiting fetch, but a fetch does not. So the reads of one connection take the
memory of one response. Source: Kafka, SocketServer (muted channels).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from gateway.core.fetch_session import FetchSession, FetchSessions

WAITING_MAX = 4
"""A connection reads no more while this number of fetches waits for a running one."""


class ConnectionFetches:
    """The running fetch of a connection, and those that wait for it."""

    __slots__ = ("_not_before_s", "_pause", "_running", "_session", "_sessions", "_waiting")

    def __init__(self) -> None:
        # The reply of the fetch that is being answered, or None.
        self._running: asyncio.Future[Any] | None = None
        # The replies of later fetches, and what starts them. The connection bounds their number.
        # None before the first: an empty deque takes 760 bytes, and most connections need none.
        self._waiting: deque[tuple[asyncio.Future[Any], Callable[[], Any]]] | None = None
        # Time of the loop before which no fetch starts. See `pace`.
        self._not_before_s = 0.0
        # The timer that starts the waiting fetches then. None while none waits for that time.
        self._pause: asyncio.TimerHandle | None = None
        # The partitions that the last request of a client without a session named, or None.
        self._session: FetchSession | None = None
        self._sessions: FetchSessions | None = None

    @property
    def many_wait(self) -> bool:
        """True if WAITING_MAX fetches wait, so that the connection should read no more."""
        return self._waiting is not None and len(self._waiting) >= WAITING_MAX

    def submit(self, start: Callable[[], Any]) -> Any:
        """Call `start` once no earlier fetch runs. Returns its result, or a future of it."""
        if self._running is not None or self._paused():
            reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            if self._waiting is None:
                self._waiting = deque()
            self._waiting.append((reply, start))
            return reply
        result = start()
        if isinstance(result, asyncio.Future):
            self._run(cast("asyncio.Future[Any]", result))
        return cast(Any, result)

    def _run(self, reply: asyncio.Future[Any]) -> None:
        self._running = reply
        reply.add_done_callback(self._ended)

    def pace(self, seconds: float) -> None:
        """Start the next fetch not before this time from now.

        A response that names many partitions costs its client, and the machine that both may share,
        more than the record that completed it. With a pause, a response collects several records.
        """
        self._not_before_s = asyncio.get_running_loop().time() + seconds

    def _paused(self) -> bool:
        """Return True if the time of `pace` is not over. Waiting fetches start when it is."""
        if self._pause is None:
            loop = asyncio.get_running_loop()
            if loop.time() >= self._not_before_s:
                return False
            self._pause = loop.call_at(self._not_before_s, self._end_pause)
        return True

    def _end_pause(self) -> None:
        self._pause = None
        self._start_waiting()

    def _ended(self, _: asyncio.Future[Any]) -> None:
        self._running = None
        self._start_waiting()

    def _start_waiting(self) -> None:
        while self._waiting and self._running is None and not self._paused():
            reply, start = self._waiting.popleft()
            if not reply.done():
                self._start(reply, start)

    def _start(self, reply: asyncio.Future[Any], start: Callable[[], Any]) -> None:
        try:
            result = start()
        except Exception as error:  # noqa: BLE001 - the connection answers with the error
            reply.set_exception(error)
            return
        if not isinstance(result, asyncio.Future):
            reply.set_result(result)
            return
        running = cast("asyncio.Future[Any]", result)
        self._run(running)
        running.add_done_callback(lambda done: _copy(done, reply))
        reply.add_done_callback(lambda done: running.cancel() if done.cancelled() else None)

    def session(self, sessions: FetchSessions, now_ms: int, *, uses_ids: bool) -> FetchSession:
        """Return the session of all partitions that the client named in its last request.

        It is new if the last one was not kept, or if it named topics in the other way.
        """
        session = self._session
        if session is None or not session.kept or session.uses_ids != uses_ids:
            self._drop()
            session = FetchSession((), now_ms, uses_ids=uses_ids, names_all=True)
            self._session, self._sessions = session, sessions
        return session

    def _drop(self) -> None:
        session, self._session = self._session, None
        if session is not None and self._sessions is not None and session.kept:
            self._sessions.remove(session)

    def close(self) -> None:
        """Forget the partitions. The connection has cancelled its fetches."""
        if self._pause is not None:
            self._pause.cancel()
        self._drop()


def _copy(done: asyncio.Future[Any], reply: asyncio.Future[Any]) -> None:
    """Pass the result of a fetch on to the reply for which the connection waits."""
    if reply.done():
        if not done.cancelled():
            done.exception()  # the connection was lost, so the error has no receiver
        return
    if done.cancelled():
        reply.cancel()
    elif (error := done.exception()) is not None:
        reply.set_exception(error)
    else:
        reply.set_result(done.result())
