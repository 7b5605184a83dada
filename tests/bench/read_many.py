"""CPU of a bookie for `read_many` of entries of 1 KiB, beside that of another source tree.

    python -m tests.bench.read_many --before DIR [--runs 3]

Runs `tests.bench.grpc_add` in both trees in turn: over TCP, which clients use by default, and over
gRPC. A tree without TCP is measured over gRPC only. The last line is JSON: the worst ratio of the
runs, ours / before.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
from pathlib import Path

from tests.peers.install import ROOT
from tests.peers.release import environment_of, python_of

TRANSPORTS = ("tcp", "grpc")


def cpu_us(tree: Path, transport: str | None) -> int:
    """Return the CPU of the bookie in us per MiB, in the source tree `tree`."""
    command = [python_of(tree), "-m", "tests.bench.grpc_add"]
    command += ["--kinds", "real", "--bytes", "1024", "--in-flight", "64", "--seconds", "4"]
    command += ["--transport", transport] if transport else []
    done = subprocess.run(
        command,
        env={**os.environ, **environment_of(tree)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = re.search(r"read_many.*bookie +(\d+)", done.stdout)
    assert found, done.stdout
    return int(found[1])


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--before", type=Path, required=True, help="the tree to compare with")
    words.add_argument("--runs", type=int, default=3, help="the worst of so many is reported")
    asked = words.parse_args()
    has_tcp = (asked.before / "tests/bench/read_many.py").exists()
    worst = dict.fromkeys(TRANSPORTS, 0.0)
    for _ in range(asked.runs):
        ours = {each: cpu_us(ROOT, each) for each in TRANSPORTS}
        before = cpu_us(asked.before, None)
        theirs = {"grpc": before, "tcp": cpu_us(asked.before, "tcp") if has_tcp else before}
        for each in TRANSPORTS:
            ratio = ours[each] / theirs[each]
            worst[each] = max(worst[each], ratio)
            print(
                f"{each}: {ours[each]} us per MiB, before {theirs[each]}: {ratio:.2f}", flush=True
            )
    print(json.dumps({"bench": "read_many", **{k: round(v, 3) for k, v in worst.items()}}))


if __name__ == "__main__":
    main()
