"""Security beside Apache Kafka 4.3, one after the other: one line of JSON for each row.

    make bench-security
    python -m tests.bench.security --runs 1 --rows quota

The rows:
- `quota`: a Java producer with a quota of 10 MB/s. The first hundred megabytes pass at once, as
  both windows allow; the rate afterwards is compared, without the last interval of the tool.
- `quotas-unused`: the CPU of a producer without a quota, while another client has one, against no
  quota at all. Only the gateway.

Each line has the worst of all runs, and whether it is within its bound.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.bench.sides import create_topic, java, new_side, produce
from tests.peers import java_tools
from tests.peers.broker import Broker
from tests.peers.install import CACHE

SIDES = ("kafka", "gateway")
QUOTA_BYTES_PER_S = 10_000_000
RECORD_BYTES = 1_000
BURST_S = 10  # of the quota: the window without its newest sample
MEASURED_S = 30
_INTERVAL_S = 5  # of the tool's reports
OFF_SHARE_MAX = 0.05
UNUSED_CPU_MAX = 1.02
UNUSED_RECORDS = 600_000
_INTERVAL = re.compile(r"^(\d+) records sent, ([\d.]+) records/sec \(", re.MULTILINE)

Row = dict[str, object]


def limit(broker: Broker, client: str, config: str) -> None:
    """Set a quota of a client id by Kafka's own tool."""
    place = ("--entity-type", "clients", "--entity-name", client)
    words = ("--bootstrap-server", broker.bootstrap, "--alter", *place, "--add-config", config)
    java(java_tools.CONFIGS, *words)


def held_bytes_per_s(broker: Broker) -> float:
    """Return the rate of a producer under the quota, once the burst is over."""
    topic = client = "limited"
    create_topic(broker, topic, 1)
    limit(broker, client, f"producer_byte_rate={QUOTA_BYTES_PER_S}")
    records = (BURST_S + MEASURED_S) * QUOTA_BYTES_PER_S // RECORD_BYTES
    said = java(
        java_tools.PRODUCER_PERFORMANCE,
        *("--topic", topic, "--num-records", str(records), "--record-size", str(RECORD_BYTES)),
        *("--throughput", "-1", "--bootstrap-server", broker.bootstrap),
        *("--command-property", "acks=all", f"client.id={client}"),
    )
    rates = [float(each[1]) for each in _INTERVAL.findall(said)]
    steady = rates[2:-1]  # the burst takes one interval, and what it left another
    assert len(steady) >= MEASURED_S // _INTERVAL_S - 3, said[-2_000:]
    return sum(steady) / len(steady) * RECORD_BYTES


def quota(scratch: Path, runs: int) -> Row:
    """Measure how far the rates of both sides are from the quota."""
    found: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(runs):
        for side in SIDES:
            with new_side(side, False, scratch / side) as broker:
                found[side].append(held_bytes_per_s(broker))
            shutil.rmtree(scratch / side, ignore_errors=True)
    off = {
        side: max((abs(rate / QUOTA_BYTES_PER_S - 1) for rate in rates), default=1.0)
        for side, rates in found.items()
    }
    return {
        "bytes_per_s": {side: [round(rate) for rate in rates] for side, rates in found.items()},
        "off_share": {side: round(share, 4) for side, share in off.items()},
        "within": off["gateway"] <= OFF_SHARE_MAX,
    }


def unused(scratch: Path, runs: int) -> Row:
    """Measure the CPU of a producer while another client has a quota, against none."""
    ratios: list[float] = []
    for _ in range(runs):
        with new_side("gateway", False, scratch / "gateway") as broker:
            create_topic(broker, "t", 1)
            produce(broker, "t", RECORD_BYTES, UNUSED_RECORDS // 10)
            without = min(_cpu_s_per_gb(broker) for _ in range(3))
            limit(broker, "another", f"producer_byte_rate={QUOTA_BYTES_PER_S}")
            ratios.append(min(_cpu_s_per_gb(broker) for _ in range(3)) / without)
        shutil.rmtree(scratch / "gateway", ignore_errors=True)
    worst = max(ratios)
    return {"cpu_ratio": round(worst, 3), "within": worst <= UNUSED_CPU_MAX}


def _cpu_s_per_gb(broker: Broker) -> float:
    return produce(broker, "t", RECORD_BYTES, UNUSED_RECORDS).cpu_s_per_gb


ROWS: dict[str, Callable[[Path, int], Row]] = {"quota": quota, "quotas-unused": unused}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Security beside Apache Kafka 4.3.")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rows", default=",".join(ROWS), help="names, with commas between them")
    asked = parser.parse_args(words)
    within = True
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        for name in asked.rows.split(","):
            row = ROWS[name](Path(scratch), asked.runs)
            within &= bool(row["within"])
            print(json.dumps({"bench": "security", "row": name, "runs": asked.runs, **row}))
            sys.stdout.flush()
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
