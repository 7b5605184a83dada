"""The gateway's end of the cleaner process: starts it when it is needed, and asks it.

If the process ends, is killed, or is asked by a task that is cancelled, it is started again by the
next `start`, after a pause that grows with each such end.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import gateway
from gateway.cleaning import frames
from gateway.cleaning.frames import HEAD, Kind
from gateway.cleaning.slots import NO_SLOT, SLOTS, Slots, shared_file
from gateway.core.cleaning_results import PoisonedBatch
from ledger.errors import LedgerError
from ledger.ids import Buffer

_MODULE = "gateway.cleaning.child"
_ROOT = str(Path(gateway.__file__).resolve().parents[1])
"""The directory of this program, so that the child is of the same release."""

_STOP_S_MAX = 1.0
_HELD_BYTES = 2 * 1024 * 1024  # of a reply, beyond which the pipe waits
_DRAIN_BYTES = 1024 * 1024
_ANSWER_S_MAX = 600.0
"""A piece takes far less, unless the child is stopped or a client compressed gigabytes into it."""
_PAUSE_S_FIRST, _PAUSE_S_MAX = 1.0, 60.0


class CleanerEnded(LedgerError):
    """The cleaner process ended before it answered. Nothing was changed."""

    retryable: ClassVar[bool] = True


class CleanerProcess:
    """One child process. One task starts it, and up to `SLOTS` tasks ask it at the same time."""

    def __init__(self) -> None:
        # None while no child runs.
        self._child: Process | None = None
        # The pause before the next start, after a child that ended by itself. 0 after a whole
        # round.
        self._pause_s = 0.0
        # The memory shared with the child. None while no child runs.
        self._slots: Slots | None = None
        # The slot of the last request.
        self._slot = 0
        # Held by the oldest request under way, which reads its reply.
        self._answered_in_order = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """Return the process id of the child, or None if none runs."""
        return None if self._child is None else self._child.pid

    async def start(self) -> None:
        """Start the child unless it runs, after a pause if the last one ended by itself."""
        if self._child is not None:
            if self._child.returncode is None:
                return
            await self._end(self._child)
        if self._pause_s:
            await asyncio.sleep(self._pause_s)
        paths = [_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
        try:
            file = shared_file()
        except OSError as error:
            refused = f"memory cannot be shared with the cleaner process: {error}"
            raise CleanerEnded(refused) from error
        try:
            slots = Slots(file)
            self._child = await asyncio.create_subprocess_exec(
                # -P: a directory `gateway` where this program was started is not imported.
                *(sys.executable, "-P", "-m", _MODULE, str(file)),
                stdin=PIPE,
                stdout=PIPE,
                limit=_HELD_BYTES,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                pass_fds=[file],
                start_new_session=True,  # Ctrl-C in a terminal does not reach the child
            )
            self._slots = slots
        finally:
            os.close(file)

    async def ask(self, kind: Kind, *payload: Buffer) -> Buffer:
        """Send a request whose payload may come in parts, and return the payload of its reply.

        Up to `SLOTS` requests may be under way, and replies come in the order of the requests.
        The buffer returned is valid until the `SLOTS`-th request after this one is sent. Raises
        PoisonedBatch, CleanerEnded. Any other end of the wait also ends the child, because its
        reply would be taken for that of another request.
        """
        child, slots = self._child, self._slots
        if child is None or child.stdin is None or child.stdout is None or slots is None:
            raise CleanerEnded("the cleaner process does not run")
        answered = False
        try:
            # Nothing may wait between the two: requests take their replies in this order.
            self._send(child.stdin, slots, kind, payload)
            async with self._answered_in_order:
                if child is not self._child:  # the request before this one ended it
                    raise CleanerEnded("the cleaner process was ended")
                async with asyncio.timeout(_ANSWER_S_MAX):
                    reply, answer = await _receive(child.stdout, slots)
            if reply == Kind.UNABLE:
                raise self._ended(child, bytes(answer).decode())
            answered = True
        except TimeoutError as error:
            raise self._ended(child, f"did not answer for {_ANSWER_S_MAX:.0f} s") from error
        except (OSError, RuntimeError, asyncio.IncompleteReadError) as error:
            ended = self._ended(child, "has ended")
            await self._end(child)
            if child.returncode is not None and child.returncode < 0:
                how = f"was ended by signal {-child.returncode}; is memory short?"
                ended = CleanerEnded(f"the cleaner process {how}")
            raise ended from error
        finally:
            if not answered:
                await self._end(child)
        if reply == Kind.POISONED:
            offset = frames.OFFSET.unpack_from(answer)[0]
            raise PoisonedBatch(offset, bytes(answer[frames.OFFSET.size :]).decode())
        return answer

    def _send(
        self, pipe: StreamWriter, slots: Slots, kind: Kind, payload: Sequence[Buffer]
    ) -> None:
        self._slot = (self._slot + 1) % SLOTS
        slot = slots.put(self._slot, payload)
        pipe.write(HEAD.pack(sum(map(len, payload)), kind, slot))
        if slot == NO_SLOT:
            for part in payload:
                pipe.write(part)

    def _ended(self, child: Process, how: str) -> CleanerEnded:
        if child is self._child:  # the first of the requests that were under way
            self._pause_s = min(max(2 * self._pause_s, _PAUSE_S_FIRST), _PAUSE_S_MAX)
        return CleanerEnded(f"the cleaner process {how}")

    def succeeded(self) -> None:
        """Note a whole round: the next start needs no pause."""
        self._pause_s = 0.0

    async def stop(self) -> None:
        """End the child, if one runs."""
        if self._child is not None:
            await self._end(self._child)

    async def _end(self, child: Process) -> None:
        """End a child, unless that has begun. Another one may run already."""
        if child is not self._child:
            return
        self._child = self._slots = None
        if child.stdin is not None:
            child.stdin.close()
        try:
            async with asyncio.timeout(_STOP_S_MAX):
                await _drained(child)
        except TimeoutError:
            with suppress(ProcessLookupError):
                child.kill()
            await _drained(child)


async def _receive(pipe: StreamReader, slots: Slots) -> tuple[int, Buffer]:
    """Return the kind and the payload of the next reply."""
    size, reply, slot = HEAD.unpack(await pipe.readexactly(HEAD.size))
    assert size <= frames.FRAME_BYTES_MAX
    assert reply in (Kind.DONE, Kind.POISONED, Kind.UNABLE)
    if slot == NO_SLOT:
        return reply, await pipe.readexactly(size)
    return reply, slots.get(slot, size)


async def _drained(child: Process) -> None:
    """Wait until the child has ended. What it still writes is dropped.

    As long as its output is not read to the end, asyncio does not report that it has ended.
    """
    if child.stdout is not None:
        while await child.stdout.read(_DRAIN_BYTES):
            pass
    await child.wait()
