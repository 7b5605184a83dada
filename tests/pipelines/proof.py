"""`make proof-spark`: flights -> topic -> archive -> replay -> audit, under kill -9.

The archive job follows the topic while it is filled; then the archive is replayed into another
topic. Meanwhile the job or the gateway is killed at seeded moments, always in the middle of work:
after a number of commits of the archive, or of replayed records. In the end the audits compare
topic, segments, archive and copy; independently, pyarrow and librdkafka compare files and copy with
the CSV. Prints one line of JSON, and exits with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pyarrow.dataset as dataset
from confluent_kafka import Consumer, TopicPartition

from tests.demo import steps
from tests.demo.flights import Flight, flights
from tests.peers.gateway import Gateway, ports_in_a_row
from tests.peers.processes import Process, wait_until
from tests.peers.spark import conf_words, environment

COPY = "flights-again"
JOB_S_MAX = 600.0
KILLS = 10
PARTS = 24
"""The flights are produced in so many parts, each waits for the archive to have the one before."""

Row = tuple[bytes, bytes, int]


class Jobs:
    """`gateway job ...` as processes, beside one gateway."""

    def __init__(self, work: Path, gateway: Gateway, metadata: str) -> None:
        self.work, self.gateway, self.metadata = work, gateway, metadata
        self._conf = ["--master", "local[2]", *conf_words(work / "spark")]
        self._count = 0

    def begin(self, *words: str) -> Process:
        self._count += 1
        argv = [sys.executable, "-m", "gateway", "job", *words, "--bootstrap"]
        argv += [self.gateway.bootstrap, *self._conf, "-o", "json"]
        log = self.work / f"job-{self._count:02}-{words[0]}.log"
        return Process(argv, log, environment(self.work / "spark"))

    def end(self, job: Process) -> tuple[int, str]:
        """Wait until the job exits, and return its exit code and output."""
        return job.wait_exit(JOB_S_MAX, pause_s=0.1), job.output()


class Harm:
    """Kills processes `kills` times in all, at moments drawn from the seed."""

    def __init__(self, jobs: Jobs, chance: random.Random) -> None:
        self._jobs, self._chance = jobs, chance
        self.done: Counter[str] = Counter()

    def under(
        self, words: list[str], thresholds: list[int], progress: Callable[[], int]
    ) -> Process:
        """Run the job, killing it at these thresholds of `progress`."""
        job = self._jobs.begin(*words)
        for threshold in thresholds:
            self._wait(job, words, threshold, progress)
            # At a random moment after the step, not at the step itself.
            threading.Event().wait(self._chance.uniform(0.0, 0.5))
            kind = self._chance.choice(("job", "gateway"))
            self.done[kind] += 1
            print(f"kill -9 of the {kind} after {threshold} of {words[0]}", flush=True)
            if kind == "gateway":
                self._jobs.gateway.restart(kill=True)
            else:
                job.kill()
                job = self._jobs.begin(*words)
        return job

    def _wait(
        self, job: Process, words: list[str], threshold: int, progress: Callable[[], int]
    ) -> None:
        def reached() -> bool:
            return progress() >= threshold

        job.wait_for(reached, f"{words[0]} to come to {threshold}", JOB_S_MAX)


def produce_slowly(
    gateway: Gateway, archived: Callable[[], int], failures: list[BaseException]
) -> None:
    """Produce all flights in parts, each after the archive has the previous one."""
    left: Iterator[Flight] = flights()
    size = -(-sum(1 for _ in flights()) // PARTS)
    try:
        while part := list(islice(left, size)):
            commits = archived()
            steps.produce(gateway.bootstrap, part)
            wait_until(lambda: archived() > commits, "a commit", JOB_S_MAX, pause_s=0.05)  # noqa: B023
    except BaseException as failure:
        failures.append(failure)


def archive_under_kills(jobs: Jobs, harm: Harm, chance: random.Random, kills: int) -> None:
    """Fill and follow the topic, with kills, and then archive the rest."""
    place = jobs.work / "archive"

    def commits() -> int:
        found = place / "_commits"
        return len(list(found.glob("[0-9]*.json"))) if found.exists() else 0

    words = ["archive", steps.TOPIC, "--to", str(place), "--follow", "--interval", "0.2"]
    failures: list[BaseException] = []
    producer = threading.Thread(
        target=produce_slowly, args=(jobs.gateway, commits, failures), daemon=True
    )
    producer.start()
    thresholds = sorted(chance.sample(range(1, PARTS - 1), kills))
    job = harm.under(words, thresholds, commits)
    wait_until(lambda: not producer.is_alive(), "the producer", JOB_S_MAX, pause_s=0.1)
    if failures:
        raise failures[0]
    assert job.stop(60.0) == 0, job.output()[-2000:]
    last = [word for word in words if word not in ("--follow", "--interval", "0.2")]
    code, said = jobs.end(jobs.begin(*last))
    assert code == 0, said[-2000:]


def replay_under_kills(
    jobs: Jobs, harm: Harm, chance: random.Random, kills: int, count: int
) -> None:
    """Replay the archive into the other topic, with kills."""
    words = ["replay", "--from", str(jobs.work / "archive"), "--topic", steps.TOPIC]
    words += ["--to-topic", COPY, "--create"]
    thresholds = sorted(chance.sample(range(1, count * 9 // 10), kills))
    ends = Ends(jobs.gateway.bootstrap)
    job = harm.under(words, thresholds, ends.replayed)
    ends.close()
    code, said = jobs.end(job)
    assert code == 0, said[-2000:]


class Ends:
    """Asks the gateway how many records the copy has, while it is up."""

    def __init__(self, bootstrap: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "group.id": "proof", "log_level": 0}
        self._consumer = Consumer(settings)
        self._known = 0

    def replayed(self) -> int:
        from confluent_kafka import KafkaException

        found = 0
        for partition in range(steps.PARTITIONS):
            try:
                place = TopicPartition(COPY, partition)
                _, end = self._consumer.get_watermark_offsets(place, timeout=1.0)
            except KafkaException:
                return self._known  # the gateway is down, or the topic does not exist yet
            found += end
        self._known = max(self._known, found)
        return self._known

    def close(self) -> None:
        self._consumer.close()


def audits(jobs: Jobs) -> int:
    """Return the differences that the job itself finds between four copies."""
    archive = f"archive:{jobs.work / 'archive'}#{steps.TOPIC}"
    topic, copy = f"topic:{steps.TOPIC}", f"topic:{COPY}"
    segments = ["--metadata", jobs.metadata]
    pairs = (
        [topic, archive],
        [archive, copy, "--align", "rank"],
        [topic, f"segments:{steps.TOPIC}", *segments],
    )
    found = 0
    for words in pairs:
        code, said = jobs.end(jobs.begin("audit", *words))
        start = said.find("{\n")
        assert start >= 0, said[-2000:]
        told = json.JSONDecoder().raw_decode(said[start:])[0]
        print(f"audit {' '.join(words[:2])}: {told['verdict']}", flush=True)
        assert (code == 0) == (told["differences"] == 0), (code, said[-2000:])
        assert told["verdict"] != "explained", told["losses"]
        found += told["differences"]
    return found


def in_files(place: Path) -> Iterator[tuple[tuple[int, int], Row]]:
    """Return the records in the archive's directories, by partition and offset."""
    files = [str(file) for file in place.glob("topic=*/**/*.parquet")]
    columns = ["partition", "offset", "key", "value", "timestamp"]
    partitions = dataset.partitioning(flavor="hive")
    for batch in dataset.dataset(files, partitioning=partitions).to_batches(columns=columns):
        times = batch.column("timestamp").cast("timestamp[us]").cast("int64").to_pylist()
        lists = [batch.column(name).to_pylist() for name in columns[:4]]
        for partition, offset, key, value, micros in zip(*lists, times, strict=True):
            yield (int(partition), offset), (key, value, micros // 1000)


def in_copy(bootstrap: str, count: int) -> Iterator[tuple[tuple[int, int], Row]]:
    """Read the copy with librdkafka, to the end of each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "judge",
            "auto.offset.reset": "earliest",
            "log_level": 3,
        }
    )
    places = [TopicPartition(COPY, partition, 0) for partition in range(steps.PARTITIONS)]
    ends = sum(consumer.get_watermark_offsets(place, timeout=30.0)[1] for place in places)
    print(f"copy: {ends} records, of {count}", flush=True)
    consumer.assign(places)
    deadline = time.monotonic() + steps.STEP_S_MAX
    seen = 0
    while seen < ends and time.monotonic() < deadline:
        for message in consumer.consume(10_000, timeout=1.0):
            assert message.error() is None, message.error()
            seen += 1
            row = (message.key(), message.value(), message.timestamp()[1])
            yield (message.partition(), message.offset()), row
    consumer.close()


def independent(work: Path, bootstrap: str) -> int:
    """Count the records in which files and copy differ from the CSV, or from each other's order."""
    expected = Counter((one.carrier, one.line, one.hour_ms) for one in flights())
    count = expected.total()
    archived = list(in_files(work / "archive"))
    copied = list(in_copy(bootstrap, count))
    found = 0
    for rows in (archived, copied):
        held = Counter(row for _, row in rows)
        found += (held - expected).total() + (expected - held).total()
        found += len(rows) - len({place for place, _ in rows})
    # Both topics begin at offset 0, so that the copy has the offsets of the archive too.
    wanted = dict(archived)
    return found + sum(wanted.get(place) != row for place, row in copied)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.pipelines.proof")
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}", flush=True)
    chance = random.Random(chosen.seed)
    work = Path(tempfile.mkdtemp(prefix="proof-spark-"))
    kafka_port, ledger_port = ports_in_a_row(2)
    gateway = Gateway(work / "data", ["--ledger-port", str(ledger_port)])
    gateway.port = kafka_port
    started = time.monotonic()
    count = sum(1 for _ in flights())
    with gateway:
        steps.create_topic(gateway.bootstrap)
        jobs = Jobs(work, gateway, f"grpc://127.0.0.1:{ledger_port}")
        harm = Harm(jobs, chance)
        kills = chosen.kills // 2
        archive_under_kills(jobs, harm, chance, chosen.kills - kills)
        replay_under_kills(jobs, harm, chance, kills, count)
        found = audits(jobs)
        found += independent(work, gateway.bootstrap)
    seconds = time.monotonic() - started
    line = {
        "proof": "spark",
        "differences": found,
        "kills": harm.done.total(),
        "of_job": harm.done["job"],
        "of_gateway": harm.done["gateway"],
        "flights": count,
        "seed": chosen.seed,
        "seconds": round(seconds),
    }
    if found:
        print(f"left as it is: {work}")
    else:
        shutil.rmtree(work)
    print(json.dumps(line))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
