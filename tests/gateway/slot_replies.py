"""Replies of a cleaner process that is none, which vanish when the real ones would."""

from contextlib import contextmanager

from gateway.cleaning.slots import SLOTS


class SlotReplies:
    """The replies in the slots. Each request spoils the reply to the request `SLOTS` before it."""

    def __init__(self):
        self.requests = 0
        self.under_way = set()
        self.replies = {}

    @contextmanager
    def of_request(self):
        """Yield what keeps the reply of a request that is made now."""
        number = self.requests
        self.requests += 1
        assert number - SLOTS not in self.under_way, "the slot of another request is taken"
        stale = self.replies.pop(number - SLOTS, None)
        if stale is not None:
            stale[:] = b"\xff" * len(stale)

        def keep(reply):
            self.replies[number] = bytearray(reply)
            return memoryview(self.replies[number])

        self.under_way.add(number)
        try:
            yield keep
        finally:
            self.under_way.discard(number)
