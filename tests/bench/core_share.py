"""The share of the pure cores in the CPU of a gateway: what compiling them could gain at most.

    python -m tests.bench.core_share

A gateway is written to at saturation and read back. After each few milliseconds of CPU of its
process, a signal notes the function that the main thread runs. Counted are those of `ledger/core`,
`gateway/core` and the two readers of requests that look at each batch, with the C code that they
call. The last line is JSON.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

from tests.bench.sides import consume, create_topic, produce
from tests.bench.trees import CELLS
from tests.peers import install
from tests.peers.gateway import Gateway

_BYTES: Final = 300_000_000
_CORES: Final = ("/ledger/core/", "/gateway/core/", "/wire/record_walk.py", "/wire/body_reader.py")
_SHOWN: Final = 4
_SAMPLER: Final = """
import atexit, collections, json, runpy, signal, sys
_, written, _, module, *words = sys.argv
seen = collections.Counter()
def note(_, frame):
    seen[frame.f_code.co_filename + " " + frame.f_code.co_name] += 1
def write():
    signal.setitimer(signal.ITIMER_PROF, 0)
    with open(written, "w") as file:
        json.dump(seen, file)
atexit.register(write)
signal.signal(signal.SIGPROF, note)
signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
sys.argv = ["", *words]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def sampled(record_bytes: int, partitions: int, scratch: Path) -> Counter[str]:
    """Write and read records. Returns the samples of each function, named by its file."""
    samples, sampler, program = (scratch / name for name in ("samples", "sampler.py", "python"))
    sampler.write_text(_SAMPLER)
    python = f'exec {install.gateway_python()} {sampler} {samples} "$@"'
    program.write_text(f"#!/bin/sh\n{python}\n")
    program.chmod(0o755)
    gateway = Gateway(scratch / "data", ("--journal-sync", "never"))
    gateway.python = str(program)
    gateway.environment = {"PYTHONPATH": str(install.ROOT)}
    records = _BYTES // record_bytes
    with gateway as broker:
        create_topic(broker, "cores", partitions)
        produce(broker, "cores", record_bytes, records)
        consume(broker, "cores", record_bytes, records)
    return Counter(json.loads(samples.read_text()))


def main() -> None:
    line: dict[str, object] = {"bench": "core_share"}
    install.CACHE.mkdir(parents=True, exist_ok=True)
    for cell, (record_bytes, partitions) in CELLS.items():
        scratch = Path(tempfile.mkdtemp(prefix="core-share-", dir=install.CACHE))
        try:
            samples = sampled(record_bytes, partitions, scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        all_of_them = samples.total()
        cores = Counter(
            {name: count for name, count in samples.items() if any(core in name for core in _CORES)}
        )
        most = [
            f"{name.rpartition('/')[2]} {count / all_of_them:.1%}"
            for name, count in cores.most_common(_SHOWN)
        ]
        share = cores.total() / all_of_them
        print(f"{cell}: {share:.1%} of {all_of_them:,} samples; {', '.join(most)}", flush=True)
        line[cell] = round(share, 3)
    print(json.dumps(line))


if __name__ == "__main__":
    main()
