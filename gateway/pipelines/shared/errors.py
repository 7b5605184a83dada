"""Errors that end a job."""

from __future__ import annotations

from gateway.pipelines.shared.partitions import OffsetRange


class JobError(Exception):
    """A failure that ends a job. The text contains the remedy; `code` is for programs."""

    def __init__(self, message: str, code: str = "JOB_FAILED") -> None:
        super().__init__(message)
        self.code = code


class DataLost(JobError):
    """A failure because records that a job needs were deleted. `ranges` are the lost offsets."""

    def __init__(self, message: str, ranges: tuple[OffsetRange, ...]) -> None:
        super().__init__(message, "DATA_LOST")
        self.ranges = ranges
