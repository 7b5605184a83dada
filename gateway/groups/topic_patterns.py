"""Regular expressions to which consumers subscribe: their check, and the topics that match.

They are RE2's, as in Kafka. An expression that is too long or too costly is refused.
Source: Kafka, TopicRegexResolver and Utils.throwIfRegularExpressionIsInvalid.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

from gateway.settings.re2_patterns import InvalidPattern, class_count, compile_pattern

CHARACTERS_MAX: Final = 1_024
_CLASSES_MAX: Final = 4  # Unicode classes; each takes up to 0.3 ms to compile
_COUNTS_MAX: Final = 16  # counted repetitions: a{1000} is a thousand times a
_MEMORY_BYTES_MAX: Final = 128 * 1024  # of the compiled program
_STEP_MATCHES: Final = 2_000  # topics matched with one expression each, between two pauses

_TEXTS: Final = {
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "no argument for repetition operator": "missing argument to repetition operator",
    "trailing \\": "trailing backslash at end of expression",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid repetition size": "invalid repeat count",
    "invalid named capture group": "invalid named capture",
}
"""The texts of Kafka's RE2/J for errors of RE2."""


def pattern_fault(pattern: str) -> str | None:
    """Return what is wrong with an expression, in Kafka's words where Kafka has some, or None."""
    if len(pattern) > CHARACTERS_MAX:
        return f"it has {len(pattern)} characters, and at most {CHARACTERS_MAX} are allowed"
    classes, counts = class_count(pattern), pattern.count("{")
    if classes > _CLASSES_MAX:
        return f"it has {classes} Unicode classes, and at most {_CLASSES_MAX} are allowed"
    if counts > _COUNTS_MAX:
        return f"it has {counts} counted repetitions, and at most {_COUNTS_MAX} are allowed"
    try:
        compile_pattern(pattern, _MEMORY_BYTES_MAX)
    except InvalidPattern as error:
        reason, _, where = str(error).partition(": ")
        if where.startswith("(?<"):
            reason = "invalid named capture group"
        return _TEXTS.get(reason, reason)
    return None


async def resolve(
    patterns: Iterable[str], names: Iterable[str], allows: Callable[[str], bool]
) -> dict[str, frozenset[str]]:
    """Return the topics that match each expression and that `allows` permits.

    Other tasks run meanwhile. An expression of a later release that is refused here matches none.
    """
    found: dict[str, set[str]] = {each: set() for each in patterns}
    compiled: dict[str, Any] = {}
    for each in found:
        if pattern_fault(each) is None:
            compiled[each] = compile_pattern(each, _MEMORY_BYTES_MAX)
        await asyncio.sleep(0)
    matched = 0
    for name in names:
        matched += len(compiled)
        if matched >= _STEP_MATCHES:
            matched = 0
            await asyncio.sleep(0)
        matching = [each for each, program in compiled.items() if program.fullmatch(name)]
        if matching and allows(name):
            for each in matching:
                found[each].add(name)
    return {each: frozenset(some) for each, some in found.items()}
