"""Stays with a cluster on this machine, and starts again what ends. Source: Docker's restarts."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

from gateway.process.local_cluster.launcher import Launcher
from gateway.process.local_cluster.state import State, load, locked

_LOOK_S: Final = 0.2
_AGAIN_S, _AGAIN_S_MAX = 0.5, 10.0  # before a process that ended is started again
_STEADY_S: Final = 10.0  # a process that ran so long begins anew at the shortest wait


class Watch:
    """Restarts the processes of a cluster, each after a while that grows with its ends in a row."""

    def __init__(self, launcher: Launcher, on_line: Callable[[str], None]) -> None:
        self._launcher = launcher
        self._on_line = on_line
        self._ends: dict[str, int] = {}  # in a row, by name
        self._due_s: dict[str, float] = {}  # when what ended is started again
        self._started_s: dict[str, float] = {}

    def stay(self) -> None:
        """Return once this process is told to stop, or once another command stopped the cluster."""
        with _signals() as asked:
            while not asked and self._look():
                time.sleep(_LOOK_S)

    def _look(self) -> bool:
        """Start what is due. Return False if the cluster was stopped."""
        state = load(self._launcher.directory)
        if state is None or not state.processes:
            return False
        now_s = time.monotonic()
        for name in state.processes:
            if not state.alive(name):
                self._on_ended(state, name, now_s)
        return True

    def _on_ended(self, state: State, name: str, now_s: float) -> None:
        if name not in self._due_s:
            steady = now_s - self._started_s.get(name, 0.0) > _STEADY_S
            self._ends[name] = 0 if steady else self._ends.get(name, 0)
            self._due_s[name] = now_s + min(_AGAIN_S_MAX, _AGAIN_S * 2 ** self._ends[name])
        elif now_s >= self._due_s[name]:
            del self._due_s[name]
            self._ends[name] += 1
            self._start(name, now_s)

    def _start(self, name: str, now_s: float) -> None:
        with locked(self._launcher.directory):
            state = load(self._launcher.directory)  # another command may have been faster
            if state is None or name not in state.processes or state.alive(name):
                return
            # Not earlier: a process that was killed has no exit code until its last thread is gone.
            code = self._launcher.exit_code(name)
            process = self._launcher.start_again(state, name)
        self._started_s[name] = now_s
        how = "ended" if code is None else f"ended with {code}"
        self._on_line(f"{name} {how}, started again: pid {process.pid}")


@contextmanager
def _signals() -> Generator[list[int]]:
    """Yield a list that gets the signals which ask this process to stop."""
    asked: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda got, _: asked.append(got)) for number in numbers]
    try:
        yield asked
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
