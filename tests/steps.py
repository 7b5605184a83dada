"""Counts the steps of a piece of work: a measure of its cost that no other process disturbs."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class Steps:
    """The bytecodes of Python that were executed."""

    count = 0


@contextmanager
def counted() -> Iterator[Steps]:
    """Count the steps of all functions that are called inside, also while it is awaited."""
    steps = Steps()

    def on_step(_frame: Any, event: str, _arg: Any) -> Any:
        steps.count += event == "opcode"
        return on_step

    def on_call(frame: Any, _event: str, _arg: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return on_step

    before, collects = sys.gettrace(), gc.isenabled()
    gc.disable()  # finalizers and callbacks of a collection would count too
    sys.settrace(on_call)
    try:
        yield steps
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()


def steps_of(work: Callable[[], T]) -> tuple[int, T]:
    """Return how many steps `work` takes, and its result."""
    with counted() as steps:
        result = work()
    return steps.count, result
