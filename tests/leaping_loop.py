"""An event loop whose clock a test may put forward, so that long limits end at once."""

from __future__ import annotations

import asyncio

import pytest


class LeapingLoop(asyncio.SelectorEventLoop):
    """A loop with sockets whose clock is `leapt_s` seconds ahead of the system's."""

    leapt_s = 0.0

    def time(self) -> float:
        return super().time() + self.leapt_s


leaping = pytest.mark.real_loop(loop=LeapingLoop)
"""The mark of a test that runs on such a loop."""


def leap(seconds: float) -> None:
    """Let this time pass on the running loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, LeapingLoop)
    loop.leapt_s += seconds
