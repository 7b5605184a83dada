"""Regular expressions to which consumers subscribe: their check, and the topics that match.

They are RE2's, as in Kafka. An expression that is too long or too costly is refused.
Source: Kafka, TopicRegexResolver and Utils.throwIfRegularExpressionIsInvalid.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
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
    patterns: Iterable[str], names: Sequence[str], allows: Callable[[str], bool]
) -> dict[str, frozenset[str]]:
    """Return the topics that match each expression and that `allows` permits.

    Other tasks run meanwhile. An expression of a later release that is refused here matches none.
    One compiled expression is in memory at a time, and equal results are one object.
    """
    found: dict[str, frozenset[str]] = {}
    equal: dict[frozenset[str], frozenset[str]] = {}
    allowed: dict[str, bool] = {}
    for each in patterns:
        some = frozenset([name async for name in _matching(each, names, allows, allowed)])
        found[each] = equal.setdefault(some, some)
    return found


async def _matching(
    pattern: str, names: Sequence[str], allows: Callable[[str], bool], allowed: dict[str, bool]
) -> AsyncIterator[str]:
    """Yield the names that match. `allowed` keeps the answers of `allows`."""
    await asyncio.sleep(0)
    if pattern_fault(pattern) is not None:
        return
    program: Any = compile_pattern(pattern, _MEMORY_BYTES_MAX)
    for number, name in enumerate(names, 1):
        if number % _STEP_MATCHES == 0:
            await asyncio.sleep(0)
        if not program.fullmatch(name):
            continue
        if name not in allowed:
            allowed[name] = allows(name)
        if allowed[name]:
            yield name
