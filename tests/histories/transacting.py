"""Records and choices of transactional clients, for clients of every kind."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from tests.histories.history import INFO, OK, Key
from tests.histories.recorder import Recorder
from tests.histories.transactions import ABORT, COMMIT

ABORTED = 0.25  # of all transactions
SENT_MAX = 3  # records of a transaction that does not copy

Polled = Mapping[Key, Sequence[tuple[int, int]]]


class Note:
    """Records the events of one transaction. `client` is the kind of client."""

    def __init__(self, recorder: Recorder, client: str, process: str) -> None:
        self._recorder = recorder
        self._client = f"{client} idempotent"
        self._process = process
        self._pending: dict[int, tuple[Key, float]] = {}  # sent, and not acknowledged
        self._lock = threading.Lock()
        self._asked_s = 0.0  # when its commit was requested
        self.number = recorder.value()
        self._add("begin", OK, recorder.now_s(), self.number)

    def polled(self, start_s: float, polled: Polled) -> None:
        self._add("txn-poll", OK, start_s, (self.number, polled))

    def sending(self, key: Key) -> int:
        """Return the value to send now."""
        value = self._recorder.value()
        with self._lock:
            self._pending[value] = (key, self._recorder.now_s())
        return value

    def sent(self, value: int, offset: int | None) -> None:
        """Record that the value was acknowledged at this offset, or failed with None."""
        with self._lock:
            key, start_s = self._pending.pop(value)
        result = OK if offset is not None else INFO
        self._add("txn-send", result, start_s, (self.number, [(key, value, offset)]))

    def offsets(self, group: str, committed: Mapping[Key, int]) -> None:
        now_s = self._recorder.now_s()
        self._add("txn-offsets", OK, now_s, (self.number, group, dict(committed)))

    def committing(self) -> None:
        self._asked_s = self._recorder.now_s()

    def committed(self) -> None:
        self._add("end", OK, self._asked_s, (self.number, COMMIT))

    def aborted(self) -> None:
        self._add("end", OK, self._recorder.now_s(), (self.number, ABORT))

    def given_up(self, error: object) -> None:
        """Record that the client failed: its commit is unknown, or was never requested."""
        for value in list(self._pending):
            self.sent(value, None)
        self._recorder.complain(self._process, error)
        how, start_s = (COMMIT, self._asked_s) if self._asked_s else (ABORT, 0.0)
        self._add("end", INFO, start_s or self._recorder.now_s(), (self.number, how))

    def _add(self, kind: str, result: str, start_s: float, value: Any) -> None:
        self._recorder.add(self._process, self._client, kind, result, start_s, value)


class Choices:
    """The choices of one client, drawn from a seed."""

    def __init__(self, process: str, keys: Sequence[Key]) -> None:
        self._random = random.Random(process)
        self._keys = list(keys)

    def abort(self) -> bool:
        return self._random.random() < ABORTED

    def targets(self) -> list[Key]:
        """Return the keys of the next records."""
        return self._random.choices(self._keys, k=self._random.randint(1, SENT_MAX))
