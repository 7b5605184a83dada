"""Patterns of transactional ids, by which ListTransactions filters.

Kafka 4.3 compiles them with RE2/J. RE2 has the same syntax, and both match in linear time: no
pattern takes exponential time. But a pattern can be as costly as its program is long, for each
character. So the length of the program is bounded, and many or long ids are matched in a thread,
which does not hold the interpreter's lock meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any

from gateway.settings.re2_patterns import InvalidPattern, class_count, compile_pattern
from ledger.tasks import in_thread

__all__ = ["PATTERN_BYTES_MAX", "IdPattern", "InvalidPattern"]

PATTERN_BYTES_MAX = 1024
_CLASSES_MAX = 8  # compiled at once, in up to 0.3 ms each
_PROGRAM_MAX = 10_000  # instructions; a class such as all letters has about 1,000
_MEMORY_BYTES_MAX = 1024 * 1024  # of one compiled pattern
# Characters times instructions, at most 15 ns each.
_STEPS_INLINE_MAX = 500_000
_STEPS_PER_CALL = 50_000_000
_CALL_STEPS = 16  # what a call costs, in characters

Run = Callable[..., Coroutine[Any, Any, Any]]
"""Calls a function with arguments, and returns its result."""


class IdPattern:
    """A compiled pattern. It matches whole ids."""

    def __init__(self, pattern: str, run: Run = in_thread) -> None:
        """`run` calls a function without holding the event loop. Raises InvalidPattern."""
        if len(pattern.encode()) > PATTERN_BYTES_MAX:
            raise InvalidPattern(f"the pattern has more than {PATTERN_BYTES_MAX} bytes")
        if class_count(pattern) > _CLASSES_MAX:
            raise InvalidPattern(f"the pattern has more than {_CLASSES_MAX} Unicode classes")
        compiled = compile_pattern(pattern, _MEMORY_BYTES_MAX)
        self._program = int(compiled.programsize)
        if self._program > _PROGRAM_MAX:
            raise InvalidPattern("the pattern is too costly")
        self._full_match: Callable[[str], Any] = compiled.fullmatch
        self._run = run

    async def matching(self, names: Sequence[str]) -> list[str]:
        """Return the names that match. Other tasks run meanwhile."""
        if sum(map(self._steps, names)) <= _STEPS_INLINE_MAX:
            return self._match(names)
        found: list[str] = []
        for some in self._in_parts(names):
            found += await self._run(self._match, some)
        return found

    def _steps(self, name: str) -> int:
        return self._program * (_CALL_STEPS + len(name))

    def _in_parts(self, names: Iterable[str]) -> Iterator[list[str]]:
        part: list[str] = []
        steps = 0
        for name in names:
            part.append(name)
            steps += self._steps(name)
            if steps >= _STEPS_PER_CALL:
                yield part
                part, steps = [], 0
        if part:
            yield part

    def _match(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if self._full_match(name) is not None]
