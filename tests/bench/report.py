"""Ratios of what both sides showed: a table for people, one object for machines.

Of several runs the worst counts: the smallest ratio where more is better, else the largest.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from tests.bench.sides import Round

MORE_IS_BETTER = True
Value = Callable[[Round], float]


class Figures:
    """One run: rounds by side, part and configuration."""

    def __init__(self) -> None:
        self.rounds: dict[tuple[str, str, str], Round] = {}

    def add(self, side: str, part: str, name: str, measured: Round) -> None:
        self.rounds[side, part, name] = measured

    def names(self, part: str) -> list[str]:
        return [n for side, p, n in self.rounds if p == part and side == "gateway"]

    def ratio(self, part: str, name: str, value: Value, by: str = "kafka") -> float | None:
        """Return ours / the figure of the side `by` in the same part, or None."""
        return self.ratio_of_parts((part, part), name, value, by)

    def ratio_of_parts(
        self, parts: tuple[str, str], name: str, value: Value, by: str = "kafka"
    ) -> float | None:
        """Return ours in the first part / the figure of the side `by` in the second, or None."""
        ours = self.rounds.get(("gateway", parts[0], name))
        theirs = self.rounds.get((by, parts[1], name))
        if ours is None or theirs is None or not value(theirs):
            return None
        return value(ours) / value(theirs)


def records(measured: Round) -> float:
    return measured.records_per_s


def cpu(measured: Round) -> float:
    return measured.cpu_s_per_gb


def memory(measured: Round) -> float:
    return float(measured.resident_bytes)


def p50(measured: Round) -> float:
    return measured.p50_ms


def p99(measured: Round) -> float:
    return measured.p99_ms


def worst(ratios: Sequence[float | None], *, more_is_better: bool) -> float | None:
    known = [ratio for ratio in ratios if ratio is not None]
    if not known:
        return None
    return round(min(known) if more_is_better else max(known), 3)


def _over(
    runs: Sequence[Figures], part: str, value: Value, wanted: Callable[[str], bool]
) -> list[float | None]:
    return [
        run.ratio(part, name, value) for run in runs for name in run.names(part) if wanted(name)
    ]


def summary(runs: Sequence[Figures]) -> dict[str, str | float | None]:
    """The line for machines; a ratio is the worst of its pair over runs and partition counts."""
    line: dict[str, str | float | None] = {"bench": "broker"}
    for pair in ("fsync", "nosync"):
        for what, value, more in (("records", records, True), ("cpu", cpu, False)):
            for size in ("100", "1024"):
                found = _over(runs, pair, value, lambda n, s=size: n.startswith(f"{s}-"))
                line[f"{pair}_{what}_ratio_{size}"] = worst(found, more_is_better=more)
    for size in ("100", "1024"):
        found = [
            run.ratio_of_parts(("fsync", "nosync"), f"{size}-{partitions}", records)
            for run in runs
            for partitions in (1, 6)
        ]
        line[f"synced_vs_unsynced_ratio_{size}"] = worst(found, more_is_better=True)
    consumed = _over(runs, "consume", records, lambda _: True)
    line["consume_ratio"] = worst(consumed, more_is_better=True)
    speeds = [_start_ratio(run) for run in runs]
    line["start_ratio"] = worst(speeds, more_is_better=False)
    line["memory_ratio"] = worst([_memory_ratio(run) for run in runs], more_is_better=False)
    return line


def vs_before(runs: Sequence[Figures]) -> dict[str, dict[str, float | None]]:
    """Return ours / that of the other source tree, the worst of the runs, by part and load."""
    values = {"records": records, "cpu": cpu, "memory": memory, "p50": p50, "p99": p99}
    rounds = {(part, name) for run in runs for _, part, name in run.rounds}
    return {
        f"{part} {name}": {
            what: worst(
                [run.ratio(part, name, value, "before") for run in runs],
                more_is_better=what == "records",
            )
            for what, value in values.items()
        }
        for part, name in sorted(rounds)
    }


def _start_ratio(run: Figures) -> float | None:
    """Our slowest start by Kafka's fastest."""
    starts: dict[str, list[float]] = defaultdict(list)
    for (side, part, _), measured in run.rounds.items():
        if part == "start":
            starts[side].append(1 / measured.records_per_s)
    if len(starts) < 2:
        return None
    return max(starts["gateway"]) / min(starts["kafka"])


def _memory_ratio(run: Figures) -> float | None:
    """Our largest resident memory by Kafka's, over all rounds of the run."""
    largest: dict[str, float] = defaultdict(float)
    for (side, _, _), measured in run.rounds.items():
        largest[side] = max(largest[side], memory(measured))
    if not largest.get("kafka") or not largest.get("gateway"):
        return None
    return largest["gateway"] / largest["kafka"]


_COLUMNS = (("records/s", records, True), ("CPU s/GB", cpu, False), ("memory", memory, False))


def table(runs: Sequence[Figures]) -> str:
    """Markdown: a row per part and configuration, each cell the worst run's ratio."""
    rows = [
        "| part | record | partitions | records/s | CPU s/GB | memory |",
        "|---|---|---|---|---|---|",
    ]
    for part in ("fsync", "nosync", "consume"):
        for name in runs[0].names(part):
            size, partitions = name.split("-")
            cells = [
                worst([run.ratio(part, name, value) for run in runs], more_is_better=more)
                for _, value, more in _COLUMNS
            ]
            shown = " | ".join("-" if cell is None else f"{cell:.2f}" for cell in cells)
            rows.append(f"| {part} | {size} B | {partitions} | {shown} |")
    latency = [
        (run.ratio("latency", "1024-1", p50), run.ratio("latency", "1024-1", p99)) for run in runs
    ]
    middle = worst([pair[0] for pair in latency], more_is_better=False)
    tail = worst([pair[1] for pair in latency], more_is_better=False)
    line = summary(runs)
    rows += [
        "",
        f"Produce latency at 1,000 records/s (1 KiB, synced): p50 {middle}, p99 {tail}.",
        "Ours synced / Kafka unsynced, records/s: "
        f"100 B {line['synced_vs_unsynced_ratio_100']}, "
        f"1,024 B {line['synced_vs_unsynced_ratio_1024']}.",
        f"Start-up {line['start_ratio']}, largest resident memory {line['memory_ratio']}.",
    ]
    return "\n".join(rows)


def one_side(runs: Sequence[Figures], side: str) -> dict[str, str | float]:
    """The line for machines when one side ran alone: its figures in the last run."""
    line: dict[str, str | float] = {"bench": "broker", "target": side}
    for (_, part, name), measured in runs[-1].rounds.items():
        line[f"{part}_{name}_records_per_s"] = round(measured.records_per_s, 2)
        if measured.resident_bytes:
            line[f"{part}_{name}_cpu_s_per_gb"] = round(measured.cpu_s_per_gb, 2)
            line[f"{part}_{name}_resident_mb"] = round(measured.resident_bytes / 1e6)
    return line


def _middle(runs: Sequence[Figures], key: tuple[str, str, str], value: Value) -> float:
    return median(value(run.rounds[key]) for run in runs)


def _figures_row(runs: Sequence[Figures], part: str, name: str) -> str:
    size, partitions = name.split("-")
    cells = []
    for value, unit, digits in ((records, 1, 0), (cpu, 1, 1), (memory, 1e6, 0)):
        for side in ("gateway", "kafka"):
            figure = _middle(runs, (side, part, name), value) / unit
            cells.append(f"{figure:,.{digits}f}")
    both = [run.rounds[side, part, name] for run in runs for side in ("gateway", "kafka")]
    cells.append(f"{max(one.others_share for one in both):.0%}")
    return f"| {part} | {size} B | {partitions} | {' | '.join(cells)} |"


def absolute(runs: Sequence[Figures]) -> str:
    """Markdown: what both sides showed, the median of the runs."""
    rows = [
        "| part | record | partitions | records/s, ours | Kafka | CPU s/GB, ours | Kafka "
        "| MB, ours | Kafka | others' CPU, at most |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for part in ("fsync", "nosync", "consume"):
        rows += [_figures_row(runs, part, name) for name in runs[0].names(part)]
    key = ("latency", "1024-1")
    ours, theirs = (
        f"{_middle(runs, (side, *key), p50):.0f} / {_middle(runs, (side, *key), p99):.0f} ms"
        for side in ("gateway", "kafka")
    )
    starts = [
        _middle(runs, (side, "start", "1"), lambda one: 1 / one.records_per_s)
        for side in ("gateway", "kafka")
    ]
    return "\n".join(
        [
            *rows,
            "",
            f"Latency p50 / p99: ours {ours}, Kafka {theirs}. "
            f"Start-up: ours {starts[0]:.2f} s, Kafka {starts[1]:.2f} s.",
        ]
    )


def machine() -> str:
    """The machine in one line."""
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=60)
    version = re.search(r'"([^"]+)"', java.stderr)
    return (
        f"{os.cpu_count()} cores, Linux {platform.release().split('-')[0]}, "
        f"Python {platform.python_version()}, Java {version[1] if version else '?'}"
    )


def write_page(path: Path, runs: Sequence[Figures]) -> None:
    path.write_text(
        "# Benchmarks\n\n"
        "The gateway beside Apache Kafka 4.3 (KRaft, 1 GiB heap) on one machine, on "
        "the same disk, one after\nthe other, loaded by Kafka's own `ProducerPerformance` and "
        "`ConsumerPerformance` (acks=all, default settings).\nEvery ratio is ours / "
        f"Apache Kafka's, the worst of {len(runs)} runs: below 1 is better for CPU, memory, "
        "latency\nand start-up, above 1 for records/s. `fsync`: both sync every acknowledged "
        "record (Kafka with\n`log.flush.interval.messages=1`); `nosync`: neither does. A round "
        "is run twice and the first is thrown away.\nThe Java tools share the cores with the "
        f"broker, and are often what limits it. Written by `make bench`\non {machine()}.\n\n"
        f"## Ratios\n\n{table(runs)}\n\n"
        "## Figures behind them\n\n"
        "Medians of the runs. CPU and memory are those of the broker's whole process tree; the "
        "last column is\nwhat neither the broker nor the tool used of the machine (the kernel's "
        f"writing to disk is in it).\n\n{absolute(runs)}\n"
    )
