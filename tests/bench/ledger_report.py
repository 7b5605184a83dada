"""Ratios and figures of the ledger bench: a table for people, one object for machines.

Rounds are paired: ours of a round by Apache BookKeeper's of the same round. The worst round is
the smallest ratio where more is better, else the largest.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.bench.ledger_sides import IN_FLIGHT, Loaded
from tests.bench.report import machine

SIZES = {"1k": 1024, "16k": 16 * 1024, "128k": 128 * 1024}
READ_SIZE, SINGLE_SIZE = "16k", "1k"
SideRound = dict[str, Loaded]
"""One side in one round, by size."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One round: both sides."""

    ours: SideRound
    apache: SideRound


@dataclass(frozen=True, slots=True)
class Figure:
    """One number that a round shows of a side."""

    key: str  # of its ratio in the line for machines
    what: str
    of: Callable[[SideRound], float]
    more_is_better: bool
    digits: int = 0

    def ratios(self, pairs: Sequence[Pair]) -> list[float]:
        return [self.of(pair.ours) / self.of(pair.apache) for pair in pairs]

    def worst(self, pairs: Sequence[Pair]) -> float:
        ratios = self.ratios(pairs)
        return round(min(ratios) if self.more_is_better else max(ratios), 3)


def _adds(size: str) -> Figure:
    return Figure(
        f"adds_ratio_{size}",
        f"adds/s, {SIZES[size] // 1024} KiB",
        lambda one: one[size].said["adds_per_s"],
        True,
    )


def _single(key: str, what: str, ratio: str = "") -> Figure:
    return Figure(
        ratio, f"one add alone, ms, {what}", lambda one: one[SINGLE_SIZE].said[key], False, 2
    )


def _megabytes(one: SideRound) -> float:
    return max(loaded.memory_bytes for loaded in one.values()) / 1e6


def _cpu(one: SideRound) -> float:
    """Of the servers, per GB added and read, all loads together."""
    seconds = sum(loaded.server_cpu_s for loaded in one.values())
    return seconds / (sum(_bytes(loaded) for loaded in one.values()) / 1e9)


def _bytes(loaded: Loaded) -> float:
    counts = (loaded.said.get(part, 0) for part in ("adds", "single_adds", "reads"))
    return sum(counts) * loaded.said["entry_bytes"]


FIGURES = (
    *map(_adds, SIZES),
    Figure("reads_ratio_16k", "reads/s, 16 KiB", lambda one: one["16k"].said["reads_per_s"], True),
    Figure(
        "single_add_ratio",
        "one add alone, ms, mean",
        lambda one: one[SINGLE_SIZE].said["single_ms_mean"],
        False,
        2,
    ),
    _single("single_ms_p50", "p50", "single_p50_ratio"),
    _single("single_ms_p99", "p99"),
    Figure("memory_ratio", "largest memory of the servers, MB", _megabytes, False),
    Figure("cpu_ratio", "CPU of the servers, s per GB added and read", _cpu, False, 1),
)


def ratios(pairs: Sequence[Pair]) -> dict[str, float]:
    """Return the worst round's ratio of each figure with a key."""
    return {one.key: one.worst(pairs) for one in FIGURES if one.key}


def summary(pairs: Sequence[Pair]) -> dict[str, str | float]:
    """The line for machines: the worst round's ratios."""
    return {"bench": "ledger", **ratios(pairs)}


def table(pairs: Sequence[Pair]) -> str:
    """Markdown: a row per figure; ratios of the rounds, then what both sides showed."""
    rows = [
        "| | ratio, worst round | median | ours, median | Apache BookKeeper |",
        "|---|---|---|---|---|",
    ]
    for one in FIGURES:
        ours = median(one.of(pair.ours) for pair in pairs)
        theirs = median(one.of(pair.apache) for pair in pairs)
        shown = f"{ours:,.{one.digits}f} | {theirs:,.{one.digits}f}"
        rows.append(
            f"| {one.what} | {one.worst(pairs):.2f} | {median(one.ratios(pairs)):.2f} | {shown} |"
        )
    return "\n".join(rows)


def _throughput(pairs: Sequence[Pair]) -> str:
    """MB/s added, of both sides, in one sentence."""
    words: list[str] = []
    for size, entry_bytes in SIZES.items():
        ours, theirs = (
            median(side(pair)[size].said["adds_per_s"] for pair in pairs) * entry_bytes / 1e6
            for side in (lambda pair: pair.ours, lambda pair: pair.apache)
        )
        words.append(f"{entry_bytes // 1024} KiB {ours:.0f} / {theirs:.0f}")
    return f"MB/s added, ours / Apache BookKeeper's, each stored three times: {', '.join(words)}."


def _around(pairs: Sequence[Pair]) -> str:
    loads = [one for pair in pairs for side in (pair.ours, pair.apache) for one in side.values()]
    zookeeper = max(one.zookeeper_bytes for pair in pairs for one in pair.ours.values())
    return (
        f"Of our memory {zookeeper / 1e6:.0f} MB are ZooKeeper's; Apache BookKeeper's process "
        "holds its own ZooKeeper too. Of the machine's CPU at most "
        f"{max(one.others_share for one in loads):.0%} went to neither servers nor client (the "
        "kernel's writing to disk is in it)."
    )


def _introduction(rounds: int) -> str:
    return (
        "Three bookies and a ZooKeeper on one machine and one disk, beside Apache BookKeeper "
        "4.17.2 (its `LocalBookKeeper`: the same in one JVM, 1 GiB heap as its start script gives "
        "it, journal synced as by default). Ledgers have E 3, Qw 3, Qa 2 and CRC32C digests. The "
        "client is a process of its own on the same cores: "
        "[ours](../tests/bench/ledger_load.py) through gRPC, "
        "[Apache BookKeeper's](../tests/bench/java/BookKeeperLoad.java) in Java with its throttle "
        f"off. {IN_FLIGHT} adds are in flight, or one alone; reads go through a closed ledger in "
        f"order, {IN_FLIGHT} entries in flight, just written and so from memory on both sides. "
        "Every part runs once before it counts. Sides take turns, each with a new cluster; a "
        f"ratio is ours / theirs within one of {rounds} rounds: above 1 is better for adds/s and "
        f"reads/s, below 1 for the rest. Written by `make bench-ledger` on {machine()}."
    )


def write_page(path: Path, pairs: Sequence[Pair]) -> None:
    def lines(text: str) -> str:
        return textwrap.fill(text, 108, break_long_words=False, break_on_hyphens=False)

    parts = [
        "# Benchmarks of the ledger tier",
        lines(_introduction(len(pairs))),
        table(pairs),
        lines(_throughput(pairs)),
        lines(_around(pairs)),
    ]
    path.write_text("\n\n".join(parts) + "\n")
