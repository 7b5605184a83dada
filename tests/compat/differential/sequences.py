"""Random sequences of requests, sent to Kafka and to the gateway, and compared field by field.

Each machine draws requests that follow from each other: a producer's next batch or an old one, a
member's heartbeat with the right generation or a wrong one. It only collects steps, as a case does;
at the end both servers play them. Hypothesis makes a sequence that differs as short as it can.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.compat.differential.intended import explanations
from tests.compat.differential.outcome import Recorded, is_compared, outcome
from tests.compat.differential.play import Player
from tests.compat.differential.script import Case, Script
from tests.compat.differential.steps import Step, step_to_json

NewPlayer = Callable[[str], Player]
STEPS = 25
SHORTER_MAX = 100
"""Plays after the first difference, so that a run ends in time."""


@dataclass(slots=True)
class Result:
    """The result of a run of one machine."""

    sequences: int = 0
    answers: int = 0
    """The answers that were compared."""
    shortest: Recorded | None = None
    """The last sequence that differed, which is the shortest when the run is over."""
    differences: str = ""
    failed: dict[str, tuple[Recorded, str]] = field(default_factory=dict[str, tuple[Recorded, str]])
    """All sequences that differed, by their steps without the number of the sequence."""
    equal: list[Recorded] = field(default_factory=list[Recorded])
    """All sequences that Kafka and the gateway answered equally, but for intended differences."""
    attempts: int = 0
    """The sequences since one differed. Beyond SHORTER_MAX none is played any more."""


class Compared(RuleBasedStateMachine):
    """A machine whose steps are played on both servers when a sequence ends."""

    name: ClassVar[str]
    key: ClassVar[int]
    """The key under which a sequence is recorded."""
    transactions: ClassVar[bool] = False
    """Whether its sequences are recorded with the cases about transactions."""
    kafka: ClassVar[NewPlayer]
    ours: ClassVar[NewPlayer]
    result: ClassVar[Result]
    prefix: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.result.sequences += 1
        self._title = f"{self.prefix}-{self.result.sequences}"
        self.script = Script(Case(self._title, self.key, 0, _nothing, self.transactions))

    def teardown(self) -> None:
        steps = tuple(self.script.steps)
        result = self.result
        text = _text(self.script.prefix, steps)
        if result.failed:
            result.attempts += 1
        if text not in result.failed and result.attempts <= SHORTER_MAX:
            played = self._played(steps)
            if played is not None:
                result.failed[text] = played
        if text in result.failed:
            result.shortest, result.differences = result.failed[text]
            raise Differs(result.differences)

    def _played(self, steps: tuple[Step, ...]) -> tuple[Recorded, str] | None:
        """Play the steps on both servers. Returns the sequence and the differences, or None."""
        answers = tuple(one.answer for one in type(self).kafka("").play(steps))
        recorded = Recorded(self._title, self.key, 0, steps, answers, self.transactions)
        self.result.answers += sum(is_compared(step) for step in steps)
        try:
            played = type(self).ours("").play(steps)
        except AssertionError as error:
            return recorded, f"not answered: {recorded.title}: {error}"
        found = [str(each) for each in outcome(recorded, played) if not explanations(each)]
        if not found:
            self.result.equal.append(recorded)
            return None
        return recorded, "\n".join(found)


class Differs(AssertionError):
    """A sequence to which the two servers gave different answers."""


def _text(prefix: str, steps: Sequence[Step]) -> str:
    return json.dumps([step_to_json(step) for step in steps]).replace(prefix, "")


def _nothing(script: Script) -> None:
    """Add no step: a machine adds them."""


def run(
    machine: type[Compared], kafka: NewPlayer, ours: NewPlayer, number: int, examples: int
) -> Result:
    """Compare `examples` sequences of a machine, drawn by the seed `number`."""
    result = Result()
    bound: dict[str, Any] = {
        "kafka": staticmethod(kafka),
        "ours": staticmethod(ours),
        "prefix": f"{machine.name}-{number}",
        "result": result,
    }
    seeded = seed(number)(type(machine.__name__, (machine,), bound))
    wanted = settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        database=None,
        deadline=None,
        verbosity=Verbosity.normal,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
    )
    try:
        run_state_machine_as_test(seeded, settings=wanted)
    except Differs:
        assert result.shortest is not None
    return result


def versions(first: int, last: int) -> st.SearchStrategy[int]:
    """Draw a version, the newest first when a sequence is made shorter."""
    return st.integers(0, last - first).map(lambda back: last - back)
