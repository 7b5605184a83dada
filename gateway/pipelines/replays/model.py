"""The request for a replay, and its report."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """The records to replay, and the target.

    `offsets` maps a partition to its first offset and the offset after its last one. With `extend`,
    a replay that has ended continues with the records that were archived since its last plan.
    """

    topic: str
    target: str
    start_ms: int | None = None
    end_ms: int | None = None
    offsets: Mapping[int, tuple[int, int]] | None = None
    create: bool = False
    codec: str = "none"
    stall_s_max: float = 120.0
    append: bool = False  # write after the records that the target already has
    extend: bool = False
    cluster: str = ""  # the id of the target's cluster
    transactional: bool = False  # one transaction for each chunk

    def line(self) -> str:
        """Encode the fields that identify the records and the target.

        Equal replays have equal lines.
        """
        fields: dict[str, Any] = {
            "topic": self.topic,
            "cluster": self.cluster,
            "to": self.target,
            "start_ms": self.start_ms,
            "end_ms": self.end_ms,
            "offsets": None if self.offsets is None else sorted(self.offsets.items()),
        }
        kind = {"transactional": True} if self.transactional else {}
        return json.dumps(fields | kind, separators=(",", ":"))

    def digest(self) -> str:
        """Return a short name of the replay. Equal replays have equal names."""
        return hashlib.sha256(self.line().encode()).hexdigest()[:16]


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
    """The result of a run.

    `resumed` is true if an earlier run began the replay. `partitions` describe the plan of that
    `number`; earlier plans have `earlier` records. This run wrote `written` records. `beyond`
    counts the archived offsets that no plan covers. `unproved` counts records in the files that
    were read, which an archive without sums could not prove.
    """

    topic: str
    target: str
    state: str
    resumed: bool
    partitions: tuple[ReplayedPartition, ...]
    written: int
    number: int = 1
    earlier: int = 0
    beyond: int = 0
    unproved: int = 0

    @property
    def records(self) -> int:
        """The number of records of all plans, which the target now has."""
        return self.earlier + sum(each.records for each in self.partitions)
