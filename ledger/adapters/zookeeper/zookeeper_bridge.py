# kazoo has no types, and this module uses some of its private parts.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false
"""The bridge between the event loop and kazoo's one thread.

Requests go to the thread; answers and events come back in batches. The thread puts answers and
events into an inbox and wakes the loop once for a whole batch. The loop hands a bounded number of
requests to the thread; the other requests wait here, in order. Without a connection the bridge
hands over no request. A request that has waited without a connection for the length of a session
fails unsent. A connected request waits for as long as the earlier ones take.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, KazooException, SessionExpiredError
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry

from ledger.adapters.zookeeper.close_session import Session
from ledger.adapters.zookeeper.zookeeper_access import OPEN, ZooKeeperAccess
from ledger.adapters.zookeeper.zookeeper_connection import (
    Connected,
    Fired,
    ZooKeeperConnection,
    ZooKeeperHandler,
    log,
)
from ledger.errors import MetadataUnavailable

IN_FLIGHT_MAX = 256  # requests without an answer: enough to hide the round trip to the server
# Limit of the wait for the server's answer to the close; then the connection is cut
CLOSE_S_MAX = 2.0
RETRY_S_MIN = 0.05
RETRY_S_MAX = 0.4

_LOST = (ConnectionLoss, SessionExpiredError)


class News(Protocol):
    """The events that the bridge reports, on the loop."""

    def on_connected(self, session: Session, *, renewed: bool, since_zxid: int) -> None:
        """Note that the server answers requests (again). `renewed` is True for a new session.

        Events of every change up to `since_zxid` were reported before.
        """
        ...

    def on_fired(self, path: str) -> None:
        """Note that a watch on `path` fired and is no longer set."""
        ...


class _Disconnected(NamedTuple):
    pass


class _Ended(NamedTuple):
    pass


class _Waiting(NamedTuple):
    request: Any
    future: asyncio.Future[Any]
    asked_s: float


class _Inbox:
    """Items from kazoo's thread for the loop, in order. One wake-up serves many items."""

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[Any], None]) -> None:
        self._loop = loop
        self._take = take
        self._items: deque[Any] = deque()
        self._woken = False

    def put(self, item: Any) -> None:
        """Append an item. Any thread may call this."""
        self._items.append(item)
        if self._woken:
            return
        self._woken = True
        try:
            self._loop.call_soon_threadsafe(self._drain)
        except RuntimeError:
            pass  # the loop has ended, so no caller waits any more

    def _drain(self) -> None:
        # Cleared before the first item is taken, so that later items wake the loop again
        self._woken = False
        try:
            while self._items:
                self._take(self._items.popleft())
        finally:
            if self._items:  # after a failure, which the loop reports
                self._woken = True
                self._loop.call_soon(self._drain)


class _Answer:
    """kazoo's asynchronous result, set by its thread and delivered by the inbox."""

    __slots__ = ("error", "future", "put", "undecodable", "value")

    def __init__(self, future: asyncio.Future[Any], put: Callable[[Any], None]) -> None:
        self.future = future
        self.put = put
        # True if a reply came that kazoo could not decode. The connection then ends itself.
        self.undecodable = False
        self.value: Any = None
        self.error: KazooException | None = None

    def set(self, value: Any = None) -> None:
        self.value = value
        self.put(self)

    def set_exception(self, exception: BaseException) -> None:
        if not isinstance(exception, KazooException):
            self.undecodable = True
            exception = ConnectionLoss(repr(exception))
        self.error = exception
        self.put(self)


class ZooKeeperBridge:
    """One session with ZooKeeper and, after its loss, the next one. Used on one loop only.

    Requests are answered in order, each with the reply that kazoo decoded or with kazoo's
    exception.
    """

    def __init__(
        self,
        servers: str,
        session_ms: int,
        news: News,
        proof_path: str | None = None,
        access: ZooKeeperAccess = OPEN,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._news = news
        self._servers = servers
        self._put = _Inbox(self._loop, self._take).put
        self._handler = ZooKeeperHandler(self._put, access.tls)
        retry = KazooRetry(
            max_tries=-1,
            delay=RETRY_S_MIN,
            max_delay=RETRY_S_MAX,
            sleep_func=self._handler.sleep_func,
        )
        self.client: Any = KazooClient(
            servers,
            timeout=session_ms / 1000,
            handler=self._handler,
            connection_retry=retry,
            command_retry=retry,
            logger=log,
        )
        self._connection = ZooKeeperConnection(
            self.client, self.client._conn_retry.copy(), self._put, proof_path, access
        )
        self._handler.connection = self._connection
        self.client._connection = self._connection
        self.client.add_listener(self._on_state)
        # The session timeout: as requested until the first connection, then as negotiated.
        self.session_ms = session_ms
        # The session that the loop uses. None before the first connection; replaced after expiry.
        self._session_id: int | None = None
        # True while a connection serves requests. No request is handed over while it is False.
        self._connected = False
        # Set once, by `close`; later requests fail at once.
        self._closed = False
        # Requests that were not handed over, oldest first, each with the time at which it was made.
        self._waiting: deque[_Waiting] = deque()
        # Requests handed to kazoo's thread and not answered yet; at most IN_FLIGHT_MAX.
        self._in_flight: set[_Answer] = set()
        # The loop time at which the last connection was lost.
        self._lost_s = self._loop.time()
        # The timer that fails waiting requests after the length of a session without a connection.
        # None while a connection serves requests, and if no request waits.
        self._timer: asyncio.TimerHandle | None = None
        # Done at the first connection; `start` waits for it.
        self._first_connected: asyncio.Future[None] = self._loop.create_future()
        # Done once kazoo's thread has ended; `close` waits for it.
        self._ended: asyncio.Future[None] = self._loop.create_future()

    @property
    def confirmed_s(self) -> float:
        """Return from when ZooKeeper certainly counts the session timeout, on the clock of leases.

        Only the session that the loop has learned of counts, so that a newer session does not
        extend the leases of the old one. Without `proof_path` this is the time of the last connect.
        """
        session_id, heard_s = self._connection.proved
        return heard_s if session_id == self._session_id else 0.0

    async def start(self, timeout_s: float) -> None:
        """Connect. Raises MetadataUnavailable after `timeout_s`."""
        self.client.start_async()
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._first_connected)
        except TimeoutError:
            fault = self._connection.fault  # closing makes another one
            await self.close()
            raise MetadataUnavailable(
                f"{self._servers}: no ZooKeeper within {timeout_s:.1f} s"
                f"{f' ({fault})' if fault else ''}"
            ) from None
        except BaseException:
            self._begin_to_close()
            self._handler.cut()
            raise

    def ask(self, request: Any) -> asyncio.Future[Any]:
        """Send a request after all earlier ones. The request fails unsent if no connection comes
        for the length of a session.
        """
        if self._closed:
            raise MetadataUnavailable(f"{self._servers}: the store is closed")
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._connected and not self._waiting and len(self._in_flight) < IN_FLIGHT_MAX:
            self._hand_over(request, future)
            return future
        self._waiting.append(_Waiting(request, future, self._loop.time()))
        if not self._connected:
            self._limit_wait()
        return future

    async def close(self) -> None:
        """End the session and the thread, waiting up to two seconds for the server's answer."""
        self._begin_to_close()
        cut = self._loop.call_later(CLOSE_S_MAX, self._handler.cut)
        try:
            # A thread that is resolving a name cannot be interrupted; it ends on its own or with
            # the process.
            await asyncio.wait([self._ended], timeout=2 * CLOSE_S_MAX)
        except asyncio.CancelledError:
            self._handler.cut()
            raise
        finally:
            cut.cancel()

    def _begin_to_close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._end_timer()
        self._fail(self._waiting, "the store is closed")
        self._waiting.clear()
        if not self._connected:
            self._handler.cut()  # no connection on which to close the session
        self._handler.spawn(self._stop)

    # The following methods run on kazoo's thread, and on the thread that ends it.

    def _on_state(self, state: str) -> None:
        if state != KazooState.CONNECTED:
            self._put(_Disconnected())

    def _stop(self) -> None:
        try:
            self.client.stop()
            self.client.close()
        except KazooException as error:
            log.warning("%s: the connection thread did not end: %r", self._servers, error)
        finally:
            self._put(_Ended())

    # The following methods run on the loop.

    def _hand_over(self, request: Any, future: asyncio.Future[Any]) -> None:
        answer = _Answer(future, self._put)
        self._in_flight.add(answer)
        self._connection.submit(request, answer)

    def _take(self, item: Any) -> None:
        if isinstance(item, _Answer):
            self._on_answer(item)
        elif isinstance(item, Fired):
            if not self._closed:
                self._news.on_fired(item.path)
        elif isinstance(item, Connected):
            self._on_connected(item)
        else:
            self._on_disconnected()
            if isinstance(item, _Ended):
                self._handler.close()
                self._ended.set_result(None)

    def _on_answer(self, answer: _Answer) -> None:
        self._in_flight.discard(answer)
        error = answer.error
        if isinstance(error, _LOST):
            self._wait_for_connection()
        if not answer.future.done():
            if error is None:
                answer.future.set_result(answer.value)
            else:
                answer.future.set_exception(error)
        self._hand_over_waiting()

    def _hand_over_waiting(self) -> None:
        waiting = self._waiting
        while waiting and self._connected and len(self._in_flight) < IN_FLIGHT_MAX:
            request, future, _ = waiting.popleft()
            if not future.done():
                self._hand_over(request, future)

    def _on_connected(self, item: Connected) -> None:
        session = item.session
        renewed = self._session_id not in (None, session.session_id)
        self._session_id = session.session_id
        self.session_ms = session.timeout_ms
        self._connected = True
        self._end_timer()
        if not self._first_connected.done():
            self._first_connected.set_result(None)
        if not self._closed:
            self._hand_over_waiting()
            self._news.on_connected(session, renewed=renewed, since_zxid=item.since_zxid)

    def _on_disconnected(self) -> None:
        """Fail all requests in flight. The server may still apply some of them, before any later
        request.
        """
        self._wait_for_connection()
        under_way, self._in_flight = self._in_flight, set()
        for answer in under_way:
            if not answer.future.done():
                answer.future.set_exception(ConnectionLoss())

    def _wait_for_connection(self) -> None:
        """Keep requests from now on until the next connection. Repeated calls change nothing."""
        if self._connected:
            self._connected = False
            self._lost_s = self._loop.time()
        self._limit_wait()

    def _limit_wait(self) -> None:
        """Set the timer for the oldest waiting request, while there is no connection."""
        if self._timer is None and self._waiting and not self._closed:
            self._timer = self._loop.call_at(self._until_s(self._waiting[0]), self._give_up)

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _until_s(self, waiting: _Waiting) -> float:
        return max(waiting.asked_s, self._lost_s) + self.session_ms / 1000

    def _give_up(self) -> None:
        """Fail the requests that waited without a connection for the length of a session."""
        self._timer = None
        now_s = self._loop.time()
        waiting = self._waiting
        while waiting and (self._until_s(waiting[0]) <= now_s or waiting[0].future.done()):
            self._fail([waiting.popleft()], "no connection")
        self._limit_wait()

    def _fail(self, waiting: Iterable[_Waiting], why: str) -> None:
        for one in waiting:
            if not one.future.done():
                one.future.set_exception(MetadataUnavailable(f"{self._servers}: {why}"))
