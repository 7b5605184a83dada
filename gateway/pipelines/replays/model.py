"""What is asked of a replay, and what it tells in the end."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gateway.pipelines.shared.files import join_path


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """What is asked for. `offsets`: per partition from, and up to but not including."""

    topic: str
    target: str
    start_ms: int | None = None
    end_ms: int | None = None
    offsets: Mapping[int, tuple[int, int]] | None = None
    create: bool = False
    codec: str = "none"
    stall_s_max: float = 120.0

    def line(self) -> str:
        """The same for the same records into the same topic."""
        asked = {
            "topic": self.topic,
            "to": self.target,
            "start_ms": self.start_ms,
            "end_ms": self.end_ms,
            "offsets": None if self.offsets is None else sorted(self.offsets.items()),
        }
        return json.dumps(asked, separators=(",", ":"))


class ReplayedPartition(NamedTuple):
    """One partition: `written` by this run, of `records` that are there now."""

    partition: int
    records: int
    written: int
    base_offset: int
    end_offset: int
    looks: int


class ReplayReport(NamedTuple):
    """`resumed`: an earlier run, or another one, had begun it."""

    topic: str
    target: str
    state: str
    resumed: bool
    partitions: tuple[ReplayedPartition, ...]


def default_state(directory: str, request: ReplayRequest) -> str:
    """Beside the archive's data, where readers do not look: one directory for each request."""
    digest = hashlib.sha256(request.line().encode()).hexdigest()[:16]
    return join_path(directory, "_replays", digest)
