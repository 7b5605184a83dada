"""Runs generators that yield after each step of a long computation and return its result."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TypeVar

_T = TypeVar("_T")


def result_of(steps: Generator[None, None, _T]) -> _T:
    """Run all steps without a pause. Returns their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


async def result_with_pauses(steps: Generator[None, None, _T]) -> _T:
    """Run all steps, and let other tasks run between two of them. Returns their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
        await asyncio.sleep(0)
