"""Kafka's answers in the tree: one compressed file of JSON lines for each file of cases."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import zstandard

from tests.compat.differential.connection import Frame
from tests.compat.differential.decode import decoded
from tests.compat.differential.outcome import Recorded, is_compared, normal_answers
from tests.compat.differential.play import Played, errors_in
from tests.compat.differential.script import Case, case_files
from tests.compat.differential.steps import Step, step_from_json, step_to_json

DIRECTORY = Path(__file__).with_name("recorded")
DRAWN = DIRECTORY / "drawn.jsonl.zst"
_LEVEL = 19


def file_of(key: int, transactions: bool = False) -> Path:
    """Return the file with the recorded cases of an API."""
    return DIRECTORY / f"{case_files(transactions)[key]}.jsonl.zst"


@cache
def recorded_cases(key: int, transactions: bool = False) -> tuple[Recorded, ...]:
    """Return the recorded cases of an API, in the order of the file."""
    if key not in case_files(transactions) or not file_of(key, transactions).exists():
        return ()
    stored = file_of(key, transactions).read_bytes()
    text = zstandard.ZstdDecompressor().decompress(stored)
    return tuple(_from_json(json.loads(line), transactions) for line in text.decode().splitlines())


def write_recorded(key: int, cases: Iterable[Recorded], transactions: bool = False) -> None:
    """Write the file of an API, if something in it changed."""
    lines = "".join(json.dumps(_to_json(each), separators=(",", ":")) + "\n" for each in cases)
    if "".join(_lines_of(key, transactions)) != lines:
        stored = zstandard.ZstdCompressor(level=_LEVEL).compress(lines.encode())
        file_of(key, transactions).write_bytes(stored)
    recorded_cases.cache_clear()


def drawn_sequences() -> tuple[Recorded, ...]:
    """Return the random sequences that were recorded, with those that once differed."""
    if not DRAWN.exists():
        return ()
    text = zstandard.ZstdDecompressor().decompress(DRAWN.read_bytes())
    stored = [json.loads(line) for line in text.decode().splitlines()]
    return tuple(_from_json(each, each["transactions"]) for each in stored)


def keep(sequences: Sequence[Recorded]) -> None:
    """Record random sequences with Kafka's answers. One of the same name is replaced."""
    if not sequences:
        return
    names = {each.name for each in sequences}
    known = [each for each in drawn_sequences() if each.name not in names]
    lines = [
        json.dumps({**_to_json(each), "transactions": each.transactions}, separators=(",", ":"))
        for each in (*known, *sequences)
    ]
    text = "".join(line + "\n" for line in lines).encode()
    DRAWN.write_bytes(zstandard.ZstdCompressor(level=_LEVEL).compress(text))


def most_varied(sequences: Sequence[Recorded], count: int) -> list[Recorded]:
    """Return up to `count` sequences, each with the most APIs and errors that are new to them."""
    left = {each.name: (each, _variety(each)) for each in sequences}
    chosen: list[Recorded] = []
    seen: set[tuple[int, int, str]] = set()
    for _ in range(min(count, len(left))):
        name = max(left, key=lambda each: len(left[each][1] - seen))
        sequence, variety = left.pop(name)
        chosen.append(sequence)
        seen |= variety
    return chosen


def _variety(sequence: Recorded) -> set[tuple[int, int, str]]:
    """Return the APIs, versions and errors of the compared answers."""
    found: set[tuple[int, int, str]] = set()
    for step, answer in zip(sequence.steps, sequence.answers, strict=True):
        if is_compared(step) and answer is not None:
            entity = decoded(step.key, step.answer_version(), answer)
            found |= {(step.key, step.version, error) for error in errors_in(entity)}
    return found


def _lines_of(key: int, transactions: bool) -> list[str]:
    return [
        json.dumps(_to_json(each), separators=(",", ":")) + "\n"
        for each in recorded_cases(key, transactions)
    ]


def recorded(case: Case, steps: Sequence[Step], played: Sequence[Played]) -> Recorded:
    """Return the recording of a played case.

    A recording with the same meaning stays as it is, so that ids and times do not change the file.
    """
    answers = tuple(
        one.answer if is_compared(step) else None for step, one in zip(steps, played, strict=True)
    )
    new = Recorded(case.name, case.key, case.version, tuple(steps), answers, case.transactions)
    for old in recorded_cases(case.key, case.transactions):
        if (old.name, old.version) == (new.name, new.version) and _same(old, new):
            return old
    return new


def _same(old: Recorded, new: Recorded) -> bool:
    if _steps_to_json(old.steps) != _steps_to_json(new.steps):
        return False
    return normal_answers(old.steps, old.answers) == normal_answers(new.steps, new.answers)


def same_steps(one: Sequence[Step], other: Sequence[Step]) -> bool:
    """Return True if two lists of steps are stored equally."""
    return _steps_to_json(one) == _steps_to_json(other)


def _steps_to_json(steps: Sequence[Step]) -> list[dict[str, Any]]:
    return [step_to_json(step) for step in steps]


def _to_json(case: Recorded) -> dict[str, Any]:
    return {
        "case": case.name,
        "key": case.key,
        "version": case.version,
        "steps": _steps_to_json(case.steps),
        "answers": [None if answer is None else answer.hex() for answer in case.answers],
    }


def _from_json(stored: dict[str, Any], transactions: bool) -> Recorded:
    answers: list[Frame] = [
        None if answer is None else bytes.fromhex(answer) for answer in stored["answers"]
    ]
    steps = tuple(step_from_json(step) for step in stored["steps"])
    place = stored["case"], stored["key"], stored["version"]
    return Recorded(*place, steps, tuple(answers), transactions)
