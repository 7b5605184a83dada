"""The memory that requests of all connections of one process share."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class RequestMemory:
    """Bytes of all requests that are being received or processed in this process.

    Large frames may take three quarters of it, so that peers that announce large frames and send
    them slowly cannot keep other clients from sending small requests.
    """

    def __init__(self, total_bytes_max: int, frame_bytes_max: int) -> None:
        # Bytes taken and not given back. May exceed the total by the frames of one turn.
        self.used_bytes = 0
        self._total_bytes_max = total_bytes_max
        # What `admits` compares with. At least one largest frame always fits.
        self._large_bytes_max = max(frame_bytes_max, total_bytes_max * 3 // 4)
        # Connections that stopped reading for lack of memory. Each entry runs once.
        self._waiting: deque[Callable[[], None]] = deque()

    @property
    def full(self) -> bool:
        return self.used_bytes >= self._total_bytes_max

    def admits(self, more_bytes: int) -> bool:
        """Return whether a large frame may take `more_bytes` now."""
        return self.used_bytes + more_bytes <= self._large_bytes_max

    def take(self, count: int) -> None:
        """Count `count` bytes as used."""
        self.used_bytes += count

    def give(self, count: int) -> None:
        """Return `count` bytes; notify the waiting connections once the memory is not full."""
        self.used_bytes -= count
        assert self.used_bytes >= 0
        if self._waiting and not self.full:
            waiting, self._waiting = self._waiting, deque()
            for on_memory in waiting:
                on_memory()

    def wait(self, on_memory: Callable[[], None]) -> None:
        """Run `on_memory` once after bytes were returned. Others may have taken them again."""
        self._waiting.append(on_memory)
