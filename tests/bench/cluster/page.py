"""The page of the bench's last result: what was compared, the ratios, the figures behind them."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.bench.cluster.loads import (
    BEHIND_PER_S,
    BEHIND_S,
    FAR_TIMES,
    TAIL_PER_S,
    cache_bytes,
)
from tests.bench.cluster.report import Run, largest_of_sides, summary, table
from tests.bench.report import machine

WIDTH = 108
WHAT = {
    "produce_100_vs_synced": "produce at saturation, 100 B, records/s, both synced",
    "produce_1024_vs_synced": "the same, 1 KiB",
    "produce_100_vs_default": "ours synced beside Kafka's default, 100 B",
    "produce_1024_vs_default": "the same, 1 KiB",
    "produce_100_unsynced": "neither synced, 100 B",
    "produce_1024_unsynced": "the same, 1 KiB",
    "cpu_100_vs_synced": "CPU of all servers per GB at saturation, both synced, 100 B",
    "cpu_1024_vs_synced": "the same, 1 KiB",
    "cpu_100_vs_default": "the same beside Kafka's default, 100 B",
    "cpu_1024_vs_default": "the same, 1 KiB",
    "p99_100_vs_synced": "p99 of that saturation, both synced, 100 B",
    "p99_1024_vs_synced": "the same, 1 KiB",
    "cpu_rate_400": "CPU of all servers at 400/s of 1 KiB, one by one, both synced",
    "cpu_rate_4000": "at 4,000/s of 1 KiB",
    "cpu_rate_20000": "at 20,000/s of 100 B",
    "cpu_rate_400_vs_default": "CPU at 400/s beside Kafka's default",
    "cpu_rate_4000_vs_default": "at 4,000/s",
    "cpu_rate_20000_vs_default": "at 20,000/s",
    "p99_rate_400": "p99 at 400/s, both synced",
    "p99_rate_4000": "at 4,000/s",
    "p99_rate_20000": "at 20,000/s",
    "read_100": "read what was just written (b, c), 100 B, records/s",
    "read_1024": "the same, 1 KiB",
    "read_far_100": "read far behind (d), page cache warm, 100 B",
    "read_far_1024": "the same, 1 KiB",
    "read_cpu_worst": "CPU of all servers per GB read (a to d), the worst of all",
    "memory": "largest memory of all servers (PSS)",
    "pause": "longest time without writes after kill -9 of a leader",
}
for _part, _name in {"written": "(b)", "behind": "(c)", "cold": "(d), page cache cold"}.items():
    WHAT |= {f"read_{_part}_{size}": f"read {_name}, {size} B" for size in (100, 1024)}
_READS = {"tail": "(a)", "written": "(b)", "behind": "(c)", "far": "(d)", "cold": "(d), cold"}
for _part, _name in _READS.items():
    WHAT |= {f"read_cpu_{_part}_{s}": f"CPU per GB read, {_name}, {s} B" for s in (100, 1024)}


def _paragraph(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_on_hyphens=False, break_long_words=False)


def _introduction(runs: Sequence[Run]) -> str:
    return (
        "The services of `make cluster` (three gateways, four bookies, ZooKeeper, an auditor) "
        "beside three brokers of Apache Kafka 4.3 (KRaft, each a controller too, replication "
        "factor 3, `min.insync.replicas=2`, 1 GiB heap each), in turn on one machine and one disk, "
        "each time on a new cluster. Three pairs: both sync every acknowledged record (Kafka with "
        "`log.flush.interval.messages=1`); neither does; ours synced beside Kafka's default. "
        "ZooKeeper does not sync, as `make cluster` starts it. CPU and memory are those of all "
        f"servers. A ratio is ours / Kafka's within one run, {_how_often(runs)}: above "
        "1 is better for records/s, below 1 for all else. The clients run on the same cores and "
        f"are often the limit. Written by `make bench-cluster` on {machine()}."
    )


def _loads() -> str:
    tails = ", ".join(f"{rate:,}/s of {size} B" for size, rate in TAIL_PER_S.items())
    rates = ", ".join(f"{rate:,}/s of {size} B" for size, rate in BEHIND_PER_S.items())
    return (
        "Saturation is Java's `ProducerPerformance` (acks=all, default settings, six partitions, "
        "warmed up). Fixed rates are offered by an open loop on librdkafka, in a process of its "
        "own: a record's latency runs from the moment it was due. Reads use one Java consumer with "
        "default settings, whose code is compiled before it counts, from one and from six "
        f"partitions: (a) at the end of a topic under {tails}, by librdkafka; (b) once the "
        f"producer has ended; (c) {BEHIND_S:.0f} s behind a producer at about half of saturation "
        f"({rates}), until it has caught up; (d) with {FAR_TIMES} times the "
        f"{cache_bytes() >> 20} MiB that all caches of our cluster hold written behind the topic, "
        "page cache warm on both sides, and cold on both. CPU of (a) and (c) includes the writes."
    )


def _how_often(runs: Sequence[Run]) -> str:
    """Say how often the loads ran. Those of one part are in some of the kept runs only."""
    counts = Counter((side, cell) for run in runs for side, cells in run.items() for cell in cells)
    least, most = min(counts.values()), max(counts.values())
    if most == 1:
        return "of the only run of each load"
    return f"the worst of {least} runs" if least == most else f"the worst of {least} to {most} runs"


def _ratios(runs: Sequence[Run]) -> str:
    line = summary(runs, [])
    rows = ["| what | worst ratio | key |", "|---|---|---|"]
    for key, what in WHAT.items():
        value = line.get(key)
        rows.append(f"| {what} | {'-' if value is None else value} | `{key}` |")
    return "\n".join(rows)


def _alone(runs: Sequence[Run]) -> str:
    line = summary(runs, [])
    pauses = largest_of_sides(runs, "kill", "pause_s", 2)
    idle = largest_of_sides(runs, "idle", "core_share", 3)
    return (
        f"Of the records of (a) at least {line['tail_in_time']} arrived within a second. "
        f"The gateways use at most {line['gateway_lone_us']} us of CPU for a record at 400/s, what "
        "they use at rest included. All servers at rest use this share of a core, at most: "
        f"{idle}. Longest time without writes after kill -9 of a leader, in seconds: {pauses}."
    )


def write_page(path: Path, runs: Sequence[Run]) -> None:
    parts = [
        "# Benchmarks of the cluster",
        _paragraph(_introduction(runs)),
        _paragraph(_loads()),
        "## Ratios",
        _ratios(runs),
        _paragraph(_alone(runs)),
        "## Figures behind them",
        _paragraph(
            "Medians of the runs. The columns from gateways to auditor are the shares of our CPU. "
            "`others` is the share of the machine's CPU that neither servers nor clients used (the "
            "kernel's writing to disk is in it). `step ns` is the CPU time of a step of a fixed "
            "loop after the load: cores that are shared with other machines slow down, and then "
            "the same work costs more. A load's name ends with its record size and its partitions."
        ),
        table(runs),
    ]
    path.write_text("\n\n".join(parts) + "\n")
