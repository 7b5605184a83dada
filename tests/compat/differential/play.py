"""Sends the steps of a case to a server and returns its answers as bytes."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from tests.compat.differential.decode import decoded
from tests.compat.differential.steps import Step, frame_of
from tests.peers.processes import wait_until

ANSWER_S_MAX = 20.0
SETTLED_S_MAX = 20.0
PAUSE_S = 0.01
CLOSED = None
"""The answer of a server that closed the connection instead."""

Frame = bytes | None
Address = tuple[str, int]


class NoAnswer(AssertionError):
    """A server neither answered nor closed the connection in time."""


@dataclass(frozen=True, slots=True)
class Played:
    """One step: the frame that was sent (empty if none was) and the answer."""

    sent: bytes
    answer: Frame


class Connection:
    """A blocking connection to one server."""

    def __init__(self, address: Address) -> None:
        self._socket = socket.create_connection(address, timeout=ANSWER_S_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, frame: bytes) -> None:
        """Send one frame. A connection that the server closed shows when its answer is read."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self) -> Frame:
        """Return the next answer, or CLOSED. Raises NoAnswer."""
        size = self._exactly(4)
        if size is None:
            return CLOSED
        return self._exactly(int.from_bytes(size, "big"))

    def _exactly(self, count: int) -> bytes | None:
        found = bytearray()
        while len(found) < count:
            try:
                chunk = self._socket.recv(count - len(found))
            except TimeoutError:
                raise NoAnswer(f"no answer within {ANSWER_S_MAX:g} s") from None
            except ConnectionResetError:
                return None
            if not chunk:
                return None
            found += chunk
        return bytes(found)

    def close(self) -> None:
        self._socket.close()


class Player:
    """The connections of one case to one server, and what was answered so far."""

    def __init__(self, address: Address) -> None:
        self._address = address
        # Open connections by the names that the steps give them.
        self._connections: dict[str, Connection] = {}
        # The decoded answer of each step so far, None where there is none.
        self._answers: list[Any] = []

    def play(self, steps: Sequence[Step]) -> list[Played]:
        """Send all steps, and return what was sent and answered. Raises NoAnswer."""
        try:
            played: list[Played] = []
            for number, step in enumerate(steps):
                try:
                    one = self._step(number, step, steps)
                except NoAnswer as error:
                    raise NoAnswer(f"step {number}, key {step.key}: {error}") from None
                played.append(one)
            return played
        finally:
            for connection in self._connections.values():
                connection.close()

    def _step(self, number: int, step: Step, steps: Sequence[Step]) -> Played:
        if step.action == "ask":
            return self._ask(number, step)
        sent, answer = b"", CLOSED
        if step.action == "send":
            sent = frame_of(step, number, self._answers)
            self._connection(step).send(sent)
        elif step.action == "receive":
            answer = self._receive(step, step.of)
        elif step.action == "drop":
            self._drop(step)
        else:
            assert step.action == "expect_close", step.action
            extra = self._connection(step).receive()
            assert extra is CLOSED, f"step {number}: {extra.hex()} instead of the end"
            self._drop(step)
        self._answers.append(self._decoded(step, answer))
        return Played(sent, answer)

    def _ask(self, number: int, step: Step) -> Played:
        frame = frame_of(step, number, self._answers)

        def once() -> tuple[Frame, Any] | None:
            self._connection(step).send(frame)
            answer = self._receive(step, number)
            entity = self._decoded(step, answer)
            unsettled = step.again and set(step.again) & set(errors_in(entity))
            return None if unsettled else (answer, entity)

        what = f"step {number}, key {step.key}, without {step.again}"
        answer, entity = wait_until(once, what, SETTLED_S_MAX, pause_s=PAUSE_S)
        self._answers.append(entity)
        return Played(frame, answer)

    def _receive(self, step: Step, number: int) -> Frame:
        answer = self._connection(step).receive()
        if answer is CLOSED:
            self._drop(step)
        else:
            correlation_id = int.from_bytes(answer[:4], "big")
            assert correlation_id == number + 1, f"answer {correlation_id} to step {number}"
        return answer

    def _decoded(self, step: Step, answer: Frame) -> Any:
        return None if answer is CLOSED else decoded(step.key, step.answer_version(), answer)

    def _connection(self, step: Step) -> Connection:
        if step.connection not in self._connections:
            self._connections[step.connection] = Connection(self._address)
        return self._connections[step.connection]

    def _drop(self, step: Step) -> None:
        connection = self._connections.pop(step.connection, None)
        if connection is not None:
            connection.close()


def errors_in(value: Any) -> list[str]:
    """Return the names of all error codes in a decoded answer."""
    if isinstance(value, ErrorCode):
        return [value.name]
    if isinstance(value, tuple | list):
        return [name for each in value for name in errors_in(each)]
    if hasattr(value, "__slots__") and hasattr(value, "__dataclass_fields__"):
        fields = value.__dataclass_fields__
        return [name for field in fields for name in errors_in(getattr(value, field))]
    return []
