"""Kills every process of a cluster under transactional copy jobs, and compares the copies.

    python -m tests.cluster.transacting [--seconds 120] [--records 20000] [--seed 0] [--kills 30]
        [--limit 720] [--embedded]

Four bookies, three gateways and ZooKeeper are processes. A topic
grows evenly over the run. Jobs of librdkafka (two members of a group), aiokafka and Java copy it.
Each transaction has records, the last value of each key for a compacted topic, and the offsets of
its source.

Each kill is kill -9 at a named point of a transaction:

    init      after InitProducerId
    ongoing   records are durable
    pending   offsets of the group are durable
    prepared  Prepare is durable; an owner that stands still lacks its marker
    markers   another owner has its marker, and this one lacks it
    marked    this one goes on, and has its marker: before Complete, if the kill comes in time
    ending    at a random time of the end
    fence     a second producer of the id fences the first
    swap      a compacted topic is cleaned, and its segments are replaced

The victim is the coordinator of the transaction, the owner of a partition, the coordinator of the
group, a bookie, the client or a cleaner. Gateways and clients are also stopped past their session.
Transactions commit and abort.

The run ends after `--kills` kills, or after `--seconds`, and then waits until all records are
copied. After `--limit` seconds it fails. With `--embedded`, one embedded gateway replaces the
cluster. An anomaly is printed with its record, partition, offset and transaction, and with the harm
at that time. The last line is JSON:

    records    of the source; each client copies all of them
    anomalies  by kind (see `Anomaly` in copies.py); empty if each copy is exactly once
    aborted    records that readers of committed records must not see, and did not
    open       transactions that have not ended, and partitions whose last stable offset is not
               their end
    kills      by point and victim, outcomes of their transactions, and states at a kill
    sleeps     by victim
    not_reached  harms that are not counted, because their point or victim did not occur
    restarts   of jobs
    faults     harms without progress afterwards

Exit code 1: something of it is not as it must be.
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import json
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.cluster.copies import KEYS, Anomaly, View, compare, compare_newest
from tests.cluster.copying import KINDS, PARTITIONS, WAIT_S_MAX, Copying, Kind
from tests.cluster.copying_harms import (
    EMBEDDED_POINTS,
    EMBEDDED_VICTIMS,
    POINTS,
    VICTIMS,
    Harms,
    NotReached,
)
from tests.cluster.test_transactions_between_gateways import COMMITTED, UNCOMMITTED, end_of
from tests.peers.processes import TookTooLong, wait_until

SLEEP_EVERY = 6  # harms
SLEEPERS = ("coordinator", "owner", "group", "client")
FAULTS_MAX = 3  # then the run ends
SHOWN_MAX = 30  # anomalies of a topic


def say(text: str) -> None:
    print(text, flush=True)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Harm(NamedTuple):
    """A harm that was done, and when."""

    text: str
    begun_ms: int
    ended_ms: int


class Record:
    """What a run has done to its cluster."""

    def __init__(self) -> None:
        self.harms: list[Harm] = []
        self.kills: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.outcomes: Counter[str] = Counter()
        self.states: Counter[str] = Counter()
        self.sleeps: Counter[str] = Counter()
        self.not_reached = 0

    @property
    def killed(self) -> int:
        return sum(of.total() for of in self.kills.values())

    def at(self, time_ms: int) -> str:
        """Return the last harm that began before a time, or during which it was."""
        before = [harm for harm in self.harms if harm.begun_ms <= time_ms]
        return before[-1].text if before else "no harm"


def plan(draw: random.Random, points: tuple[str, ...], victims: tuple[str, ...]) -> Iterator:
    """Yield (point, victim) without end: each point equally often, and each pair too."""
    for number in itertools.count():
        shift = number % len(victims)
        row = [(point, victims[(at + shift) % len(victims)]) for at, point in enumerate(points)]
        draw.shuffle(row)
        yield from row


def do_harms(stage: Copying, record: Record, seed: int, seconds: float, kills: int) -> None:
    """Harm the cluster until enough was killed or the time is over."""
    draw = random.Random(seed)
    harms = Harms(stage, draw)
    points, victims, sleepers = POINTS, VICTIMS, SLEEPERS
    if stage.embedded:
        points, victims = EMBEDDED_POINTS, EMBEDDED_VICTIMS
        sleepers = ("coordinator", "client")
    pairs = plan(draw, points, victims)
    begun_s = time.monotonic()
    for number in itertools.count(1):
        late = time.monotonic() - begun_s > seconds
        if late or record.killed >= kills or len(stage.faults) >= FAULTS_MAX:
            return
        if number % SLEEP_EVERY == 0:
            victim = sleepers[number // SLEEP_EVERY % len(sleepers)]
            wanted = f"{number}: SIGSTOP of {victim}"
            point = ""
        else:
            point, victim = next(pairs)
            wanted = f"{number}: kill -9 of {victim} at {point}"
        do_one(stage, record, harms, wanted, point, victim)


def do_one(
    stage: Copying, record: Record, harms: Harms, wanted: str, point: str, victim: str
) -> None:
    """Do one harm, and count it. One without progress afterwards is a fault."""
    begun_ms = now_ms()
    text = wanted
    try:
        if point:
            hit = harms.kill(point, victim)
            record.kills[hit][victim] += 1
            record.outcomes[harms.outcome] += 1
            if harms.state:
                record.states[f"{hit}: {harms.state}"] += 1
            text += "" if hit == point else f" (hit {hit})"
        else:
            harms.sleep(victim)
            record.sleeps[victim] += 1
    except NotReached as reason:
        record.not_reached += 1
        text += f", not reached: {reason}"
    except TookTooLong as slow:
        stage.faults.append(f"{wanted} of {harms.job} ({harms.outcome}): {slow}")
        text += f", FAULT: {slow}"
        stage.heal()
    text += f"; {harms.job}, {harms.outcome}{', ' if harms.state else ''}{harms.state}"
    record.harms.append(Harm(text, begun_ms, now_ms()))
    say(f"{text}, {(now_ms() - begun_ms) / 1000:.1f} s, {stage.produced} records")


def judge(stage: Copying, record: Record) -> tuple[Counter[str], int, list[str]]:
    """Print all anomalies; return how many there are of each kind, aborted records, and waits."""
    found: Counter[str] = Counter()
    aborted = 0
    still: list[str] = []
    for kind in KINDS:
        still += wait_stable(stage, kind)
        view = View(
            stage.read(kind.target, PARTITIONS, "read_committed"),
            stage.read(kind.target, PARTITIONS, "read_uncommitted"),
        )
        aborted += len(view.everything) - len(view.committed)
        outcomes = stage.outcomes(kind)
        newest = stage.read(kind.newest, 1, "read_committed")
        say(
            f"{kind.client}: {len(view.committed)} committed, {len(view.everything)} in the log, "
            f"{len(outcomes)} transactions ended, {len(newest)} records in {kind.newest}"
        )
        for topic, anomalies in (
            (kind.target, compare(stage.produced, view, outcomes, KEYS)),
            (kind.newest, compare_newest(stage.produced, View(newest, newest), outcomes, KEYS)),
        ):
            found.update(each.kind for each in anomalies)
            show(stage, record, topic, anomalies)
    return found, aborted, still + stage.open_transactions()


def show(stage: Copying, record: Record, topic: str, anomalies: list[Anomaly]) -> None:
    """Print anomalies with the harm at the time of each."""
    for each in anomalies[:SHOWN_MAX]:
        known = 0 <= each.value < stage.produced
        time_ms = each.copies[-1].time_ms if each.copies else 0
        if known and not time_ms:
            time_ms = stage.produced_ms[each.value]
        say(f"{topic}: {each}; at {time_ms}: {record.at(time_ms)}")


def wait_stable(stage: Copying, kind: Kind) -> list[str]:
    """Wait until all partitions are stable; return those that are not."""
    still: list[str] = []
    places = [(kind.target, at) for at in range(PARTITIONS)] + [(kind.newest, 0)]
    for topic, index in places:
        try:
            wait_until(
                lambda it=topic, at=index: is_stable(stage, it, at),
                f"partition {index} of {topic} to be stable",
                WAIT_S_MAX,
                pause_s=0.1,
            )
        except TookTooLong as slow:
            still.append(str(slow))
    return still


def is_stable(stage: Copying, topic: str, index: int) -> bool:
    stable = end_of(stage.gateways, topic, index, COMMITTED)
    return stable is not None and stable == end_of(stage.gateways, topic, index, UNCOMMITTED)


def run(stage: Copying, seed: int, seconds: float, kills: int) -> bool:
    """Harm the cluster, compare the copies, print the result; True if nothing is wrong."""
    begun_s = time.monotonic()
    record = Record()
    do_harms(stage, record, seed, seconds, kills)
    say(f"{record.killed} kills; waiting for the copies of {stage.produced} records")
    try:
        stage.finish()
    except TookTooLong as slow:
        stage.faults.append(str(slow))
        stage.heal()
    stage.end_jobs()
    found, aborted, still = judge(stage, record)
    result: dict[str, Any] = {
        "proof": "transactions-processes",
        "embedded": stage.embedded,
        "records": stage.produced,
        "clients": [f"{kind.client} x{kind.members}" for kind in KINDS],
        "anomalies": dict(found),
        "aborted": aborted,
        "open": len(still),
        "killed": record.killed,
        "kills": {point: dict(of) for point, of in sorted(record.kills.items())},
        "outcomes": dict(record.outcomes),
        "states": dict(sorted(record.states.items())),
        "sleeps": dict(sorted(record.sleeps.items())),
        "not_reached": record.not_reached,
        "restarts": stage.restarts,
        "faults": len(stage.faults),
        "seed": seed,
        "seconds": round(time.monotonic() - begun_s),
    }
    for line in stage.faults + still:
        say(line)
    say(json.dumps(result))
    return not found and not still and not stage.faults


def on_limit(_number: int, _frame: Any) -> None:
    raise TookTooLong("the run did not end within its limit")


def main() -> int:
    faulthandler.enable()
    flags = argparse.ArgumentParser(prog="make proof-transactions-processes")
    flags.add_argument("--seconds", type=float, default=120, help="how long harms go on [120]")
    flags.add_argument("--records", type=int, default=20_000, help="records in that time [20000]")
    flags.add_argument("--seed", type=int, default=0, help="seed of all choices [0]")
    flags.add_argument("--kills", type=int, default=30, help="kills at most [30]")
    flags.add_argument("--limit", type=float, default=0, help="seconds at most [--seconds + 600]")
    flags.add_argument("--embedded", action="store_true", help="one gateway without a cluster")
    chosen = flags.parse_args()
    signal.signal(signal.SIGALRM, on_limit)
    signal.setitimer(signal.ITIMER_REAL, chosen.limit or chosen.seconds + 600)
    directory = Path(tempfile.mkdtemp(prefix="transacting-"))
    good = False
    try:
        stage = Copying(
            directory, chosen.records, chosen.seconds, chosen.seed, embedded=chosen.embedded
        )
        with stage:
            good = run(stage, chosen.seed, chosen.seconds, chosen.kills)
    except Exception:
        traceback.print_exc()
    finally:
        if good:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            say(f"logs: {directory}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
