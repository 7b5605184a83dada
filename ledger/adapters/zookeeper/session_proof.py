"""The time from which the leader of a ZooKeeper ensemble certainly counts a session's timeout.

The leader expires sessions. It learns that a session lives in two ways. When a client connects, the
leader itself validates the session. After that, a follower reports the sessions it heard of when it
answers the leader's ping, every half tick. A follower that is cut off from the leader goes on
answering its clients, also pings, for `syncLimit` ticks: its answers prove nothing.

A write is answered only after the leader has taken it from the follower, on the connection that
carries the reports. So an answered write proves each report before it, and with it each request
that was answered half a tick before the write was sent. A session lasts two ticks at least, unless
`minSessionTimeout` says otherwise, so half a tick is at most a quarter of the session.

Source: ZooKeeper, `LearnerHandler.java` (PING), `Follower.java`, `LearnerZooKeeperServer.java`,
`LeaderZooKeeperServer.java` (`checkIfValidGlobalSession`), `SessionTrackerImpl.java`.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

REPORTED_SHARE = 1 / 4  # of the session: the longest time between two reports of a follower


class _Write(NamedTuple):
    sent_s: float
    answered_s: float


class SessionProof:
    """The proof of one session. The times are the client's, on one monotonic clock."""

    __slots__ = ("_writes", "heard_s")

    def __init__(self) -> None:
        # The leader expires the session no earlier than its timeout after this. Never falls.
        self.heard_s = 0.0
        # Answered writes of this connection that no later write has proved yet, oldest first.
        self._writes: deque[_Write] = deque()

    def on_connected(self, sent_s: float) -> None:
        """Note that a server accepted the session, for a request that was sent then."""
        self._writes.clear()  # the earlier server may never report them
        self.heard_s = max(self.heard_s, sent_s)

    def on_written(self, sent_s: float, answered_s: float, session_s: float) -> None:
        """Note the answer of a write that was sent on the present connection."""
        reported_s = sent_s - session_s * REPORTED_SHARE
        writes = self._writes
        while writes and writes[0].answered_s <= reported_s:
            self.heard_s = max(self.heard_s, writes.popleft().sent_s)
        writes.append(_Write(sent_s, answered_s))
