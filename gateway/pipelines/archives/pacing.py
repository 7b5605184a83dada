"""The times and sizes of the commits of a job that follows its topics. Pure."""

from __future__ import annotations


class CommitPacer:
    """A decision for each round: commit now, or wait for more records.

    The size of a commit is estimated from the mean size of the records of this job, so the first
    commit is made at once.
    """

    def __init__(self, bytes_target: int, wait_s_max: float) -> None:
        """Prepare to commit about `bytes_target` bytes, or what arrived in `wait_s_max` seconds.

        0 turns a bound off. With neither, every round commits.
        """
        self._bytes_target = bytes_target
        self._wait_s_max = wait_s_max
        # The records and bytes of all commits so far.
        self._records = 0
        self._bytes = 0
        # The time at which records were first left for a later commit. None if none are left.
        self._waiting_since_s: float | None = None

    def limit(self, offsets_max: int) -> int:
        """Return the number of offsets of one commit, which is at most `offsets_max`."""
        if not self._bytes_target or not self._bytes:
            return offsets_max
        return max(1, min(offsets_max, self._bytes_target * self._records // self._bytes))

    def is_due(self, offsets_left: int, now_s: float) -> bool:
        """Return whether to commit now. `offsets_left` are all offsets that are not archived."""
        if not offsets_left or not (self._bytes_target or self._wait_s_max) or not self._records:
            return True
        if self._bytes_target and offsets_left * self._bytes >= self._bytes_target * self._records:
            return True
        if self._waiting_since_s is None:
            self._waiting_since_s = now_s
        return bool(self._wait_s_max) and now_s - self._waiting_since_s >= self._wait_s_max

    def on_committed(self, records: int, size: int) -> None:
        """Take the number of records and bytes of a commit."""
        self._records += records
        self._bytes += size
        self._waiting_since_s = None
