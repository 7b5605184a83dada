"""What one client costs the others, beside Apache Kafka 4.3 in the same run.

    make bench-neighbours
    python -m tests.bench.neighbours --only wide --target gateway

(a) A producer that waits for each acknowledgement, beside 0, 1 and 5 consumers of 100 and of 1,000
partitions: the share of its own rate that it keeps. (b) The longest time that an honest client
waits during each hostile request. (c) The largest resident memory during each.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from tests.bench.neighbours_hostile import ATTACKS, Attacked, attacked, prepare
from tests.bench.neighbours_wide import CONSUMERS, WIDTHS, rates
from tests.bench.sides import BEFORE, new_side
from tests.peers.install import CACHE

SIDES = ("kafka", "gateway")
PARTS = ("wide", "hostile")
MOST, WIDEST = max(CONSUMERS), max(WIDTHS)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def wide(side: str, scratch: Path, before: Path | None) -> dict[int, float]:
    """Return the share kept beside the most consumers, by partitions."""
    kept: dict[int, float] = {}
    with new_side(side, True, scratch / f"{side}-wide", before) as broker:
        for width in WIDTHS:
            found = rates(broker, width)
            kept[width] = found[MOST] / found[0]
            beside = ", ".join(f"{count} consumers {rate:.0f}/s" for count, rate in found.items())
            say(f"{side}, {width} partitions: {beside}; keeps {kept[width]:.1%}")
    return kept


def hostile(side: str, scratch: Path, before: Path | None) -> dict[str, Attacked]:
    """Return what each attack did to a broker that was started anew."""
    found: dict[str, Attacked] = {}
    for attack in ATTACKS:
        data = scratch / f"{side}-{attack.__name__}"
        with new_side(side, True, data, before) as broker:
            prepare(broker)
            name = attack.__name__
            found[name] = seen = attacked(broker, attack)
            say(f"{side}, {name}: waits {seen.longest_wait_s:.3f} s, {seen.resident_mb:.0f} MiB")
        shutil.rmtree(data, ignore_errors=True)
    return found


def _budget_mb() -> float:
    """The bound of the gateway on requests, replies and sessions, in MiB."""
    from gateway.config import ConnectionLimits

    return ConnectionLimits().memory_bytes_max / (1 << 20)


def main() -> int:
    words = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    words.add_argument("--only", choices=PARTS, action="append", help="this part (repeatable)")
    words.add_argument("--target", choices=SIDES, help="one side alone")
    words.add_argument("--before", type=Path, help="also the gateway of this source tree")
    asked = words.parse_args()
    both = [*SIDES, *([BEFORE] if asked.before else [])]
    parts, sides = asked.only or list(PARTS), [asked.target] if asked.target else both
    CACHE.mkdir(exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="neighbours-", dir=CACHE))
    shares: dict[str, dict[int, float]] = {}
    attacks: dict[str, dict[str, Attacked]] = {}
    try:
        for side in sides:
            if "wide" in parts:
                shares[side] = wide(side, scratch, asked.before)
            if "hostile" in parts:
                attacks[side] = hostile(side, scratch, asked.before)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    line = _summary(shares, attacks)
    if asked.before:
        line["before"] = _summary(
            {"gateway": shares.get(BEFORE, {})}, {"gateway": attacks.get(BEFORE, {})}
        )
    print(json.dumps(line))
    return 0


def _summary(
    shares: dict[str, dict[int, float]], attacks: dict[str, dict[str, Attacked]]
) -> dict[str, object]:
    """The figures of the gateway; null for a part or a side that was left out."""
    ours, theirs = shares.get("gateway", {}).get(WIDEST), shares.get("kafka", {}).get(WIDEST)
    seen = attacks.get("gateway", {}).values()
    return {
        "bench": "neighbours",
        "wide_ratio": ours and round(ours, 3),
        "wide_vs_kafka": ours and theirs and round(ours / theirs, 2),
        "longest_wait_ms": round(1000 * max(each.longest_wait_s for each in seen))
        if seen
        else None,
        "largest_over_budget_mb": round(max(each.resident_mb for each in seen) - _budget_mb())
        if seen
        else None,
    }


if __name__ == "__main__":
    sys.exit(main())
