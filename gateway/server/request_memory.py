"""The memory that requests of all connections of one process share."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class RequestMemory:
    """Bytes of all requests that are being received or processed in this process.

    Large frames may take three quarters of this memory. So peers that send large frames slowly
    cannot keep other clients from sending small requests.
    """

    def __init__(self, total_bytes_max: int, frame_bytes_max: int) -> None:
        # Bytes taken and not given back. May exceed the total by the frames of one turn of the
        # loop.
        self.used_bytes = 0
        self._total_bytes_max = total_bytes_max
        # The limit on the memory of large frames in `admits`. A frame of the largest size always
        # fits.
        self._large_bytes_max = max(frame_bytes_max, total_bytes_max * 3 // 4)
        # Callbacks of connections that stopped reading for lack of memory. Each callback runs once.
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
        """Return `count` bytes. Notifies the waiting connections once the memory is not full."""
        self.used_bytes -= count
        assert self.used_bytes >= 0
        if self._waiting and not self.full:
            waiting, self._waiting = self._waiting, deque()
            for on_memory in waiting:
                on_memory()

    def wait(self, on_memory: Callable[[], None]) -> None:
        """Run `on_memory` once after bytes were returned.

        Other connections may have taken these bytes before `on_memory` runs.
        """
        self._waiting.append(on_memory)
