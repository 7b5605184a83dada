"""What a job on Spark holds in memory: the JVM's heap after each collection, Python's workers.

In local mode driver and executors are one JVM. Its resident size says how large the heap may get,
not how much is needed; so what is left after a collection is what counts, and the heap has the size
that Spark gives it by default.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from tests.peers.install import ROOT
from tests.peers.processes import process_tree
from tests.peers.spark import conf_words, environment

HEAP = "1g"
TIMEOUT_S = 600.0
_AFTER_GC = re.compile(r"Pause .*?\d+M->(\d+)M\(")
_PEAK = re.compile(r"VmHWM:\s+(\d+) kB")


@dataclass(frozen=True, slots=True)
class Memory:
    """Peaks in MB, or how many times as large one run's peaks are as another's."""

    heap: float  # of driver and executors, after a collection
    workers: float  # the largest Python worker, resident

    def over(self, other: Memory) -> Memory:
        return Memory(
            round(self.heap / max(other.heap, 1), 2),
            round(self.workers / other.workers, 2) if other.workers else 0.0,
        )

    def as_json(self) -> dict[str, float]:
        return {"heap": self.heap, "python_workers": self.workers}

    def __str__(self) -> str:
        return f"{self.heap:.0f} MB heap, {self.workers:.0f} MB Python worker"


def measure(what: str, topic: str, bootstrap: str, metadata: str, scratch: Path) -> Memory:
    """Run `what` over the topic in a Spark of its own, watched. Raises when it fails."""
    scratch.mkdir(parents=True)
    log = scratch / "gc.log"
    conf = conf_words(scratch / "spark")
    at = next(n for n, word in enumerate(conf) if word.startswith("spark.driver.extraJavaOptions"))
    conf[at] += f" -Xlog:gc:file={log}"
    conf += ["--conf", f"spark.driver.memory={HEAP}"]
    if what == "archive":
        words = ["-m", "gateway", "job", "archive", topic, "--bootstrap", bootstrap]
        words += ["--to", str(scratch / "archive"), "--master", "local[2]", *conf]
    else:
        words = ["-m", "tests.bench.spark_read", what, topic, bootstrap, metadata, *conf]
    with (scratch / "output").open("w") as output:
        job = subprocess.Popen(
            [sys.executable, *words],
            env={**os.environ, **environment(scratch / "spark")},
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
        )
        workers = _watch(job)
    if job.returncode:
        raise RuntimeError(f"{what} {topic}: {(scratch / 'output').read_text()[-2000:]}")
    heap = max((int(each) for each in _AFTER_GC.findall(log.read_text())), default=0)
    return Memory(heap, workers / 1024)


def _watch(job: subprocess.Popen[bytes]) -> int:
    """The peak of any Python process under the job, in kB, when it has ended."""
    ended = threading.Event()
    waiting = threading.Thread(target=lambda: (job.wait(TIMEOUT_S), ended.set()), daemon=True)
    waiting.start()
    peak = 0
    while not ended.wait(0.1):
        for pid in process_tree(job.pid):
            if pid == job.pid:
                continue
            try:
                name = Path(f"/proc/{pid}/cmdline").read_bytes()
                status = Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue  # it ended while we looked
            if b"pyspark" in name and b"java" not in name.split(b"\0")[0]:
                peak = max(peak, *map(int, _PEAK.findall(status)), 0)
    return peak
