"""Ratios of what the sides showed: one line for machines, a page for people.

A ratio is one side's figure by another's of the same run. Of several runs the worst counts: the
smallest ratio where more is better, else the largest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tests.bench.cells import worst
from tests.bench.cluster.sides import BEFORE, KAFKA, OURS, SIDES, SYNCED_KAFKA, UNSYNCED
from tests.bench.cluster.stage import Cells

Run = dict[str, Cells]
"""The figures of one run, by side."""
RECORDS, CPU, MEMORY = "records_per_s", "cpu_s_per_gb", "memory_mb"
ROLES = ("gateways", "bookies", "zookeeper", "auditor")
RATES = ("400", "4000", "20000")
TITLES = {
    OURS: "ours",
    UNSYNCED: "ours, unsynced",
    BEFORE: "before",
    SYNCED_KAFKA: "Kafka, synced",
    KAFKA: "Kafka",
}


class Ratio(NamedTuple):
    """A figure of some cells, of one side by another."""

    figure: str
    cells: tuple[str, ...]
    of: str = OURS
    by: str = KAFKA


def _cells(parts: Sequence[str], size: int) -> tuple[str, ...]:
    return tuple(f"{part} {size}-{partitions}" for part in parts for partitions in (1, 6))


_JUST, _ALL_READS = ("written", "behind"), ("tail", "written", "behind", "far")
RATIOS = {
    "produce_100_vs_synced": Ratio(RECORDS, ("produce 100",), by=SYNCED_KAFKA),
    "produce_1024_vs_synced": Ratio(RECORDS, ("produce 1024",), by=SYNCED_KAFKA),
    "produce_100_vs_default": Ratio(RECORDS, ("produce 100",)),
    "produce_1024_vs_default": Ratio(RECORDS, ("produce 1024",)),
    "cpu_100_vs_synced": Ratio(CPU, ("produce 100",), by=SYNCED_KAFKA),
    "cpu_1024_vs_synced": Ratio(CPU, ("produce 1024",), by=SYNCED_KAFKA),
    "read_100": Ratio(RECORDS, _cells(_JUST, 100)),
    "read_1024": Ratio(RECORDS, _cells(_JUST, 1024)),
    "read_far_100": Ratio(RECORDS, _cells(("far",), 100)),
    "read_far_1024": Ratio(RECORDS, _cells(("far",), 1024)),
    "read_cpu_worst": Ratio(CPU, (*_cells(_ALL_READS, 100), *_cells(_ALL_READS, 1024))),
}
MORE_RATIOS = {
    "produce_100_unsynced": Ratio(RECORDS, ("produce 100",), UNSYNCED),
    "produce_1024_unsynced": Ratio(RECORDS, ("produce 1024",), UNSYNCED),
    "cpu_100_vs_default": Ratio(CPU, ("produce 100",)),
    "cpu_1024_vs_default": Ratio(CPU, ("produce 1024",)),
    "p99_100_vs_synced": Ratio("p99_ms", ("produce 100",), by=SYNCED_KAFKA),
    "p99_1024_vs_synced": Ratio("p99_ms", ("produce 1024",), by=SYNCED_KAFKA),
    **{f"cpu_rate_{rate}": Ratio(CPU, (f"rate {rate}",), by=SYNCED_KAFKA) for rate in RATES},
    **{f"cpu_rate_{rate}_vs_default": Ratio(CPU, (f"rate {rate}",)) for rate in RATES},
    **{f"p99_rate_{rate}": Ratio("p99_ms", (f"rate {rate}",), by=SYNCED_KAFKA) for rate in RATES},
    **{
        f"read_{part}_{size}": Ratio(RECORDS, _cells((part,), size))
        for part in ("written", "behind", "cold")
        for size in (100, 1024)
    },
    **{
        f"read_cpu_{part}_{size}": Ratio(CPU, _cells((part,), size))
        for part in (*_ALL_READS, "cold")
        for size in (100, 1024)
    },
    "pause": Ratio("pause_s", ("kill",)),
    **{f"cpu_rate_{rate}_vs_before": Ratio(CPU, (f"rate {rate}",), by=BEFORE) for rate in RATES},
    "gateway_lone_vs_before": Ratio("gateways_cpu_s_per_gb", ("rate 400",), by=BEFORE),
}


def _ratios(runs: Iterable[Run], wanted: Ratio) -> list[float]:
    found: list[float] = []
    for run in runs:
        for cell in wanted.cells:
            ours, theirs = (
                run.get(side, {}).get(cell, {}).get(wanted.figure)
                for side in (wanted.of, wanted.by)
            )
            if ours is not None and theirs:
                found.append(ours / theirs)
    return found


def worst_ratio(runs: Iterable[Run], wanted: Ratio) -> float | None:
    ratios = _ratios(runs, wanted)
    return worst(wanted.figure, ratios) if ratios else None


def _memory(run: Run) -> list[float]:
    """Return our largest memory by that of Kafka's default, over the loads that both had."""
    ours, theirs = run.get(OURS, {}), run.get(KAFKA, {})
    both = [cell for cell in ours if cell in theirs and MEMORY in theirs[cell]]
    largest, other = (max((side[c][MEMORY] for c in both), default=0.0) for side in (ours, theirs))
    return [largest / other] if other else []


def _figures(runs: Iterable[Run], side: str, part: str, name: str) -> list[float]:
    """Return the values of one figure in all cells of a part."""
    cells = [item for run in runs for item in run.get(side, {}).items()]
    return [each[name] for cell, each in cells if cell.split()[0] == part and name in each]


def core_speed(runs: Iterable[Run]) -> float | None:
    """Return the slowest speed of a core after a load by the fastest of the same run."""
    found: list[float] = []
    for run in runs:
        cells = [each for side in run.values() for each in side.values()]
        steps = [each["step_ns"] for each in cells if "step_ns" in each]
        found += [min(steps) / max(steps)] if steps else []
    return round(min(found), 2) if found else None


def _vs_before(runs: Sequence[Run]) -> dict[str, dict[str, float]]:
    """Return ours / that of the other tree: the worst ratio of the main figures of each cell."""
    names = (RECORDS, CPU, *(f"{role}_cpu_s_per_gb" for role in ROLES[:2]), MEMORY, "p99_ms")
    cells = {cell for run in runs for cell in run.get(BEFORE, {})}
    found = {
        cell: {name: worst_ratio(runs, Ratio(name, (cell,), by=BEFORE)) for name in names}
        for cell in sorted(cells)
    }
    return {
        cell: {name: value for name, value in each.items() if value is not None}
        for cell, each in found.items()
    }


def summary(runs: Sequence[Run], failed: Sequence[str]) -> dict[str, object]:
    """The line for machines; null for what did not run."""
    memory = [ratio for run in runs for ratio in _memory(run)]
    line: dict[str, object] = {"bench": "cluster"}
    line |= {name: worst_ratio(runs, wanted) for name, wanted in RATIOS.items()}
    line["memory"] = round(max(memory), 3) if memory else None
    line |= {name: worst_ratio(runs, wanted) for name, wanted in MORE_RATIOS.items()}
    in_time = _figures(runs, OURS, "tail", "in_time_share")
    lone = [
        run.get(OURS, {}).get("rate 400", {}).get("gateways_cpu_s_per_gb") or 0.0 for run in runs
    ]
    others = [
        figures.get("others_share", 0.0)
        for run in runs
        for cells in run.values()
        for figures in cells.values()
    ]
    line["tail_in_time"] = round(min(in_time), 4) if in_time else None
    line["gateway_lone_us"] = round(max(lone) * 1024 / 1e3) if any(lone) else None
    line["runs"] = len(runs)
    line["others_cpu_at_most"] = round(max(others, default=0.0), 2)
    line["core_speed_at_least"] = core_speed(runs)
    before = _vs_before(runs)
    return {**line, **({"vs_before": before} if before else {}), "failed": list(failed)}


_COLUMNS = (
    ("records/s", RECORDS, 0),
    ("p50 ms", "p50_ms", 1),
    ("p99 ms", "p99_ms", 1),
    ("CPU s/GB", CPU, 1),
    ("gateways", "gateways_cpu_s_per_gb", 1),
    ("bookies", "bookies_cpu_s_per_gb", 1),
    ("ZooKeeper", "zookeeper_cpu_s_per_gb", 1),
    ("auditor", "auditor_cpu_s_per_gb", 1),
    ("memory MB", MEMORY, 0),
    ("others", "others_share", 2),
    ("step ns", "step_ns", 0),
)


def _row(runs: Sequence[Run], cell: str, side: str) -> str | None:
    found = [run[side][cell] for run in runs if cell in run.get(side, {})]
    if not found:
        return None
    shown = [f"| {cell} | {TITLES[side]} "]
    for _, name, digits in _COLUMNS:
        values = [each[name] for each in found if name in each]
        shown.append(f"| {median(values):,.{digits}f} " if values else "| - ")
    return "".join([*shown, "|"])


def table(runs: Sequence[Run]) -> str:
    """Markdown: a row for each load and side, the medians of the runs."""
    names = ("load", "side", *(name for name, _, _ in _COLUMNS))
    rows = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    cells = list(dict.fromkeys(cell for run in runs for side in run.values() for cell in side))
    for cell in (each for each in cells if each not in ("idle", "kill")):
        rows += [row for side in SIDES if (row := _row(runs, cell, side)) is not None]
    return "\n".join(rows)


def largest_of_sides(runs: Sequence[Run], cell: str, figure: str, digits: int) -> str:
    """Return the largest value of each side."""
    words: list[str] = []
    for side in SIDES:
        found = [run.get(side, {}).get(cell, {}).get(figure) for run in runs]
        known = [each for each in found if each is not None]
        words += [f"{TITLES[side]} {max(known):.{digits}f}"] if known else []
    return ", ".join(words) or "not measured"


def read_runs(path: Path) -> list[Run]:
    """Return the runs that earlier calls kept in a file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def keep_runs(path: Path, runs: Iterable[Run]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(run) + "\n" for run in runs)
