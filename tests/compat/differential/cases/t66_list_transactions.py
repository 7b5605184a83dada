"""ListTransactions: filters by state, producer, duration and pattern."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.script import Answer, Script, case
from tests.compat.differential.transactional import Writer, initialise, writer

KEY = 66
DURATION_FROM = 1
PATTERN_FROM = 2
SYNTAX = (
    *(
        "Ä1 b-c",
        "ä1 B-C",
        "(?i)ä1 B-C",
        "(?i:Ä)1 b-c",
        "..\\sb.c",
        "\\pL\\d \\w-\\w",
        "\\p{Lu}1 b-c",
    ),
    *(
        "\\p{Latin}1 b-c",
        "\\p{Greek}.*",
        "[[:alpha:]]1 .*",
        "[[:word:]].*",
        "[^ä]1 b-c",
        "[]Ä]1 .*",
    ),
    *("\\x{c4}1 b-c", "\\u00c41 b-c", "\\QÄ1 b\\E-c", "\\QÄ1 b-c", "Ä1 b-c\\z", "Ä1 b-c$", "^Ä1.*"),
    *("\\AÄ1.*", "Ä1 b-c\\Z", "Ä1\\b.*", "Ä1\\B.*", "(?s).{6}", "(?m)^.*$", "(?U).*", "(?x)Ä1.*"),
    *(
        "Ä{1}1 b-c",
        "Ä{,2}1 b-c",
        "Ä{1,0}.*",
        "Ä{1000}",
        "Ä{1001}",
        "Ä**1.*",
        "Ä+?1.*",
    ),
    *(
        "(?P<n>Ä)1.*",
        "(?<n>Ä)1.*",
        "(?'n'Ä)1.*",
        "(?:Ä)1.*",
        "(?=Ä)Ä.*",
        "(?#x)Ä.*",
    ),
    *(
        "(Ä)\\1",
        "\\R.*",
        "\\h.*",
        "\\X.*",
        "[b-a].*",
        "[\\d-z].*",
        "a||Ä.*",
        "()Ä.*",
        "Ä1 b-c|x",
    ),
    *(
        "{.*",
        "}.*",
        "Ä1 b-c{",
        "]Ä.*",
        ")",
        "Ä.*)",
        "\\",
        "\\8",
        "\\07.*",
        "\\x41.*",
        "\\xg",
        "\\p{Nothing}",
        "\\pN.*",
    ),
)
"""Ends of patterns for an id that ends with `Ä1 b-c`, and texts that are no patterns."""


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
    ended.add(topic)
    ended.end(commit=True)
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


@case(KEY, since=PATTERN_FROM, transactions=True)
def patterns_with_other_filters(script: Script) -> None:
    empty, _, _ = _three(script)
    mine = script.name("") + ".*"
    _list(script, transactional_id_pattern=mine, state_filters=["Ongoing"])
    _list(script, transactional_id_pattern=mine, state_filters=["Ongoing", "Nothing"])
    _list(script, transactional_id_pattern=mine, producer_id_filters=[empty.producer])
    _list(script, transactional_id_pattern=mine, duration_filter=3_600_000)
    _list(script, transactional_id_pattern="(", state_filters=["Nothing"])


@case(KEY, since=PATTERN_FROM, transactions=True)
def the_syntax_of_patterns(script: Script) -> None:
    name = script.name("Ä1 b-c")
    initialise(script, name)
    begin = script.name("").replace(".", "[.]")
    for end in SYNTAX:
        _list(script, transactional_id_pattern=begin + end)


@case(KEY, since=PATTERN_FROM, transactions=True)
def the_bounds_of_patterns(script: Script) -> None:
    name = script.name("Ä1")
    initialise(script, name)
    begin = script.name("")
    for end in ("(Ä{500}){500}", r"\CÄ1", "(?P<n>Ä)(?P<n>1)", "Ä1" + "|x" * 600):
        _list(script, transactional_id_pattern=begin + end)
