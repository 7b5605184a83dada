"""The delays that the wires of one client draw, and when the last of them is over."""

import asyncio


class WireDelays:
    """Delays of exponential distribution around `latency_s`, which the world changes."""

    def __init__(self, draw):
        self.draw = draw
        self.latency_s = 0.001
        self._last_s = 0.0

    def delay_s(self):
        """Return a delay that begins now."""
        drawn_s = self.draw.expovariate(1 / self.latency_s)
        self._last_s = max(self._last_s, asyncio.get_running_loop().time() + drawn_s)
        return drawn_s

    async def arrived(self):
        """Wait until everything has arrived that was on its way at the call."""
        await asyncio.sleep(max(0.0, self._last_s - asyncio.get_running_loop().time()))
