# kazoo has no types, and some of what is used here is private to it.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false
"""Between the loop and kazoo's one thread: requests go over, answers and news come in batches.

The thread puts what happened into an inbox and wakes the loop once for all that lies there. The
loop hands over a bounded number of requests; more wait here, in order. Whether a request may be
sent is decided here too: while no connection serves none is handed over, and one that has waited
for a session's time fails unsent.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, KazooException, SessionExpiredError
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry

from ledger.adapters.zookeeper.zookeeper_connection import (
    Connected,
    Connection,
    Fired,
    Handler,
    log,
)
from ledger.errors import MetadataUnavailable

IN_FLIGHT_MAX = 256  # asked and not answered: enough to hide the way to the server and back
CLOSE_S_MAX = 2.0  # for the server's farewell; then the connection is cut
RETRY_S_MIN = 0.05
RETRY_S_MAX = 0.4

_LOST = (ConnectionLoss, SessionExpiredError)


class News(Protocol):
    """What the bridge tells, on the loop."""

    def on_connected(self, *, renewed: bool) -> None:
        """Requests are served (again). `renewed`: by another session than before."""
        ...

    def on_fired(self, path: str) -> None:
        """A watch on `path` fired and is gone."""
        ...


class _Disconnected(NamedTuple):
    pass


class _Ended(NamedTuple):
    pass


class _Waiting(NamedTuple):
    request: Any
    future: asyncio.Future[Any]
    until_s: float


class _Inbox:
    """What kazoo's thread has for the loop, in order; one wake-up for many."""

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[Any], None]) -> None:
        self._loop = loop
        self._take = take
        self._items: deque[Any] = deque()
        self._woken = False

    def put(self, item: Any) -> None:
        """Any thread."""
        self._items.append(item)
        if self._woken:
            return
        self._woken = True
        try:
            self._loop.call_soon_threadsafe(self._drain)
        except RuntimeError:
            pass  # the loop has ended; nobody is left to be told

    def _drain(self) -> None:
        self._woken = False  # before the first item is taken: what comes later wakes again
        while self._items:
            self._take(self._items.popleft())


class _Answer:
    """kazoo's asynchronous result: set by its thread, delivered by the inbox."""

    __slots__ = ("error", "future", "put", "sent_s", "value")

    def __init__(self, future: asyncio.Future[Any], put: Callable[[Any], None]) -> None:
        self.future = future
        self.put = put
        self.sent_s = time.monotonic()  # a little before it was sent: the safe side for a lease
        self.value: Any = None
        self.error: KazooException | None = None

    def set(self, value: Any = None) -> None:
        self.value = value
        self.put(self)

    def set_exception(self, exception: BaseException) -> None:
        if not isinstance(exception, KazooException):  # a reply that no server sends
            exception = ConnectionLoss(repr(exception))
        self.error = exception
        self.put(self)


class ZooKeeperBridge:
    """One session with ZooKeeper and, when it was lost, the next one. Used on one loop only.

    Requests are answered in order, with what kazoo makes of the reply or with its exception.
    """

    def __init__(self, servers: str, session_ms: int, news: News) -> None:
        self._loop = asyncio.get_running_loop()
        self._news = news
        self._servers = servers
        self._put = _Inbox(self._loop, self._take).put
        self._handler = Handler(self._put)
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
        self._connection = Connection(self.client, self.client._conn_retry.copy(), self._put)
        self._handler.connection = self._connection
        self.client._connection = self._connection
        self.client.add_listener(self._on_state)
        self.session_ms = session_ms  # as negotiated, once connected
        self._session_id: int | None = None
        self._connected = False
        self._closed = False
        self._waiting: deque[_Waiting] = deque()
        self._in_flight: set[_Answer] = set()
        self._answered_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._first_connected: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()

    @property
    def last_answered_s(self) -> float:
        """When the last request or ping that was answered was sent; time.monotonic().

        Only of the session that the loop knows of: the next one's first pings must not make
        anybody believe that what the old one held is held still.
        """
        session_id, sent_s = self._connection.ping_answered
        return max(self._answered_s, sent_s) if session_id == self._session_id else self._answered_s

    async def start(self, timeout_s: float) -> None:
        """A session serves; raises MetadataUnavailable after `timeout_s`."""
        self.client.start_async()
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._first_connected)
        except TimeoutError:
            await self.close()
            raise MetadataUnavailable(
                f"{self._servers}: no ZooKeeper within {timeout_s:.1f} s"
            ) from None
        except BaseException:
            self._begin_to_close()
            self._handler.cut()
            raise

    def ask(self, request: Any) -> asyncio.Future[Any]:
        """Sent after all that were asked before; unsent for a session's time it fails."""
        if self._closed:
            raise MetadataUnavailable(f"{self._servers}: the store is closed")
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._connected and not self._waiting and len(self._in_flight) < IN_FLIGHT_MAX:
            self._hand_over(request, future)
            return future
        until_s = self._loop.time() + self.session_ms / 1000
        self._waiting.append(_Waiting(request, future, until_s))
        if self._timer is None:
            self._timer = self._loop.call_at(until_s, self._give_up)
        return future

    async def close(self) -> None:
        """The session and the thread have ended; after two seconds without the server's word."""
        self._begin_to_close()
        cut = self._loop.call_later(CLOSE_S_MAX, self._handler.cut)
        try:
            # A thread that still resolves a name cannot be cut; it ends by itself, or with us.
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
        if self._timer is not None:
            self._timer.cancel()
        self._fail(self._waiting, "the store is closed")
        self._waiting.clear()
        if not self._connected:
            self._handler.cut()  # nobody to say farewell to
        self._handler.spawn(self._stop)

    # On kazoo's thread, and on the one that ends it.

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

    # On the loop.

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
        if error is None:
            self._answered_s = max(self._answered_s, answer.sent_s)
        elif isinstance(error, _LOST):
            self._connected = False  # what is asked next waits for the next connection
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
        renewed = self._session_id not in (None, item.session_id)
        if renewed:
            self._answered_s = 0.0
        self._session_id = item.session_id
        self.session_ms = item.session_ms
        self._connected = True
        if not self._first_connected.done():
            self._first_connected.set_result(None)
        if not self._closed:
            self._hand_over_waiting()
            self._news.on_connected(renewed=renewed)

    def _on_disconnected(self) -> None:
        """All under way fail. Some may still be done, but before anything that is asked later."""
        self._connected = False
        under_way, self._in_flight = self._in_flight, set()
        for answer in under_way:
            if not answer.future.done():
                answer.future.set_exception(ConnectionLoss())

    def _give_up(self) -> None:
        """Requests that have waited for a session's time fail; they were never sent."""
        self._timer = None
        now_s = self._loop.time()
        waiting = self._waiting
        while waiting and (waiting[0].until_s <= now_s or waiting[0].future.done()):
            self._fail([waiting.popleft()], "no connection")
        if waiting:
            self._timer = self._loop.call_at(waiting[0].until_s, self._give_up)

    def _fail(self, waiting: Iterable[_Waiting], why: str) -> None:
        for one in waiting:
            if not one.future.done():
                one.future.set_exception(MetadataUnavailable(f"{self._servers}: {why}"))
