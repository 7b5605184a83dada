"""The turns of streams that are opened at the same time, as the owner of many streams gives them.

The two parts of an opening wait for a turn each. What the first part reads tells the second one how
urgent it is.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol


class OpeningTurns(Protocol):
    """Lets the parts of one opening begin. Each context lasts until its part has ended."""

    def list_turn(self) -> AbstractAsyncContextManager[None]:
        """Wait until the list of segments may be read."""
        ...

    def recovery_turn(self, recency: int) -> AbstractAsyncContextManager[bool]:
        """Wait until the segments may be recovered. Yields whether the stream begins at once.

        `recency` rises with the time at which the newest segment in progress began. It is -1 if
        nothing is in progress. Nothing is fenced before.
        """
        ...


class AtOnce:
    """Turns without a wait, for the owner of one stream."""

    def __init__(self, *, begin: bool) -> None:
        self._begin = begin

    @asynccontextmanager
    async def list_turn(self) -> AsyncGenerator[None]:
        """See `OpeningTurns`."""
        yield

    @asynccontextmanager
    async def recovery_turn(self, recency: int) -> AsyncGenerator[bool]:
        """See `OpeningTurns`."""
        yield self._begin
