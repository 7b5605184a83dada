"""Takes acknowledged records from a cluster under recorded load, and judges what clients saw.

    python -m tests.cluster.losses --rounds 5 [--seed 1] [--no-spark] [--only HARM ...]

Six bookies behind proxies, three gateways, ZooKeeper and auditors are processes; aiokafka,
librdkafka and writers by hand go on all the time. In each round bookies, gateways and ZooKeeper are
killed, stopped, slowed by 50 ms and cut off one way; a bookie is wiped, another one starts from an
old copy of its directory; two of three copies of some entries are deleted from disk, then all of
some others; and a ledger whose owner died with two of its bookies is closed by force. An operator
removes wiped bookies, has copies repaired and accepts what is lost, with the commands that a user
runs. At the end two stock consumers and Spark read everything. The last line is JSON:

    acked       records acknowledged to any client
    lost        of those: outside of accepted losses, and not there at the end, or passed over
    doubled     values of idempotent producers that are there twice
    accepted    ranges that the operator gave up
    given_up    records in them that had been acknowledged
    harms       how often each was done
    anomalies   findings of the checker (tests/histories)
    violations  those, and what else was not as it must be; a line of each is on stderr

Exit code 1: there is a violation.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.cluster.gateways_stage import TOPIC
from tests.cluster.losses_stage import LossesStage
from tests.cluster.operator import Operator, Row, WrongExit
from tests.cluster.spark_rows import SparkJudge, rows_of
from tests.histories.checker import check
from tests.histories.history import OK, Op, key_of, save
from tests.histories.report import counts, table

REST_S = 1.0
ERRORS_SHOWN = 20


def harms_of(stage: LossesStage, number: int, draw: random.Random) -> list[Callable[[], str]]:
    """Return the harms of one round in their order. The first one closes ledgers."""
    harmless = [
        stage.kill_bookie,
        stage.pause_bookie,
        stage.slow_bookie,
        stage.cut_bookie,
        draw.choice((stage.cut_gateway, stage.pause_gateway)),
        stage.harm_zookeeper_alone,
        stage.wipe,
        stage.put_back,
    ]
    losing = [
        stage.delete_two,
        stage.delete_three if number % 2 == 0 else stage.delete_two_and_wipe,
        stage.close_by_force,
    ]
    draw.shuffle(harmless)
    draw.shuffle(losing)
    return [stage.kill_gateway, *harmless, *losing]


def harm(stage: LossesStage, rounds: int, only: Sequence[str], say: Callable[[str], None]) -> None:
    """Do the harms of all rounds, or of them only those with these names."""
    draw = random.Random(stage.seed)
    for number in range(rounds):
        for each in harms_of(stage, number, draw):
            if only and each.__name__ not in only:
                continue
            began_s = time.monotonic()
            say(f"round {number + 1}, {each()} ({time.monotonic() - began_s:.1f} s)")
            stage.rest(REST_S)


def fail(faults: list[str], during: str, say: Callable[[str], None]) -> None:
    """Make a violation of the exception that is being handled."""
    say(traceback.format_exc())
    error = sys.exc_info()[1]
    faults.append(f"{during} ended with {type(error).__name__}: {error}")


def given_up(ops: Sequence[Op], accepted: Sequence[Row]) -> int:
    """Return how many acknowledged records lie in the accepted ranges."""
    ranges = [(key_of(TOPIC, row["partition"]), *row["offsets"]) for row in accepted]
    return sum(
        any(key == at and first <= offset <= last for at, first, last in ranges)
        for op in ops
        if op.kind == "send" and op.result == OK
        for key, _, offset in op.value
    )


def operators_last_look(operator: Operator) -> list[str]:
    """Return what the commands report once all harm is over."""
    faults = [
        f"`topic gaps`: {row}"
        for row in operator.gaps(TOPIC)
        if row["state"] in ("lost", "waiting")
    ]
    try:
        operator.run("ledger", "verify")
    except WrongExit as wrong:
        faults.append(str(wrong))
    return faults


def judge(
    stage: LossesStage, faults: list[str], keep: Path, say: Callable[[str], None], *, spark: bool
) -> dict[str, Any]:
    """Return the line of JSON, with the number of violations; each is told."""
    try:
        ops, findings = stage.finish()
    except Exception:
        fail(faults, "the end", say)
        ops = stage.recorder.ops[:]
        findings = check(ops)
    save(ops, keep / "history.jsonl.gz")
    found = counts(ops, findings)
    say(table(ops, findings))
    for line in stage.recorder.blamed()[:ERRORS_SHOWN]:
        say(f"client error: {line}")
    faults += stage.faults + operators_last_look(stage.operator)
    rows = 0
    if spark:
        zookeeper = stage.world.zookeeper.servers
        reader = SparkJudge(keep / "spark", stage.rig.gateways.bootstrap, zookeeper, TOPIC)
        try:
            rows = reader.judge(rows_of(ops), lost=bool(stage.accepted))
        finally:
            reader.close()
        faults += reader.faults
    for fault in faults:
        say(f"violation: {fault}")
    anomalies = found.pop("anomalies")
    return {
        "proof": "losses",
        **found,
        "accepted": len(stage.accepted),
        "given_up": given_up(ops, stage.accepted),
        "spark_rows": rows,
        "harms": dict(sorted(stage.harms.items())),
        "anomalies": anomalies,
        "violations": anomalies + len(faults),
    }


def run(
    directory: Path,
    rounds: int,
    seed: int,
    say: Callable[[str], None],
    *,
    spark: bool,
    only: Sequence[str] = (),
) -> dict[str, Any]:
    """Do all harm and judge it."""
    began_s = time.monotonic()
    faults: list[str] = []
    with LossesStage(directory, seed=seed) as stage:
        try:
            harm(stage, rounds, only, say)
        except Exception:
            fail(faults, "harm", say)
            stage.heal()
        result = judge(stage, faults, directory, say, spark=spark)
    seconds = round(time.monotonic() - began_s)
    return {**result, "rounds": rounds, "seed": seed, "seconds": seconds}


def main() -> int:
    flags = argparse.ArgumentParser(prog="make proof-losses", description=__doc__)
    flags.add_argument("--rounds", type=int, default=5)
    flags.add_argument("--seed", type=int, default=0, help="of what is harmed [drawn]")
    flags.add_argument("--no-spark", action="store_true", help="leave out what Spark reads")
    flags.add_argument("--only", nargs="+", default=[], help="methods of the stage: only these")
    chosen = flags.parse_args()
    seed = chosen.seed or random.SystemRandom().randrange(1, 2**31)
    faulthandler.register(signal.SIGUSR1)  # it shows where a run stands
    directory = Path(tempfile.mkdtemp(prefix="losses-"))

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    good = False
    try:
        how = {"spark": not chosen.no_spark, "only": chosen.only}
        result = run(directory, chosen.rounds, seed, say, **how)
        good = result["violations"] == 0
        print(json.dumps(result), flush=True)
    finally:
        if good:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            say(f"logs and history: {directory}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
