"""How the compaction bench sees each cleaner: when a log is clean, and up to which offset."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tests.gateway.admin_commands import invoke
from tests.peers.broker import Broker


@dataclass(frozen=True, slots=True)
class Cleaned:
    """A log whose completed segments are all clean."""

    end_offset: int
    at_s: float  # seconds since 1970


def cleaned(broker: Broker, side: str, topic: str) -> Cleaned | None:
    """Return the state of a topic with one partition, or None while it has dirty segments."""
    return _by_kafka(broker, topic) if side == "kafka" else _by_gateway(broker, topic)


def _by_kafka(broker: Broker, topic: str) -> Cleaned | None:
    """Read the cleaner's checkpoint: it holds the first dirty offset of each partition."""
    logs = broker.data / "logs"
    checkpoint = logs / "cleaner-offset-checkpoint"
    if not checkpoint.exists():
        return None
    rows = [line.split() for line in checkpoint.read_text().splitlines()]
    dirty = next((int(row[2]) for row in rows if row[:2] == [topic, "0"]), 0)
    active = max(int(path.stem) for path in (logs / f"{topic}-0").glob("*.log"))
    return Cleaned(dirty, checkpoint.stat().st_mtime) if dirty >= active else None


def _by_gateway(broker: Broker, topic: str) -> Cleaned | None:
    code, out, errors = invoke("topic", "cleaning", topic, "-o", "json", bootstrap=broker.bootstrap)
    if code != 0:
        raise RuntimeError(errors)
    (row,) = json.loads(out) or ({"last_cleaned_ms": None},)
    if row["last_cleaned_ms"] is None or row["dirty_bytes"]:
        return None
    if row["error"]:
        raise RuntimeError(row["error"])
    return Cleaned(row["first_dirty_offset"], row["last_cleaned_ms"] / 1000)
