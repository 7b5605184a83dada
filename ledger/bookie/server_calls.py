"""The bookie's end of a client's control calls on a TCP connection: requests in, responses out.

Calls run at the same time, and their responses wait for the client within a bound on their bytes.
While it is exceeded, further calls wait. Their number is limited as well.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from ledger.adapters.links.link_config import MESSAGE_BYTES_MAX
from ledger.bookie.control_calls import ControlCall
from ledger.bookie.server_streams import InboundWindow
from ledger.ids import Buffer
from ledger.tasks import report
from ledger.wire.bookie_frames import BadBookieFrame, FrameKind
from ledger.wire.tcp_frames import ANSWERED, NOT_ANSWERED, Call, decode_call, encode_call

_CALLS_MAX: Final = 256  # calls of one client whose responses are not sent
_REPLY_BYTES_MAX: Final = MESSAGE_BYTES_MAX - 64  # larger ones fit into no message
_RESERVED_BYTES: Final = 64 * 1024  # reserved for a response of unknown size


class ServerCallStream:
    """One client's control calls."""

    def __init__(
        self,
        calls: Mapping[int, ControlCall],
        timeout_s: float,
        answer_bytes_max: int,
        notify: Callable[[], None],
        on_bad: Callable[[BadBookieFrame], None],
    ) -> None:
        """`notify` is called when there are responses to `pop`, `on_bad` for an invalid request."""
        self._by_method = calls
        self._timeout_s = timeout_s
        self._notify = notify
        self._on_bad = on_bad
        self._loop = asyncio.get_running_loop()
        # Bytes of responses that are not sent, plus reservations for calls under way.
        self._window = InboundWindow(answer_bytes_max)
        # Calls that wait for space, by number, oldest first.
        self._asked: dict[int, Call] = {}
        # Tasks of the calls under way, by number. Each task is removed when it ends.
        self._tasks: dict[int, asyncio.Task[None]] = {}
        # Responses that are not sent.
        self._responses: deque[bytes] = deque()

    def take(self, message: Buffer) -> None:
        """Start the call, or keep it while there is no space. Raises BadBookieFrame."""
        call = decode_call(message)
        count = len(self._asked) + len(self._tasks) + len(self._responses)
        if call.code not in self._by_method:
            raise BadBookieFrame(f"unknown control call {call.code}")
        known = call.number in self._tasks or call.number in self._asked
        if known or count >= _CALLS_MAX:
            raise BadBookieFrame(f"control call {call.number} while {count} have no response")
        self._asked[call.number] = call
        self._start_asked()

    def pop(self, bytes_max: int) -> bytes | None:
        """Return the next response, or None if there is none of up to `bytes_max` bytes."""
        if not self._responses or len(self._responses[0]) > bytes_max:
            return None
        response = self._responses.popleft()
        self._window.release(len(response))
        self._start_asked()
        return response

    def close(self) -> None:
        """Cancel all calls; the client has gone."""
        self._asked.clear()
        for task in self._tasks.values():
            task.cancel()

    def _start_asked(self) -> None:
        while self._asked and self._window.has_space:
            call = self._asked.pop(next(iter(self._asked)))
            self._window.acquire(_RESERVED_BYTES)
            task = self._tasks[call.number] = self._loop.create_task(self._answer(call))
            task.add_done_callback(partial(self._on_done, call.number))

    def _on_done(self, number: int, task: asyncio.Task[None]) -> None:
        del self._tasks[number]
        self._window.release(_RESERVED_BYTES)
        self._start_asked()

    async def _answer(self, call: Call) -> None:
        reply, outcome = b"", NOT_ANSWERED
        try:
            async with asyncio.timeout(self._timeout_s):
                reply, outcome = await self._by_method[call.code](call.content), ANSWERED
        except TimeoutError:
            pass
        except BadBookieFrame as error:
            self._on_bad(error)
            return
        except Exception as error:  # noqa: BLE001  a bug; the client needs an answer
            report("a control call", error)
        if len(reply) > _REPLY_BYTES_MAX:
            reply, outcome = b"", NOT_ANSWERED
        response = encode_call(FrameKind.CALL_RESPONSE, call.number, outcome, reply)
        self._window.acquire(len(response))
        self._responses.append(response)
        self._notify()
