"""The errors with which a job fails."""

from __future__ import annotations

from gateway.pipelines.shared.partitions import OffsetRange


class JobError(Exception):
    """A failure that ends a job. The text names the remedy; `code` is for programs."""

    def __init__(self, message: str, code: str = "JOB_FAILED") -> None:
        super().__init__(message)
        self.code = code


class DataLost(JobError):
    """Records that a job needs have been deleted. `ranges` are their offsets."""

    def __init__(self, message: str, ranges: tuple[OffsetRange, ...]) -> None:
        super().__init__(message, "DATA_LOST")
        self.ranges = ranges
