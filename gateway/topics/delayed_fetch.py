"""Waits until the response to a Fetch may be sent, reading from disk meanwhile where it must.

    waiting ─(records arrive, a partition changes)▶ planned anew ─▶ complete: sent │ waiting
       └────(the client's time is over)▶ planned anew ─▶ sent as it is

A pure `FetchPlan` decides when the response is worth sending. A waiting fetch has a timer and is
registered at its partitions; it has a task only while it reads from disk. Source: Kafka,
DelayedFetch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from gateway.core.fetch_session import FetchPartition, FetchSession
from gateway.topics.fetch_reader import FetchReader


class DelayedFetch:
    """One Fetch that memory could not complete at once, until its response."""

    __slots__ = (
        "_encode",
        "_plan",
        "_reader",
        "_reading",
        "_session",
        "_stale",
        "_timer",
        "reply",
    )

    def __init__(
        self,
        session: FetchSession,
        reader: FetchReader,
        encode: Callable[[], Any],
        wait_s: float,
    ) -> None:
        """Create the fetch. `encode()` returns the result for `reply`; it is called once, when the
        plan is final.
        """
        loop = asyncio.get_running_loop()
        self._session = session
        self._reader = reader
        self._plan = reader.plan
        self._encode = encode
        # Resolved with the response, or cancelled when the client's connection is closed.
        self.reply: asyncio.Future[Any] = loop.create_future()
        self.reply.add_done_callback(self._ended)
        # The timer for the client's deadline. Cancelled with the reply.
        self._timer = loop.call_later(wait_s, self._force_complete)
        # The task that reads from disk. None before it starts, and again once a pass leaves the
        # fetch waiting. The task stays set after the response. While the task is set, only it
        # changes the decisions of the plan; `_force_complete` only records that the deadline has
        # passed.
        self._reading: asyncio.Task[None] | None = None
        # True if a partition changed while the task read, so that the pass must be repeated.
        self._stale = False
        session.on_changed = self._on_changed
        reader.watch()
        if self._plan.undecided:
            self._start_reading()

    def _on_changed(self, partition: FetchPartition) -> None:
        """Respond if the change of a partition of the session completes the fetch."""
        if self.reply.done():
            return
        if self._reading is not None:
            self._stale = True
            self._reader.add(partition)
            return
        try:
            if not self._reader.plan_changed(partition) or (
                self._plan.complete and self._plan.dropped
            ):
                self._plan_again()
            elif self._plan.complete:
                self._respond()
        except Exception as error:  # noqa: BLE001 - the log that notifies must go on
            self._fail(error)

    def _force_complete(self) -> None:
        """Respond with the records found so far. A read in progress ends first."""
        self._plan.timed_out = True
        if self.reply.done() or self._reading is not None:
            return
        try:
            self._plan_again()
        except Exception as error:  # noqa: BLE001 - otherwise the reply would never come
            self._fail(error)

    def _plan_again(self) -> None:
        """Plan all partitions anew, and respond if the fetch is complete or its time is over."""
        self._reader.restart()
        if not self._reader.plan_from_memory():
            self._start_reading()
        elif self._plan.complete or self._plan.timed_out:
            self._respond()

    def _respond(self) -> None:
        if not self.reply.done():
            self._session.on_changed = None
            self.reply.set_result(self._encode())

    def _fail(self, error: Exception) -> None:
        """Let the connection answer with the error."""
        if not self.reply.done():
            self.reply.set_exception(error)

    def _ended(self, reply: asyncio.Future[Any]) -> None:
        self._session.answered()
        self._timer.cancel()
        reading = self._reading
        if reading is not None and not reading.done():
            if reply.cancelled():
                reading.cancel()
        else:
            self._reader.release()

    # -- reading from disk --------------------------------------------------------------------

    def _start_reading(self) -> None:
        self._reading = asyncio.get_running_loop().create_task(self._read_until_complete())
        self._reading.add_done_callback(self._reading_ended)

    def _reading_ended(self, reading: asyncio.Task[None]) -> None:
        """Fail the reply if a bug ended the task, so that the client does not wait forever."""
        if self.reply.done():
            self._reader.release()
        if reading.cancelled():
            self.reply.cancel()  # it was cancelled with the reply, or by what it awaited
            return
        error = reading.exception()
        if error is not None and not self.reply.done():
            self.reply.set_exception(error)

    async def _read_until_complete(self) -> None:
        """Finish the pass. Repeat it as long as partitions change while the task reads."""
        plan = self._plan
        while True:
            self._stale = False
            await self._reader.plan_from_disk()
            if plan.complete or plan.timed_out:
                self._reader.leave_for_later()
                self._respond()
                return
            if not self._stale:
                self._reader.drop_records()
                self._reading = None
                return
            self._reader.restart()
