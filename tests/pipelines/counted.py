"""A port whose calls are counted, around the metadata store or the bookies of a reader."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any


class Counted:
    """A port that counts the calls of each of its methods, and those in flight at once."""

    def __init__(self, port: Any) -> None:
        self._port = port
        self.calls: Counter[str] = Counter()
        self.in_flight = self.in_flight_max = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)
        if not asyncio.iscoroutinefunction(method):
            return method

        async def counted(*args: Any, **named: Any) -> Any:
            self.calls[name] += 1
            self.in_flight += 1
            self.in_flight_max = max(self.in_flight_max, self.in_flight)
            try:
                return await method(*args, **named)
            finally:
                self.in_flight -= 1

        return counted

    def taken(self) -> Counter[str]:
        """Return the calls since the last time."""
        calls, self.calls, self.in_flight_max = self.calls, Counter(), 0
        return calls
