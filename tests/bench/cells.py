"""Figures of two sides by cell, and the worst ratio of several runs.

A cell is one load, such as `fsync 10 ms 100 B 1`; each has figures by name. More is better for the
figures whose name ends with `per_s`, less for all others. A figure whose name ends with `_ratio`
compares two loads of one side. One whose name ends with `_count` is shown and not compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

Figures = Mapping[str, float]
Ratios = dict[str, float]
OURS, THEIRS = "gateway", "kafka"


class Run:
    """The figures of one run, by side and cell."""

    def __init__(self) -> None:
        self.figures: dict[str, dict[str, Figures]] = {OURS: {}, THEIRS: {}}

    def add(self, side: str, cell: str, figures: Figures) -> None:
        self.figures[side][cell] = figures

    def ratios(self) -> dict[str, Ratios]:
        """Return ours / Apache Kafka's, for the cells and figures that both sides have."""
        found: dict[str, Ratios] = {}
        for cell, ours in self.figures[OURS].items():
            theirs = self.figures[THEIRS].get(cell, {})
            found[cell] = {
                name: value / theirs[name]
                for name, value in ours.items()
                if theirs.get(name) and not name.endswith("_count")
            }
        return found


def worst(name: str, values: Iterable[float]) -> float:
    """Return the worst of some ratios of the figure with this name, to three digits."""
    return round(min(values) if name.endswith("per_s") else max(values), 3)


def worst_cells(runs: Sequence[Run]) -> dict[str, Ratios]:
    """Return the worst ratio of each figure of each cell, over all runs."""
    every: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        for cell, ratios in run.ratios().items():
            for name, ratio in ratios.items():
                every.setdefault(cell, {}).setdefault(name, []).append(ratio)
    return {
        cell: {name: worst(name, values) for name, values in figures.items()}
        for cell, figures in every.items()
    }


def own_ratios(runs: Sequence[Run]) -> Ratios:
    """Return our own largest value of each figure that is a ratio by itself."""
    every: Ratios = {}
    for figures in (each for run in runs for each in run.figures[OURS].values()):
        for name, value in figures.items():
            if name.endswith("_ratio"):
                every[name] = max(every.get(name, 0.0), round(value, 3))
    return every


def worst_of_parts(cells: Mapping[str, Ratios]) -> Ratios:
    """Return the worst ratio of each figure over the cells of a part, the first word of a cell."""
    every: dict[tuple[str, str], list[float]] = {}
    for cell, ratios in cells.items():
        for name, ratio in ratios.items():
            every.setdefault((cell.split()[0], name), []).append(ratio)
    return {f"{part}_{name}": worst(name, values) for (part, name), values in every.items()}


def table(runs: Sequence[Run]) -> str:
    """Return all figures of the last run and the worst ratios, a line for each cell."""
    cells, last = worst_cells(runs), runs[-1].figures
    lines: list[str] = []
    for cell in {**last[OURS], **last[THEIRS]}:
        ours, theirs = last[OURS].get(cell, {}), last[THEIRS].get(cell, {})
        shown = [
            f"{name} {_shown(ours.get(name))} / {_shown(theirs.get(name))}"
            f" = {_shown(cells.get(cell, {}).get(name))}"
            for name in {**ours, **theirs}
        ]
        lines.append(f"{cell}: {', '.join(shown)}")
    return "\n".join(lines)


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.3g}"
