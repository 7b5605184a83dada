"""The differences of one played case from its recording."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.compat.differential.compare import differences
from tests.compat.differential.connection import CLOSED, Frame
from tests.compat.differential.decode import Undecodable, decoded
from tests.compat.differential.normalise import Normaliser
from tests.compat.differential.play import Played
from tests.compat.differential.steps import Step

_SHOWN = 2_000


@dataclass(frozen=True, slots=True)
class Recorded:
    """A case with Kafka's answers; a step that is not compared has none."""

    name: str
    key: int
    version: int
    steps: tuple[Step, ...]
    answers: tuple[Frame, ...]
    transactions: bool = False

    @property
    def title(self) -> str:
        return f"key {self.key} v{self.version} {self.name}"


@dataclass(frozen=True, slots=True)
class Difference:
    """One field of one answer that differs, with the bytes of both sides."""

    title: str
    case: str
    step: int
    key: int
    version: int
    path: str
    kafka: Any
    ours: Any
    sent: bytes
    kafka_bytes: Frame
    our_bytes: Frame
    transactions: bool = False
    """Whether the case needs a server with transactions."""

    def __str__(self) -> str:
        return (
            f"{self.title}, step {self.step} (key {self.key} v{self.version})\n"
            f"  field:  {self.path or '(connection)'}\n"
            f"  Kafka:  {self.kafka!r}\n"
            f"  ours:   {self.ours!r}\n"
            f"  sent:   {_hex(self.sent)}\n"
            f"  Kafka's bytes: {_hex(self.kafka_bytes)}\n"
            f"  our bytes:     {_hex(self.our_bytes)}"
        )


def _hex(frame: Frame) -> str:
    if frame is None:
        return "(connection closed)"
    text = frame.hex()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(frame)} bytes)"


def normal_answers(
    steps: Sequence[Step], answers: Sequence[Frame], *, one_node: bool = False
) -> list[Any]:
    """Return what is compared of each answer; None for steps that are not compared."""
    normaliser = Normaliser(one_node=one_node)
    return [_normal(step, answer, normaliser) for step, answer in zip(steps, answers, strict=True)]


def is_compared(step: Step) -> bool:
    return step.compared and step.action in ("ask", "receive")


def _normal(step: Step, answer: Frame, normaliser: Normaliser) -> Any:
    if not is_compared(step):
        return None
    if answer is CLOSED:
        return "(connection closed)"
    try:
        entity = decoded(step.key, step.answer_version(), answer)
    except Undecodable as error:
        return f"(undecodable: {error})"
    return normaliser.tree(step.key, entity, step.own)


def outcome(
    recorded: Recorded, played: Sequence[Played], *, one_node: bool = False
) -> Iterator[Difference]:
    """Yield what differs between Kafka's recorded answers and those of another server.

    With `one_node` the other server is a cluster, all of whose brokers count as one.
    """
    steps = recorded.steps
    theirs = normal_answers(steps, recorded.answers, one_node=one_node)
    ours = normal_answers(steps, [one.answer for one in played], one_node=one_node)
    for number, step in enumerate(steps):
        if not is_compared(step):
            continue
        request = played[step.of if step.action == "receive" else number].sent
        kafka_bytes, our_bytes = recorded.answers[number], played[number].answer
        for found in differences(theirs[number], ours[number]):
            yield Difference(
                recorded.title,
                recorded.name,
                number,
                step.key,
                step.version,
                found.path,
                found.kafka,
                found.ours,
                request,
                kafka_bytes,
                our_bytes,
                recorded.transactions,
            )
