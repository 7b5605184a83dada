"""Encodes the long records of all coordinators of a process, one record after the other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from typing import NamedTuple

from gateway.core.transaction_log import STEP_PARTITIONS
from ledger.tasks import report

Steps = Generator[None, None, bytes]


class _Record(NamedTuple):
    """A record that waits for its turn, or is being encoded."""

    steps: Steps
    size: int  # estimate of the memory that it holds until it is encoded, in bytes
    wanted: Callable[[], bool]  # False once its coordinator has ended
    on_encoded: Callable[[bytes | None], None]


class LongRecords:
    """Takes one step of one record in each turn of the loop, first come first served.

    So records of many partitions wait for each other, and short ones for none of them. A
    transactional id has at most one. Coordinators count `waiting_bytes` as memory of transactions,
    which their clients may use up to a limit.
    """

    def __init__(self) -> None:
        self.longer_than = STEP_PARTITIONS  # partitions of the longest record encoded at once
        self.waiting_bytes = 0  # sizes of the records that are not encoded yet
        self._waiting: deque[_Record] = deque()
        self._due = False  # True while `_next` is scheduled

    def encode(
        self,
        steps: Steps,
        size: int,
        wanted: Callable[[], bool],
        on_encoded: Callable[[bytes | None], None],
    ) -> None:
        """Encode a record later, and call `on_encoded`: with None if that failed.

        It is not called if the record is no longer wanted.
        """
        self.waiting_bytes += size
        self._waiting.append(_Record(steps, size, wanted, on_encoded))
        self._schedule()

    def _schedule(self) -> None:
        if self._waiting and not self._due:
            self._due = True
            self._later(self._next)

    def _later(self, work: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(work)

    def _next(self) -> None:
        self._due = False
        while self._waiting and not self._waiting[0].wanted():
            self._drop()
        try:
            if self._waiting:
                self._step(self._waiting[0])
        finally:
            self._schedule()

    def _step(self, record: _Record) -> None:
        value = None
        try:
            next(record.steps)
            return
        except StopIteration as end:
            value = end.value
        except Exception as error:  # noqa: BLE001  the other records must go on
            report("the encoding of a long record", error)
        self._drop()
        record.on_encoded(value)

    def _drop(self) -> None:
        self.waiting_bytes -= self._waiting.popleft().size
