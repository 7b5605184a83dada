"""Replies of a cleaner process that is none, which vanish when the real ones would."""

from gateway.cleaning.slots import SLOTS


class SlotReplies:
    """What is in the slots. A request spoils the reply of the one `SLOTS` before it."""

    def __init__(self):
        self.requests = 0
        self.replies = {}

    def on_request(self):
        """Return what keeps the reply of a request that is made now."""
        number = self.requests
        self.requests += 1
        stale = self.replies.pop(number - SLOTS, None)
        if stale is not None:
            stale[:] = b"\xff" * len(stale)

        def keep(reply):
            self.replies[number] = bytearray(reply)
            return memoryview(self.replies[number])

        return keep
