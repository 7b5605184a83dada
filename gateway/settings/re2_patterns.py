"""Compiles patterns of clients with RE2, which has the syntax of the RE2/J of Kafka.

A pattern matches in linear time, and a bound on the memory of its program bounds the time to
compile it. Callers bound the length of the text, and what RE2 expands before it compiles: Unicode
classes and counted repetitions.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

_CLASS = re.compile(r"\\[pP]")


class InvalidPattern(Exception):
    """A text that is not a pattern, or one that is too long or too costly."""


def class_count(pattern: str) -> int:
    """Return how many Unicode classes a pattern names. Each takes up to 0.3 ms to compile."""
    return len(_CLASS.findall(pattern))


def compile_pattern(pattern: str, memory_bytes_max: int) -> Any:
    """Return the pattern of RE2, without captures. Raises InvalidPattern."""
    re2: Any = import_module("re2")
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True  # matching with captures is slow
    options.max_mem = memory_bytes_max
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise InvalidPattern(_reason(error)) from error
    finally:
        re2.purge()  # the module would keep 128 patterns of clients


def _reason(error: Exception) -> str:
    """Return the text of an error of RE2, which has it as bytes."""
    (text,) = error.args or ("",)
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)
