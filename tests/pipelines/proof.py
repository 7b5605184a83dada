"""`make proof-spark`: flights -> topic -> archive -> replay -> audit, under kill -9.

An archive job follows the topic while it is filled; from the middle on, two do at once. Then the
archive is replayed into another topic and audited. Meanwhile the driver of a job, an executor, a
gateway, a bookie and the store's server are killed at seeded moments in the middle of work, and
started again; a supervisor restarts a job that ends because a server was away. In the end the
audits compare topic, segments, archive and copy; independently, pandas compares the archive's
files and the copy with the CSV. Prints one line of JSON, and exits with 1 if anything differs.
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
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic

from tests.demo import steps
from tests.demo.flights import Flight, flights
from tests.peers.processes import wait_until
from tests.pipelines.proof_harm import JOB_S_MAX, Harm, Jobs, Supervised, count_done
from tests.pipelines.proof_judges import COPY, Ends, audits, in_copy, judge
from tests.pipelines.proof_places import Cluster, OneGateway
from tests.pipelines.proof_stores import STORES, Store

KILLS = 10
PARTS_MIN = 24
"""The flights are produced in this number of parts or, with more kills, in one for each kill."""


AUDITS_MAX = 100
"""After this many audits the proof fails if it could not kill often enough."""


class Kills(NamedTuple):
    """The numbers of kills in each phase."""

    one: int
    two: int
    replay: int
    audit: int

    @classmethod
    def split(cls, kills: int) -> Kills:
        audit = kills // 5
        two, replay = (kills - audit) // 3, (kills - audit) // 3
        return cls(kills - two - replay - audit, two, replay, audit)


class Proof(NamedTuple):
    """The servers, the store, the harm, and the number of flights."""

    place: OneGateway | Cluster
    store: Store
    harm: Harm
    chance: random.Random
    total: int


class Filler:
    """A producer of `count` flights in parts, in a thread.

    Each part waits for a commit after the part before it, and the second half for `go_on`.
    """

    def __init__(self, bootstrap: str, store: Store, count: int, parts: int) -> None:
        self._count, self._parts = count, parts
        self._bootstrap, self._store = bootstrap, store
        # The number of parts after which a commit was seen.
        self._archived = 0
        self._second_half = threading.Event()
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._fill, daemon=True)
        self._thread.start()

    def _fill(self) -> None:
        left: Iterator[Flight] = islice(flights(), self._count)
        size = -(-self._count // self._parts)
        archived = self._store.commits
        try:
            while part := list(islice(left, size)):
                if self._archived == self._parts // 2:
                    self._second_half.wait()
                commits = archived()
                steps.produce(self._bootstrap, part)
                wait_until(lambda: archived() > commits, "a commit", JOB_S_MAX, pause_s=0.2)  # noqa: B023
                self._archived += 1
        except BaseException as failure:
            self._failures.append(failure)

    def go_on(self) -> None:
        """Let the second half be produced."""
        self._second_half.set()

    def archived(self) -> int:
        """Return the number of archived parts. Raises what ended the thread."""
        if self._failures:
            raise self._failures[0]
        return self._archived

    def wait_for(self, parts: int, jobs: Sequence[Supervised]) -> None:
        """Wait until `parts` parts are archived, and keep the jobs running meanwhile."""

        def archived() -> bool:
            return self.archived() >= parts or count_done(jobs) > 0

        wait_until(archived, f"{parts} parts to be archived", 2 * JOB_S_MAX, pause_s=0.1)
        assert self.archived() >= parts, [job.process.output()[-2000:] for job in jobs]


def create_topic(bootstrap: str, copies: int) -> None:
    # The records carry the times of 2013: a retention would be free to remove them.
    topic = NewTopic(steps.TOPIC, steps.PARTITIONS, copies, config={"retention.ms": "-1"})
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    admin.create_topics([topic])[steps.TOPIC].result(60)


def archive_under_kills(proof: Proof, kills: Kills) -> list[int]:
    """Fill and follow the topic with one job and then with two, and then archive the rest.

    Returns how often each of the two has committed since it was last started.
    """
    store, harm, chance = proof.store, proof.harm, proof.chance
    words = ["archive", steps.TOPIC, "--to", store.place, *store.words]
    follow = [*words, "--follow", "--interval", "0.2", "--metrics-port", "0"]
    parts = max(PARTS_MIN, sum(kills))
    half = parts // 2
    filler = Filler(proof.place.bootstrap, store, proof.total, parts)
    one = harm.supervise(*follow)
    moments = sorted(chance.sample(range(1, half), kills.one))
    harm.under([one], moments, filler.archived)
    filler.wait_for(half, [one])
    two = [one, harm.supervise(*follow)]
    for job in two:
        job.wait_follows()
    filler.go_on()
    moments = sorted(chance.sample(range(half, parts - 1), kills.two))
    harm.under(two, moments, filler.archived)
    filler.wait_for(parts, two)
    reports: list[dict[str, Any]] = [job.end_follow() for job in two]
    harm.supervise(*words).wait_done()
    return [report.get("commits", 0) for report in reports]


def replay_under_kills(proof: Proof, kills: int) -> None:
    """Replay the archive into the other topic, with kills."""
    store = proof.store
    words = ["replay", "--from", store.place, *store.words, "--topic", steps.TOPIC]
    job = proof.harm.supervise(*words, "--to-topic", COPY, "--create")
    ends = Ends(proof.place.bootstrap)
    moments = sorted(proof.chance.sample(range(1, proof.total * 9 // 10), kills))
    proof.harm.under([job], moments, ends.replayed)
    ends.close()
    job.wait_done()


def audit_under_kills(proof: Proof, kills: int) -> int:
    """Audit the archive alone until there were `kills` in all. Returns the differences."""
    harm = proof.harm
    words = ("audit", proof.store.source(steps.TOPIC))
    started_s = time.monotonic()
    found = harm.supervise(*words).wait_done()["differences"]
    took_s = time.monotonic() - started_s
    # Gateways and bookies take no part in this audit; the store is the last one.
    kinds = harm.kinds_but("gateway", "bookie")[::-1]
    turns = islice(cycle(kinds), AUDITS_MAX)
    while harm.done.total() < kills:
        kind = next(turns, "")
        assert kind, f"{harm.done.total()} kills of {kills} after {AUDITS_MAX} audits"
        job = harm.supervise(*words)
        harm.in_the_middle(job, took_s)
        harm.strike([job], "in an audit", kind)
        report = job.wait_done()
        assert report["verdict"] in ("equal", "differs"), report
        found += report["differences"]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.pipelines.proof")
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--store", choices=list(STORES), default="local")
    parser.add_argument("--cluster", action="store_true", help="bookies and executors of their own")
    parser.add_argument("--flights", type=int, default=0, help="the first ones only; 0: all")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}", flush=True)
    chance = random.Random(chosen.seed)
    work = Path(tempfile.mkdtemp(prefix="proof-spark-"))
    store = STORES[chosen.store](work)
    count = chosen.flights or sum(1 for _ in flights())
    kills = Kills.split(chosen.kills)
    started = time.monotonic()
    with Cluster(work) if chosen.cluster else OneGateway(work) as place, store:
        create_topic(place.bootstrap, place.copies)
        proof = Proof(place, store, Harm(Jobs(work, place, store), chance), chance, count)
        commits = archive_under_kills(proof, kills)
        replay_under_kills(proof, kills.replay)
        found = audit_under_kills(proof, chosen.kills)
        found += audits(proof.harm, store.source(steps.TOPIC), place.metadata)
        found += judge(store.records(), in_copy(place.bootstrap), count)
    line = {
        "proof": "spark",
        "store": chosen.store,
        "cluster": chosen.cluster,
        "differences": found,
        "kills": proof.harm.done.total(),
        "of": dict(sorted(proof.harm.done.items())),
        "restarts": dict(sorted(proof.harm.restarts.items())),
        "commits_of_two": commits,
        "flights": count,
        "seed": chosen.seed,
        "seconds": round(time.monotonic() - started),
    }
    if found:
        print(f"left as it is: {work}")
    else:
        shutil.rmtree(work)
    print(json.dumps(line))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
