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
    """What to replay. `offsets`: per partition the first offset, and the one after the last."""

    topic: str
    target: str
    start_ms: int | None = None
    end_ms: int | None = None
    offsets: Mapping[int, tuple[int, int]] | None = None
    create: bool = False
    codec: str = "none"
    stall_s_max: float = 120.0

    def line(self) -> str:
        """Encode the parts that identify the records and the target. Equal for equal replays."""
        fields = {
            "topic": self.topic,
            "to": self.target,
            "start_ms": self.start_ms,
            "end_ms": self.end_ms,
            "offsets": None if self.offsets is None else sorted(self.offsets.items()),
        }
        return json.dumps(fields, separators=(",", ":"))


class ReplayedPartition(NamedTuple):
    """One partition. This run wrote `written` of the `records` that the target now has.

    `looks` counts how often the writers located the end of the target.
    """

    partition: int
    records: int
    written: int
    base_offset: int
    end_offset: int
    looks: int


class ReplayReport(NamedTuple):
    """The result. `resumed` is true if another run had begun the replay."""

    topic: str
    target: str
    state: str
    resumed: bool
    partitions: tuple[ReplayedPartition, ...]


def default_state(directory: str, request: ReplayRequest) -> str:
    """Return the state directory of this request inside the archive, hidden from its readers."""
    digest = hashlib.sha256(request.line().encode()).hexdigest()[:16]
    return join_path(directory, "_replays", digest)
