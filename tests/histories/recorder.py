"""Where clients write down what they did. One clock for all of them, values that never repeat."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from typing import Any

from tests.histories.history import FOREVER_S, INFO, Key, Op


class Recorder:
    """The history of a run as it grows; any thread may write."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.errors: Counter[str] = Counter()  # what clients said besides; they went on
        self.redirects: Counter[str] = Counter()  # calls to be made again, elsewhere; by process
        self.rebalances: Counter[str] = Counter()  # by process
        self._values = itertools.count(1)
        self._lock = threading.Lock()

    @staticmethod
    def now_s() -> float:
        return time.monotonic()

    def value(self) -> int:
        """One that nobody has written."""
        return next(self._values)

    def add(
        self,
        process: str,
        client: str,
        kind: str,
        result: str,
        start_s: float,
        value: Any,
        rebalanced: tuple[Key, ...] = (),
    ) -> Op:
        """The call ended now."""
        end_s = FOREVER_S if result == INFO and kind in ("send", "commit") else self.now_s()
        op = Op(process, client, kind, result, start_s, end_s, value, rebalanced)
        with self._lock:
            self.ops.append(op)
        return op

    def complain(self, process: str, error: object) -> None:
        """A client raised what its user would have seen."""
        with self._lock:
            self.errors[f"{process}: {error!r}"[:200]] += 1

    def acked(self) -> int:
        """Records acknowledged so far."""
        return sum(len(op.value) for op in self.ops[:] if op.kind == "send" and op.result == "ok")
