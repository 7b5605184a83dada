"""Where clients write down what they did. One clock for all of them, values that never repeat."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from typing import Any

from tests.histories.history import FOREVER_S, INFO, Key, Op

ASSIGNED = "was assigned partitions"
HARM = "harm"  # the process of an event that the stage caused


class Recorder:
    """The history of a run as it grows; any thread may write."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.errors: Counter[str] = Counter()  # what clients said besides; they went on
        self.redirects: Counter[str] = Counter()  # calls to be made again, elsewhere; by process
        self.rebalances: Counter[str] = Counter()  # by process
        # When each error, rebalance and harm happened, to tell which harm caused which.
        self.events: list[tuple[float, str, str]] = []  # time, process or HARM, what
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
        """Count an error that the user of a client would have seen."""
        with self._lock:
            self.errors[f"{process}: {error!r}"[:200]] += 1
        self.note(process, repr(error)[:200])

    def rebalanced(self, process: str) -> None:
        """Count an assignment that a member received."""
        with self._lock:
            self.rebalances[process] += 1
        self.note(process, ASSIGNED)

    def note(self, process: str, what: str) -> None:
        """Remember that something happened now."""
        with self._lock:
            self.events.append((self.now_s(), process, what))

    def blamed(self) -> list[str]:
        """Return a line for each error of a client: the last harm before it, and the time since."""
        lines: list[str] = []
        harm, since_s = "no harm", 0.0
        for at_s, process, what in self.events[:]:
            if process == HARM:
                harm, since_s = what, at_s
            elif what != ASSIGNED:
                lines.append(f"{process}, {at_s - since_s:.1f} s after {harm}: {what}")
        return lines

    def acked(self) -> int:
        """Records acknowledged so far."""
        return sum(len(op.value) for op in self.ops[:] if op.kind == "send" and op.result == "ok")
