"""Transactions of the metadata store that callers share while earlier ones are under way.

    multi ─▶ (waiting) ─▶ one transaction of all that wait ─▶ every caller is answered

The takeover of a gateway claims thousands of groups, and writes a node for each. One transaction of
a hundred changes costs the store little more than one of them. The store applies all operations of
a transaction or none, so after a refusal each caller's operations are tried alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from ledger.errors import EntryTooLarge, LedgerError, MetadataError, MetadataUnavailable
from ledger.ports.metadata import Create, MetadataStore, Op, Set
from ledger.tasks import start_once

TOGETHER_MAX: Final = 128
"""Callers whose operations share one transaction."""

BYTES_MAX: Final = 512 * 1024
"""Data of one shared transaction, unless a single caller has more."""

_UNDER_WAY_MAX: Final = 4
_OP_BYTES: Final = 64  # what an operation takes beside its path and data, at most


class _Waiting(NamedTuple):
    ops: Sequence[Op]
    size_bytes: int
    done: asyncio.Future[bool]  # False: the caller goes alone


class SharedTransactions:
    """The transactions of one owner of nodes. Its callers change different nodes."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        # Callers whose operations are not sent yet, oldest first. Each is a task of its own, so the
        # tasks bound the queue.
        self._waiting: deque[_Waiting] = deque()
        # The number of transactions without an answer, at most `_UNDER_WAY_MAX`. Those that callers
        # try alone after a refusal are not counted.
        self._under_way = 0
        # True while `_begin` is due in the next turn of the loop.
        self._due = False

    async def multi(self, ops: Sequence[Op]) -> None:
        """Apply all of `ops` or none, with the errors of `MetadataStore.multi`."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(ops, sum(map(_size_bytes, ops)), done))
        self._wake()
        if not await done:
            await self._store.multi(ops)

    def _wake(self) -> None:
        if self._waiting and not self._due and self._under_way < _UNDER_WAY_MAX:
            self._due = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._due = False
        batch, size_bytes = list[_Waiting](), 0
        while self._waiting and len(batch) < TOGETHER_MAX:
            one = self._waiting[0]
            if batch and size_bytes + one.size_bytes > BYTES_MAX:
                break
            self._waiting.popleft()
            if not one.done.done():  # otherwise its caller has given up
                batch.append(one)
                size_bytes += one.size_bytes
        if batch:
            self._under_way += 1
            start_once("a shared transaction", self._run(batch))
        self._wake()

    async def _run(self, batch: Sequence[_Waiting]) -> None:
        outcome: bool | LedgerError = MetadataUnavailable("a shared transaction was stopped")
        try:
            await self._store.multi([op for one in batch for op in one.ops])
            outcome = True
        except MetadataUnavailable as error:
            outcome = error
        except (MetadataError, EntryTooLarge) as error:
            outcome = error if len(batch) == 1 else False
        finally:
            self._under_way -= 1
            for one in batch:
                _settle(one.done, outcome)
            self._wake()


def _settle(done: asyncio.Future[bool], outcome: bool | LedgerError) -> None:
    """Tell one caller whether its operations were applied, or why they were not."""
    if done.done():
        return
    if isinstance(outcome, LedgerError):
        done.set_exception(type(outcome)(*outcome.args))  # each caller raises one of its own
    else:
        done.set_result(outcome)


def _size_bytes(op: Op) -> int:
    data = op.data if isinstance(op, Create | Set) else b""
    return len(op.path) + len(data) + _OP_BYTES
