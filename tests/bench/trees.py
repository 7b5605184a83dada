"""Plain produce and consume of this tree and of another one, in short rounds that take turns.

    python -m tests.bench.trees --before DIR [--after DIR] [--rounds 9] [--cell 1024-6]
    python -m tests.bench.trees --synced --before . --before-io off --cell 1024-lone

Two rounds of one tree differ by more than a few percent, so many rounds are compared. Each round
has a new gateway, which warms up; it syncs only with `--synced`. A producer of the cell `1024-lone`
waits for each record. Printed are the medians of both trees with their quartiles, and the ratios of
the medians: this tree, or the one `--after`, divided by the one `--before`. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.sides import BEFORE, Round, consume, create_topic, new_side, produce
from tests.peers.broker import Broker
from tests.peers.install import CACHE

CELLS = {"100-1": (100, 1), "100-6": (100, 6), "1024-1": (1024, 1), "1024-6": (1024, 6)}
_LONE = "1024-lone"
_ONE_BY_ONE = ("batch.size=1", "linger.ms=0", "max.in.flight.requests.per.connection=1")
_MB, _WARM_MB = 200, 50
_LONE_MB, _LONE_WARM_MB = 8, 2
_SIDES = ("gateway", BEFORE)
_WORK = ("produce", "consume")
Rounds = dict[tuple[str, str], list[Round]]


@dataclass(frozen=True, slots=True)
class Tree:
    """A side: a source tree, None for this one, and the flags of its gateways."""

    path: Path | None
    flags: tuple[str, ...] = ()
    synced: bool = False

    def gateway(self, data: Path) -> Broker:
        """Return a new gateway, not started."""
        side = "gateway" if self.path is None else BEFORE
        return new_side(side, self.synced, data, self.path, self.flags)


def one_round(tree: Tree, cell: str, data: Path) -> dict[str, Round]:
    """Measure a new gateway of a tree and remove it with its data."""
    lone = cell == _LONE
    record_bytes, partitions = (1024, 1) if lone else CELLS[cell]
    sizes = (_LONE_MB, _LONE_WARM_MB) if lone else (_MB, _WARM_MB)
    count, warm = (mb * 1_000_000 // record_bytes for mb in sizes)
    words = tuple(word for key in _ONE_BY_ONE for word in ("--command-property", key))
    with tree.gateway(data) as broker:
        create_topic(broker, "plain", partitions)
        produce(broker, "plain", record_bytes, warm)
        produced = produce(broker, "plain", record_bytes, count, -1, *(words if lone else ()))
        consume(broker, "plain", record_bytes, warm)
        consumed = consume(broker, "plain", record_bytes, warm + count)
    shutil.rmtree(data)
    return {"produce": produced, "consume": consumed}


def measure(cell: str, trees: dict[str, Tree], count: int, scratch: Path) -> Rounds:
    """Return the rounds of both trees, by side."""
    rounds: Rounds = {(side, work): [] for side in _SIDES for work in _WORK}
    for number in range(2 * count):
        side = _SIDES[(number + number // 2) % 2]  # ours, theirs, theirs, ours
        for work, done in one_round(trees[side], cell, scratch / f"{cell}-{number}").items():
            rounds[side, work].append(done)
    return rounds


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median and the quartiles."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return middle, low, high


def compared(rounds: Rounds, work: str, cell: str) -> dict[str, float]:
    """Print both trees' medians and quartiles. Returns the ratios of the medians."""
    middles: list[tuple[float, float]] = []
    for side in _SIDES:
        done = rounds[side, work]
        per_s, low, high = _spread([each.records_per_s for each in done])
        cpu, least, most = _spread([each.cpu_s_per_gb for each in done])
        others = max(each.others_share for each in done)
        middles.append((per_s, cpu))
        print(
            f"{work} {cell:7}{side:8} {per_s:9,.0f}/s ({low:,.0f} to {high:,.0f}), "
            f"{cpu:5.2f} CPU s/GB ({least:.2f} to {most:.2f}), others up to {others:.0%}",
            flush=True,
        )
    (ours, cpu), (theirs, their_cpu) = middles
    named = f"{work}_{cell}"
    return {named: round(ours / theirs, 3), f"{named}_cpu": round(cpu / their_cpu, 3)}


def _io(mode: str | None) -> tuple[str, ...]:
    return ("--io", mode) if mode else ()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="the other source tree")
    parser.add_argument("--after", type=Path, help="a source tree in place of this one")
    parser.add_argument("--rounds", type=int, default=9, help="of each tree and cell [9]")
    parser.add_argument(
        "--cell", choices=[*CELLS, _LONE], action="append", help="only this one [all but the last]"
    )
    parser.add_argument("--synced", action="store_true", help="sync what is acknowledged")
    for side in ("before", "after"):
        parser.add_argument(f"--{side}-io", choices=("auto", "uring", "off"), help="its `--io`")
    asked = parser.parse_args()
    trees = {
        "gateway": Tree(asked.after, _io(asked.after_io), asked.synced),
        BEFORE: Tree(asked.before, _io(asked.before_io), asked.synced),
    }
    line: dict[str, object] = {
        "bench": "trees",
        "before": asked.before.resolve().name,
        "rounds": asked.rounds,
    }
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="trees-", dir=CACHE) as scratch:
        for cell in asked.cell or CELLS:
            rounds = measure(cell, trees, asked.rounds, Path(scratch))
            for work in _WORK:
                line |= compared(rounds, work, cell)
    print(json.dumps(line))


if __name__ == "__main__":
    main()
