"""Kills every process of a cluster under transactional copy jobs, and compares the copies.

    python -m tests.cluster.transacting [--seconds 120] [--records 20000] [--seed 0] [--kills 30]
        [--embedded]

Four bookies, three gateways with the preview of transactions, and ZooKeeper are processes. A topic
grows evenly over the run. Jobs of librdkafka (two members of a group) and aiokafka copy it: each
transaction has records and the offsets of their source.

Each kill is kill -9 at a named point: after InitProducerId, in an open transaction, with pending
offsets, after Prepare while a marker cannot arrive, while the transaction ends, or while a second
producer fences the first. The victim is the coordinator of the transaction, the owner of a
partition, the coordinator of the group, a bookie or the client. All but the bookie are also stopped
past their session. Transactions commit and abort.

The run ends after `--kills` kills, or after `--seconds`, and then waits until all records are
copied. With `--embedded`, one embedded gateway replaces the cluster. The last line is JSON:

    records    of the source
    lost, doubled, foreign, reordered
               records in all copies that a reader of committed records does not see exactly once,
               in order for each key
    aborted    records that such readers must not see, and did not
    open       transactions that have not ended, and partitions whose last stable offset is not
               their end
    kills      by point and victim
    sleeps     by victim
    restarts   of jobs

Exit code 1: something of it is not as it must be, or a kill was not followed by progress.
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import json
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from tests.cluster.copies import KEYS, Verdict, compare
from tests.cluster.copying import KINDS, PARTITIONS, WAIT_S_MAX, Copying
from tests.cluster.copying_harms import (
    EMBEDDED_POINTS,
    EMBEDDED_VICTIMS,
    POINTS,
    VICTIMS,
    Harms,
)
from tests.cluster.test_transactions_between_gateways import COMMITTED, UNCOMMITTED, end_of
from tests.peers.processes import TookTooLong, wait_until

SLEEP_EVERY = 6  # harms


def say(text: str) -> None:
    print(text, flush=True)


def harm(stage: Copying, seed: int, seconds: float, kills: int) -> tuple[Counter, Counter]:
    """Harm the cluster until enough was killed or the time is over; returns what was done."""
    draw = random.Random(seed)
    harms = Harms(stage, draw)
    points, victims = POINTS, VICTIMS
    if stage.embedded:
        points, victims = EMBEDDED_POINTS, EMBEDDED_VICTIMS
    killed: Counter[str] = Counter()
    slept: Counter[str] = Counter()
    begun_s = time.monotonic()
    plan: list[tuple[str, str]] = []
    for number in itertools.count(1):
        if killed.total() >= kills or time.monotonic() - begun_s > seconds:
            return killed, slept
        if number % SLEEP_EVERY == 0:
            victim = draw.choice([each for each in victims if each != "bookie"])
            say(f"{number}: SIGSTOP of {victim} past its session")
            harms.sleep(victim)
            slept[victim] += 1
            continue
        if not plan:
            plan = list(itertools.product(points, victims))
            draw.shuffle(plan)
        point, victim = plan.pop()
        at_s = time.monotonic()
        hit = harms.kill(point, victim)
        killed[f"{hit}: {victim}"] += 1
        say(f"{number}: kill -9 of {victim} at {hit}, {time.monotonic() - at_s:.1f} s")
    raise AssertionError


def judge(stage: Copying) -> tuple[Verdict, int, list[str]]:
    """Return the sum of all verdicts, the aborted records and what is still open."""
    sums = Verdict(0, 0, 0, 0)
    aborted = 0
    still: list[str] = []
    for kind in KINDS:
        try:
            for index in range(PARTITIONS):
                wait_until(
                    lambda at=index, it=kind: is_stable(stage, it.target, at),
                    f"partition {index} of {kind.target} to be stable",
                    WAIT_S_MAX,
                    pause_s=0.1,
                )
        except TookTooLong as slow:
            still.append(str(slow))
        copy = stage.read(kind.target, "read_committed")
        verdict = compare(range(stage.produced), copy, KEYS)
        say(f"{kind.client}: {verdict}")
        sums = Verdict(*map(sum, zip(sums, verdict, strict=True)))
        everything = stage.read(kind.target, "read_uncommitted")
        aborted += sum(map(len, everything.values())) - sum(map(len, copy.values()))
    return sums, aborted, still + stage.open_transactions()


def is_stable(stage: Copying, topic: str, index: int) -> bool:
    stable = end_of(stage.gateways, topic, index, COMMITTED)
    return stable is not None and stable == end_of(stage.gateways, topic, index, UNCOMMITTED)


def run(stage: Copying, seed: int, seconds: float, kills: int) -> bool:
    """Harm the cluster, compare the copies, print the result; True if nothing is wrong."""
    begun_s = time.monotonic()
    killed, slept = Counter(), Counter()
    try:
        killed, slept = harm(stage, seed, seconds, kills)
        stage.finish()
    except TookTooLong as slow:
        stage.faults.append(str(slow))
        stage.heal()
    verdict, aborted, still = judge(stage)
    result = {
        "proof": "transactions-processes",
        "embedded": stage.embedded,
        "records": stage.produced,
        "clients": [f"{kind.client} x{kind.members}" for kind in KINDS],
        **verdict._asdict(),
        "aborted": aborted,
        "open": len(still),
        "killed": killed.total(),
        "kills": dict(sorted(killed.items())),
        "sleeps": dict(sorted(slept.items())),
        "restarts": stage.restarts,
        "faults": len(stage.faults),
        "seed": seed,
        "seconds": round(time.monotonic() - begun_s),
    }
    for line in stage.faults + still:
        say(line)
    say(json.dumps(result))
    return verdict.good and not still and not stage.faults


def main() -> int:
    faulthandler.enable()
    flags = argparse.ArgumentParser(prog="make proof-transactions-processes")
    flags.add_argument("--seconds", type=float, default=120, help="length of the source [120]")
    flags.add_argument("--records", type=int, default=20_000, help="records of the source [20000]")
    flags.add_argument("--seed", type=int, default=0, help="seed of all choices [0]")
    flags.add_argument("--kills", type=int, default=30, help="kills at most [30]")
    flags.add_argument("--embedded", action="store_true", help="one gateway without a cluster")
    chosen = flags.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="transacting-"))
    good = False
    try:
        stage = Copying(
            directory, chosen.records, chosen.seconds, chosen.seed, embedded=chosen.embedded
        )
        with stage:
            good = run(stage, chosen.seed, chosen.seconds, chosen.kills)
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        if good:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            say(f"logs: {directory}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
