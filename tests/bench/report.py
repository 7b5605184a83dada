"""Ratios of what both sides showed: a table for people, one object for machines.

Of several runs the worst counts: the smallest ratio where more is better, else the largest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

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

    def ratio(self, part: str, name: str, value: Value) -> float | None:
        ours, theirs = (
            self.rounds.get(("gateway", part, name)),
            self.rounds.get(("kafka", part, name)),
        )
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
    consumed = _over(runs, "consume", records, lambda _: True)
    line["consume_ratio"] = worst(consumed, more_is_better=True)
    speeds = [_start_ratio(run) for run in runs]
    line["start_ratio"] = worst(speeds, more_is_better=False)
    line["memory_ratio"] = worst([_memory_ratio(run) for run in runs], more_is_better=False)
    return line


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
        f"Start-up {line['start_ratio']}, largest resident memory {line['memory_ratio']}.",
    ]
    return "\n".join(rows)


def write_page(path: Path, page: str, runs: int) -> None:
    path.write_text(
        "# Benchmarks\n\n"
        "The gateway beside Apache Kafka 4.3 (KRaft, 1 GiB heap) on one machine of two cores, on "
        "the same disk, one after\nthe other, loaded by Kafka's own `ProducerPerformance` and "
        "`ConsumerPerformance` (acks=all, default settings).\nEvery figure is a ratio, ours / "
        f"Apache Kafka's, the worst of {runs} runs: below 1 is better for CPU, memory, latency\n"
        "and start-up, above 1 for records/s. `fsync`: both sync every acknowledged record "
        "(Kafka with\n`log.flush.interval.messages=1`); `nosync`: neither does. Measured by "
        f"`make bench`.\n\n{page}\n"
    )
