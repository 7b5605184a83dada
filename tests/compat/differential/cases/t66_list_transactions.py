"""ListTransactions: filters by state, producer, duration and pattern."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.script import Answer, Script, case
from tests.compat.differential.transactional import Writer, writer

KEY = 66
DURATION_FROM = 1
PATTERN_FROM = 2


def _list(script: Script, **filters: Any) -> Answer:
    fields = {
        "state_filters": [],
        "producer_id_filters": [],
        "duration_filter": -1,
        "transactional_id_pattern": None,
    }
    return script.ask_all(**{**fields, **filters})


def _three(script: Script) -> list[Writer]:
    topic = script.topic("one")
    empty, ongoing, ended = (writer(script, word) for word in ("empty", "ongoing", "ended"))
    ongoing.add(topic)
    ended.one(topic, 1, 0, commit=True)
    return [empty, ongoing, ended]


@case(KEY, transactions=True)
def states(script: Script) -> None:
    _three(script)
    for states in ([], ["Ongoing"], ["Empty", "CompleteCommit"], ["PrepareAbort"]):
        _list(script, state_filters=states)


@case(KEY, transactions=True)
def unknown_states(script: Script) -> None:
    _three(script)
    _list(script, state_filters=["ongoing"])
    _list(script, state_filters=["Nothing"])
    _list(script, state_filters=["Nothing", "Ongoing", "nothing", "Nothing", ""])
    _list(script, state_filters=["Dead", "PrepareEpochFence"])


@case(KEY, transactions=True)
def producers(script: Script) -> None:
    empty, ongoing, _ = _three(script)
    _list(script, producer_id_filters=[ongoing.producer])
    _list(script, producer_id_filters=[ongoing.producer, empty.producer, -1])
    _list(script, producer_id_filters=[1 << 40])
    _list(script, producer_id_filters=[empty.producer], state_filters=["Ongoing"])


@case(KEY, since=DURATION_FROM, transactions=True)
def durations(script: Script) -> None:
    _three(script)
    for duration in (0, -1, -2, 3_600_000, 2**63 - 1):
        _list(script, duration_filter=duration)


@case(KEY, since=PATTERN_FROM, transactions=True)
def patterns(script: Script) -> None:
    _three(script)
    begin = script.name("")
    for pattern in ("", f"{begin}.*", f"{begin}e.*", f"{begin}o", "ongoing", ".*going"):
        _list(script, transactional_id_pattern=pattern)


@case(KEY, since=PATTERN_FROM, transactions=True)
def patterns_that_are_none(script: Script) -> None:
    _three(script)
    for pattern in ("(", "[a", "*"):
        _list(script, transactional_id_pattern=pattern)
