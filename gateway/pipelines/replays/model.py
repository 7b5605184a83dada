"""The request for a replay, and its report."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gateway.pipelines.shared.files import join_path


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """The records to replay, and the target.

    `offsets` maps a partition to its first offset and the offset after its last one.
    """

    topic: str
    target: str
    start_ms: int | None = None
    end_ms: int | None = None
    offsets: Mapping[int, tuple[int, int]] | None = None
    create: bool = False
    codec: str = "none"
    stall_s_max: float = 120.0

    def line(self) -> str:
        """Encode the fields that identify the records and the target.

        Equal replays have equal lines.
        """
        fields = {
            "topic": self.topic,
            "to": self.target,
            "start_ms": self.start_ms,
            "end_ms": self.end_ms,
            "offsets": None if self.offsets is None else sorted(self.offsets.items()),
        }
        return json.dumps(fields, separators=(",", ":"))


class ReplayedPartition(NamedTuple):
    """The result for one partition. The target now has `records`; this run wrote `written` of them.

    `looks` counts how often the writers looked up the end offset of the target.
    """

    partition: int
    records: int
    written: int
    base_offset: int
    end_offset: int
    looks: int


class ReplayReport(NamedTuple):
    """The result of a run. `resumed` is true if an earlier run began the replay."""

    topic: str
    target: str
    state: str
    resumed: bool
    partitions: tuple[ReplayedPartition, ...]


def default_state(directory: str, request: ReplayRequest) -> str:
    """Return the state directory of this request: a hidden directory inside the archive."""
    digest = hashlib.sha256(request.line().encode()).hexdigest()[:16]
    return join_path(directory, "_replays", digest)
