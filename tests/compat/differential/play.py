"""Sends the steps of a case to a server and returns its answers as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from tests.compat.differential.connection import CLOSED, Address, Connection, Frame, NoAnswer
from tests.compat.differential.decode import Undecodable, decoded
from tests.compat.differential.routes import Routes
from tests.compat.differential.steps import Step, bound, frame_of
from tests.peers.processes import wait_until

SETTLED_S_MAX = 60.0
PAUSE_S = 0.01


@dataclass(frozen=True, slots=True)
class Played:
    """One step: the frame that was sent (empty if none was) and the answer."""

    sent: bytes
    answer: Frame


class Player:
    """The connections of one case to one server or cluster, and what was answered so far."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        # Open connections by the names that the steps give them, and by server.
        self._connections: dict[tuple[str, Address], Connection] = {}
        # The connection of each request that was sent.
        self._sent_on: dict[int, Connection] = {}
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
            self._send(step, number, sent)
        elif step.action == "receive":
            answer = self.receive(step, step.of)
        elif step.action == "drop":
            self._drop(step)
        else:
            assert step.action == "expect_close", step.action
            for (name, _), connection in self._connections.items():
                extra = connection.receive() if name == step.connection else CLOSED
                assert extra is CLOSED, f"step {number}: {extra.hex()} instead of the end"
            self._drop(step)
        self._answers.append(self.entity(step, answer))
        return Played(sent, answer)

    def _ask(self, number: int, step: Step) -> Played:
        frame = frame_of(step, number, self._answers)

        def once() -> tuple[Frame, Any] | None:
            answer, entity = self.exchange(step, number, frame)
            unsettled = step.again and set(step.again) & set(errors_in(entity))
            return None if unsettled else (answer, entity)

        what = f"step {number}, key {step.key}, without {step.again}"
        answer, entity = wait_until(once, what, SETTLED_S_MAX, pause_s=PAUSE_S)
        self._answers.append(entity)
        return Played(frame, answer)

    def exchange(self, step: Step, number: int, frame: bytes) -> tuple[Frame, Any]:
        """Send a request once. Returns the answer, and its entity or None."""
        self._send(step, number, frame)
        answer = self.receive(step, number)
        return answer, self.entity(step, answer)

    def fields(self, step: Step) -> Any:
        """Return the fields of a request as it is sent, or its bytes."""
        return bound(step.body, self._answers)

    def send_to(self, address: Address, step: Step, number: int, frame: bytes) -> None:
        """Send a frame to one of several servers."""
        place = step.connection, address
        if place not in self._connections:
            self._connections[place] = Connection(address)
        self._sent_on[number] = self._connections[place]
        self._sent_on[number].send(frame)

    def _send(self, step: Step, number: int, frame: bytes) -> None:
        self.send_to(self._routes.address(step.key, self.fields(step)), step, number, frame)

    def receive(self, step: Step, number: int) -> Frame:
        """Read the answer to the request that was sent as step `number`."""
        answer = self._sent_on[number].receive()
        if answer is CLOSED:
            self._drop(step)
        else:
            correlation_id = int.from_bytes(answer[:4], "big")
            assert correlation_id == number + 1, f"answer {correlation_id} to step {number}"
        return answer

    def entity(self, step: Step, answer: Frame) -> Any:
        """Return the entity of an answer, or None. An undecodable answer is compared as bytes."""
        if answer is CLOSED:
            return None
        try:
            return decoded(step.key, step.answer_version(), answer)
        except Undecodable:
            return None

    def _drop(self, step: Step) -> None:
        for place in [each for each in self._connections if each[0] == step.connection]:
            self._connections.pop(place).close()


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
