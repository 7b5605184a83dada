"""Counts and times of requests: plain integers and one bisect for each, collected when asked.

A request is timed from its whole frame until its reply is ready. The slowest requests of each API
are kept with their stages. See docs/decisions/0035.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from ledger.ids import Buffer
from ledger.ports.clock import SECONDS, Histogram, measured_s

if TYPE_CHECKING:
    from gateway.handlers.api import Request
    from gateway.handlers.slow_requests import FirstSynced, SlowRequest, SlowRequests

_Row = dict[str, Any]
_ERROR_DEPTH: Final = 2  # topics, then partitions
_ERROR_ROWS: Final = 100  # of each array in which the first error is looked for


class ConnectionCounts(NamedTuple):
    """The connections of the Kafka port, since the process started."""

    open: int
    refused: Mapping[str, int]  # by reason
    bytes_in: int
    bytes_out: int
    loop_lag: Histogram  # how late the timer of each second was
    by_listener: Mapping[str, int] = {}  # those that are open
    waiting: int = 0  # those that are not read, because their clients used up a quota
    logins: Mapping[tuple[str, str], int] = {}  # by mechanism and outcome


class ApiFigures:
    """The requests of one API."""

    __slots__ = ("counts", "errors", "name", "slow", "slow_above_s", "total_s")

    def __init__(self, name: str) -> None:
        self.name = name
        # As in `Histogram`; without a call for each request.
        self.counts = [0] * (len(SECONDS) + 1)
        self.total_s = 0.0
        # Requests by the first error of their replies. Those without an error are not counted.
        self.errors: dict[int, int] = {}
        # Requests that took longer are offered to `slow`, which is None before the first.
        self.slow_above_s = 0.0
        self.slow: SlowRequests | None = None


class RequestMetrics:
    """The requests of one process, by API."""

    __slots__ = ("_now_s", "apis", "first_synced")

    def __init__(self, now_s: Callable[[], float] = measured_s) -> None:
        self._now_s = now_s
        # Finds the stages of a slow Produce at the bookies. Set once; None in a process without.
        self.first_synced: FirstSynced | None = None
        # By API key. Never shrinks; an API is there before its first request.
        self.apis: dict[int, ApiFigures] = {}

    def serve(self, names: Mapping[int, str]) -> None:
        """Count the requests of these APIs, by key."""
        for key, name in names.items():
            self.apis.setdefault(key, ApiFigures(name))

    def ended(self, request: Request, reply: Sequence[Buffer]) -> SlowRequest | None:
        """Count a request whose reply is ready. Returns its record if it is one of the slowest."""
        seconds = self._now_s() - request.begun_s
        api = self.apis[request.key]
        api.counts[bisect_left(SECONDS, seconds)] += 1
        api.total_s += seconds
        if request.error:
            api.errors[request.error] = api.errors.get(request.error, 0) + 1
        if seconds > api.slow_above_s:
            return self._offer(api, request, seconds, reply)
        return None

    def age(self) -> None:
        """Forget slow requests that are too old. Called about once a second."""
        for api in self.apis.values():
            if api.slow is not None:
                api.slow.age(self._now_s())
                api.slow_above_s = api.slow.above_s  # a reader may have begun the window

    def _offer(
        self, api: ApiFigures, request: Request, seconds: float, reply: Sequence[Buffer]
    ) -> SlowRequest | None:
        if api.slow is None:
            from gateway.handlers.slow_requests import SlowRequests  # not before the first request

            api.slow = SlowRequests(self._now_s, self.first_synced)
        noted = api.slow.offer(request, seconds, reply)
        api.slow_above_s = api.slow.above_s
        return noted


def first_error(reply: Mapping[str, Any], depth: int = _ERROR_DEPTH) -> int:
    """Return the first error code of a reply, or 0. Long arrays are looked at in part."""
    code = reply.get("error_code")
    if code or not depth:
        return int(code or 0)
    for value in reply.values():
        if not isinstance(value, list):
            continue
        for row in islice(cast("list[Any]", value), _ERROR_ROWS):
            if isinstance(row, dict) and (found := first_error(cast("_Row", row), depth - 1)):
                return found
    return 0


def note_left(slow: SlowRequest, now_s: Callable[[], float] = measured_s) -> None:
    """Note that the reply of a slow request was handed to the socket just now."""
    slow.write_s = max(0.0, now_s() - slow.ended_s)
