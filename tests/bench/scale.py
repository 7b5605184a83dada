"""How a gateway grows with groups and with partitions, and how long another one takes over.

    make bench-scale                                              three sizes of each
    python -m tests.bench.scale --groups 100,1000 --partitions "" --no-rest

Every size runs on a new cluster on loopback: ZooKeeper, three bookies, one gateway; a second
gateway starts, the first is killed (`kill -9`) and the second is asked until it answers for all.
Times count from the kill, so ZooKeeper's session timeout is in them. Between two sizes the growth
is told for each unit more. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.bench import scale_groups, scale_partitions
from tests.bench.scale_cluster import SESSION_MS
from tests.peers.install import CACHE

GROUPS, PARTITIONS = "1000,10000,100000", "100,1000,10000"
BUDGET_S = 900.0


def growth(sizes: list[dict[str, Any]], unit: str, columns: dict[str, float]) -> list[dict]:
    """For each pair of sizes: how much of each column one unit more has cost, times its scale."""
    grown: list[dict[str, Any]] = []
    for small, large in pairwise(sizes):
        more = large[unit] - small[unit]
        row: dict[str, Any] = {"from": small[unit], "to": large[unit]}
        for column, scale in columns.items():
            if more and column in small and column in large:
                row[column] = round((large[column] - small[column]) * scale / more, 3)
        grown.append(row)
    return grown


GROUP_GROWTH = {
    "held_mb": 1e6,
    "rest_mb": 1e6,
    "loaded_mb": 1e6,
    "load_last_s": 1e3,
    "rest_load_last_s": 1e3,
}
PARTITION_GROWTH = {
    "held_mb": 1e6,
    "used_mb": 1e6,
    "loaded_mb": 1e6,
    "metadata_p50_ms": 1e3,
    "takeover_last_s": 1e3,
}
SAID = {
    "held_mb": "bytes held",
    "used_mb": "bytes with a record",
    "rest_mb": "bytes at rest",
    "loaded_mb": "bytes after takeover",
    "load_last_s": "ms to load",
    "rest_load_last_s": "ms to load at rest",
    "metadata_p50_ms": "us of Metadata",
    "takeover_last_s": "ms of takeover",
}


def show(unit: str, sizes: list[dict[str, Any]], grown: list[dict[str, Any]]) -> None:
    """The figures of each size, then what one unit more costs."""
    if not sizes:
        return
    names = list(dict.fromkeys(name for size in sizes for name in size))
    for name in names:
        print(f"{name:<22}", *(f"{size.get(name, '-'):>12,}" for size in sizes))
    for row in grown:
        each = ", ".join(f"{row[key]:g} {words}" for key, words in SAID.items() if key in row)
        print(f"each of {unit} {row['from']:,} to {row['to']:,}: {each}")
    print()


def counts(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word]


async def measured(asked: argparse.Namespace, scratch: Path, tree: Path | None) -> dict[str, Any]:
    """Every size of one side, smallest first."""
    groups: list[dict[str, Any]] = []
    for count in asked.groups:
        scale = scratch / f"groups-{count}"
        groups.append(
            await scale_groups.measure(
                scale, count, asked.budget, rest=not asked.no_rest, tree=tree
            )
        )
        print(json.dumps({"groups": groups[-1]}), file=sys.stderr, flush=True)
    partitions: list[dict[str, Any]] = []
    for count in asked.partitions:
        scale = scratch / f"partitions-{count}"
        partitions.append(
            await scale_partitions.measure(
                scale, count, asked.budget, unused=asked.unused, tree=tree
            )
        )
        print(json.dumps({"partitions": partitions[-1]}), file=sys.stderr, flush=True)
    group_growth = growth(groups, "groups", GROUP_GROWTH)
    partition_growth = growth(partitions, "partitions", PARTITION_GROWTH)
    show("groups", groups, group_growth)
    show("partitions", partitions, partition_growth)
    return {
        "groups": groups,
        "each_group": group_growth,
        "partitions": partitions,
        "each_partition": partition_growth,
    }


def ratios(now: dict[str, Any], before: dict[str, Any]) -> dict[str, float]:
    """The largest size of this tree over that of the tree before it."""
    found: dict[str, float] = {}
    if now["partitions"] and before["partitions"]:
        last_s = before["partitions"][-1]["takeover_last_s"]
        found["takeover_vs_before"] = now["partitions"][-1]["takeover_last_s"] / last_s
        found["asked_p99_vs_before"] = now["partitions"][-1]["asked_p99_s"] / last_s
    if now["groups"] and before["groups"]:
        found["load_vs_before"] = (
            before["groups"][-1]["loads_per_s"] / now["groups"][-1]["loads_per_s"]
        )
    return {name: round(ratio, 4) for name, ratio in found.items()}


async def run(asked: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """This tree, and the one before it if it is asked for."""
    result = {"bench": "scale", "session_ms": SESSION_MS}
    if asked.before is None:
        return result | await measured(asked, scratch, None)
    before = await measured(asked, scratch / "before", asked.before.resolve())
    now = await measured(asked, scratch / "now", None)
    return result | now | {"before": before} | ratios(now, before)


def main() -> int:
    """Run, print figures and growth, and one line of JSON."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--groups", type=counts, default=GROUPS, help="sizes, with commas")
    words.add_argument("--partitions", type=counts, default=PARTITIONS, help="sizes, with commas")
    words.add_argument("--budget", type=float, default=BUDGET_S, help="seconds, of each part")
    words.add_argument("--no-rest", action="store_true", help="do not wait until groups rest")
    words.add_argument("--before", type=Path, help="a tree whose servers are measured first")
    words.add_argument("--unused", action="store_true", help="write to no partition before")
    asked = words.parse_args()
    CACHE.mkdir(exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="bench-scale-", dir=CACHE))
    try:
        print(json.dumps(asyncio.run(run(asked, scratch))))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
