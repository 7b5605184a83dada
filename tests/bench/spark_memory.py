"""What a job on Spark holds in memory while it runs: what is alive in the JVM, what Python takes.

In local mode driver and executors are one JVM. What is left after a collection of the JVM's own
says little: it leaves garbage in old regions, the more the longer the job runs. So a full
collection is asked for every half second, and what it leaves is what is alive at that moment.
`heap` is the most that was found; what is held for less than half a second may be missed, and a
longer job is looked at more often, unless `pause_s` is shorter for the smaller one. `jvm` is
resident, with the whole heap in it from the start: what it has beyond the heap's size is native
memory, buffers of Kafka, Arrow and zstd among it. Python's driver and the largest of its workers
are resident peaks, as Linux counts them.

There is one core, so one task at a time. With more, the peak tells above all whether two tasks were
at theirs in one moment, which happens sooner or later where there are many; each further core takes
what a task takes once more.

The heap has one size for both runs. That a job ends at all is the other half of the statement:
it needs no more than that, whatever was missed.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from tests.peers import install
from tests.peers.install import ROOT
from tests.peers.processes import process_tree
from tests.peers.spark import conf_words, environment

TIMEOUT_S = 900.0
_LOOK_S = 0.1
_COLLECT_S = 0.5
_ALIVE = re.compile(r"Pause Full .*?\d+M->(\d+)M\(")
_PEAK = re.compile(r"VmHWM:\s+(\d+) kB")
_COLLECT = b"1\0jcmd\0GC.run\0\0\0"
"""Source: OpenJDK, attachListener_linux.cpp: a version, a command, three arguments."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Peaks in MB, or how many times as large one run's peaks are as another's."""

    heap: float  # alive, of driver and executors
    jvm: float  # resident, the whole heap included
    driver: float  # the Python process of the job, resident
    python_workers: float  # the largest one, resident

    def over(self, other: Memory) -> Memory:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Memory(*(round(mine / its, 2) if its else 0.0 for mine, its in pairs))

    def as_json(self) -> dict[str, float]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True, slots=True)
class Bench:
    """Where jobs find their topics, and what they run in; archives are kept in `scratch`."""

    bootstrap: str
    metadata: str
    scratch: Path
    heap: str

    def words(self, what: str, topic: str) -> list[str]:
        """The command line that is measured, without Spark's settings."""
        archive = self.scratch / f"archived-{topic}"
        served = ["--bootstrap", self.bootstrap]
        job = ["-m", "gateway", "job"]
        replayed = ["--from", str(archive), "--topic", topic, "--create"]
        segments = [f"segments:{topic}", "--metadata", self.metadata]
        return {
            "gateway": self._reading("gateway", topic),
            "direct": self._reading("direct", topic),
            "archive": [*job, "archive", topic, "--to", str(archive), *served],
            "replay": [*job, "replay", *replayed, "--to-topic", f"{topic}-again", *served],
            "audit_of_archive": [*job, "audit", f"topic:{topic}", f"archive:{archive}", *served],
            "audit_of_segments": [*job, "audit", f"topic:{topic}", *segments, *served],
        }[what]

    def _reading(self, side: str, topic: str) -> list[str]:
        return ["-m", "tests.bench.spark_read", side, topic, self.bootstrap, self.metadata]


WAYS = ("gateway", "direct", "archive", "replay", "audit_of_archive", "audit_of_segments")
"""In an order in which each finds what it needs: an archive is made before it is read."""


def measure(bench: Bench, what: str, topic: str, pause_s: float = _COLLECT_S) -> Memory:
    """`what` was done to the topic, by a Spark of its own. Raises when it fails."""
    scratch = bench.scratch / f"{what}-{topic}"
    scratch.mkdir(parents=True)
    log = scratch / "gc.log"
    conf = conf_words(scratch / "spark")
    at = next(n for n, word in enumerate(conf) if word.startswith("spark.driver.extraJavaOptions"))
    conf[at] += f" -Xlog:gc:file={log} -Xms{bench.heap} -XX:+AlwaysPreTouch"
    conf += ["--conf", f"spark.driver.memory={bench.heap}"]
    words = [*bench.words(what, topic), "--master", "local[1]"]
    with (scratch / "output").open("w") as output:
        job = subprocess.Popen(
            [sys.executable, *words, *conf],
            env={**os.environ, **environment(scratch / "spark")},
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
        )
        resident = _watch(job, log, pause_s)
    if job.returncode:
        raise RuntimeError(f"{what} {topic}: {(scratch / 'output').read_text()[-2000:]}")
    alive = max((int(each) for each in _ALIVE.findall(log.read_text())), default=0)
    return Memory(alive, *(resident[kind] // 1024 for kind in ("jvm", "driver", "worker")))


def _watch(job: subprocess.Popen[bytes], log: Path, pause_s: float) -> dict[str, int]:
    """Resident peaks in kB by kind of process, when the job has ended."""
    ended = threading.Event()
    waiting = threading.Thread(target=lambda: (job.wait(TIMEOUT_S), ended.set()), daemon=True)
    waiting.start()
    peaks = {"jvm": 0, "driver": 0, "worker": 0}
    collecting: threading.Thread | None = None
    while not ended.wait(_LOOK_S):
        for pid in process_tree(job.pid):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                status = Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue  # it ended while we looked
            kind = "driver" if pid == job.pid else _kind(words)
            if kind is None:
                continue
            peaks[kind] = max(peaks[kind], *map(int, _PEAK.findall(status)), 0)
            if kind == "jvm" and collecting is None and log.exists():
                collecting = threading.Thread(
                    target=_collect, args=(pid, ended, pause_s), daemon=True
                )
                collecting.start()
    return peaks


def _kind(words: list[bytes]) -> str | None:
    if words[0].endswith(b"java"):
        return "jvm" if b"org.apache.spark.deploy.SparkSubmit" in words else None
    return "worker" if b"pyspark.daemon" in words else None  # which forks them


def _collect(pid: int, ended: threading.Event, pause_s: float) -> None:
    """Full collections, one after the other with a pause between, until the JVM is gone."""
    jcmd = str(Path(install.java()).with_name("jcmd"))
    subprocess.run([jcmd, str(pid), "GC.run"], capture_output=True, check=False)
    with suppress(OSError):
        while not ended.wait(pause_s):
            _collect_once(f"/tmp/.java_pid{pid}")  # that jcmd has had it open


def _collect_once(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(path)
        line.sendall(_COLLECT)
        while line.recv(4096):  # it answers when it is done
            pass
