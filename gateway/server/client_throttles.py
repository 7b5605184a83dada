"""Makes clients wait that have used up a quota: an answer says for how long, and leaves at once.

Its connection is not read meanwhile, as in Kafka since KIP-219. Imported only once a client quota
is stored; without one, a connection asks only whether there is this object.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

from gateway.handlers.api import Reply, Request
from gateway.handlers.quota_checks import spent_s, user_of
from gateway.server.registry import Throttled
from gateway.settings.enforced_quotas import EnforcedQuotas
from gateway.wire.messages import PRIVATE_KEY
from gateway.wire.throttle_time import put_throttle_time

PRODUCE, FETCH = 0, 1
_EXEMPT: Final = frozenset((17, 27, 36, PRIVATE_KEY))
"""Requests of logins and of other gateways, which no quota limits."""

_HEADER_BYTES: Final = 10  # key, version, correlation id, length of the client id
_FLEXIBLE_FROM: Final = 9  # of Produce


class ClientThrottles:
    """What connections ask before each answer, while a quota limits requests of some client."""

    def __init__(self, quotas: EnforcedQuotas, wait_s_max: float) -> None:
        """Create it on a running loop. No connection waits for more than `wait_s_max` at a time.

        A client may be gone, which is found out only by reading. Kafka closes its connection then.
        """
        self._quotas = quotas
        self._wait_s_max = wait_s_max
        self._loop = asyncio.get_running_loop()
        # The end of each wait. A connection is here while it waits, and is not lost.
        self._waiting: dict[Throttled, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        """Return how many connections wait."""
        return len(self._waiting)

    def accepted(self, connection: Throttled, request: Request, size: int) -> None:
        """Count the bytes of a Produce, whose frame has `size` bytes, before its handler begins.

        A client may send a hundred of them before it reads a reply. So the connection waits from
        the first one on that is beyond the quota, and again from its reply on.
        """
        user = user_of(request)
        if self._quotas.produce.limits.find(user, request.client_id) is not None:
            size = _body_bytes(request, size)
            wait_ms = self._quotas.produced(user, request.client_id, size)
            request.throttle_ms = wait_ms
            if wait_ms:
                self._wait(connection, wait_ms / 1000)

    def answered(self, connection: Throttled, request: Request, result: Any) -> Any:
        """Count a request. Returns its result, with the time to wait.

        The connection waits from now on, if it has to.
        """
        if request.key in _EXEMPT or connection.lost:
            return result
        wait_ms = self._wait_ms(request)
        if wait_ms <= 0:
            return result
        self._wait(connection, wait_ms / 1000)
        if isinstance(result, Reply):
            result["throttle_time"] = wait_ms
        elif result.__class__ is not tuple and isinstance(result, list):
            nodes_bytes = getattr(request, "nodes_bytes", 0)
            encoded = cast("list[Any]", result)
            put_throttle_time(request.key, request.version, encoded, wait_ms, nodes_bytes)
        return cast("Any", result)

    def forget(self, connection: Throttled) -> None:
        """End the wait of a connection that is lost."""
        timer = self._waiting.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def release_all(self) -> None:
        """End all waits, because no quota limits clients any more."""
        for connection, timer in list(self._waiting.items()):
            timer.cancel()
            self._end(connection)

    def count_time(self, request: Request, seconds: float) -> None:
        """Count time of a request after its answer was decided."""
        if self._quotas.request.limits and request.key not in _EXEMPT:
            self._quotas.worked_after(user_of(request), request.client_id, seconds)

    def _wait_ms(self, request: Request) -> int:
        quotas = self._quotas
        wait_ms = getattr(request, "throttle_ms", -1)
        if request.key == FETCH and wait_ms >= 0:  # it was decided with its time until then
            self.count_time(request, spent_s(request))
            return wait_ms
        mutations = getattr(request, "mutations", None)
        if mutations is not None:
            wait_ms = quotas.mutated(mutations)
        if quotas.request.limits and (request.key != PRODUCE or request.body.acks):
            seconds = spent_s(request)
            wait_ms = max(wait_ms, quotas.worked(user_of(request), request.client_id, seconds))
        return wait_ms

    def _wait(self, connection: Throttled, seconds: float) -> None:
        due_s = self._loop.time() + min(seconds, self._wait_s_max)
        timer = self._waiting.get(connection)
        if timer is not None:
            if timer.when() >= due_s:
                return
            timer.cancel()
        self._waiting[connection] = self._loop.call_at(due_s, self._end, connection)
        connection.set_throttled(throttled=True)

    def _end(self, connection: Throttled) -> None:
        del self._waiting[connection]
        connection.set_throttled(throttled=False)


def _body_bytes(request: Request, frame_bytes: int) -> int:
    """Return the bytes that count of a Produce: those behind the header, as in Kafka."""
    header = _HEADER_BYTES + len((request.client_id or "").encode())
    return max(0, frame_bytes - header - (request.version >= _FLEXIBLE_FROM))
