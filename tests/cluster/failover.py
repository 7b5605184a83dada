"""Kills, stops and silences owners of a cluster under recorded load, and judges what clients saw.

    python -m tests.cluster.failover --rounds 20 [--machines 3] [--zombies 2] [--others 2]
        [--servers 6]

Three gateways, three bookies, ZooKeeper with ticks of 100 ms and sessions of 1 s. `rounds`: kill -9
of an owner, which then comes back. `machines`: the same of an owner and of the child that closes
its session, at once, so that the session timeout decides. `zombies`: an owner is stopped for 10 s
and goes on, with a witness on its sockets. `others`: so many polite stops, ended sessions and cut
links each.
`servers`: ZooKeeper is an ensemble of three, and so many times one of them, the leader or a
follower in turn, is killed, paused or cut off from the others for 3 s.
The last line is JSON:

    acked        records acknowledged to any client
    lost         of those: not there when all is read at the end, or passed over
    doubled      values of idempotent producers that are there twice
    worst_s      longest time from a kill -9 to the next successful write (sent after it, by
                 anybody) on a partition of the dead
    machine_s    the same after the loss of a machine; not judged, because nearly all of it is the
                 session timeout, which ZooKeeper rounds up to a tick
    zombie_acks  acknowledgements that came out of a stopped owner's sockets after it was stopped

Exit code 1: something of it is not as it must be.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.cluster.gateways_stage import Outage, Stage, Zombie
from tests.histories.history import save
from tests.histories.report import counts, table
from tests.peers.processes import TookTooLong

WORST_S_MAX = 1.3  # one session and 300 ms
REST_S = 1.0  # quiet between two harms
ERRORS_SHOWN = 20


class Run:
    """The harms of one run and their figures."""

    def __init__(self, stage: Stage, say: Callable[[str], None]) -> None:
        self.stage = stage
        self.say = say
        self.kills: list[Outage] = []
        self.machines: list[Outage] = []
        self.zombies: list[Zombie] = []
        self.faults: list[str] = []

    def all(self, rounds: int, machines: int, zombies: int, others: int, servers: int) -> None:
        for number in range(max(rounds, machines, zombies, others, servers)):
            if number < rounds:
                self.kill(number)
            if number < machines:
                self.stage.rest(REST_S)
                self.lose_machine()
            if number < zombies:
                self.pause()
            if number < others:
                self.stop()
                self.tell("session of gateway {} ended", self.stage.expire())
                self.tell("gateway {} was cut from ZooKeeper", self.stage.cut())
            if number < servers:
                self.harm_zookeeper(number)
            self.stage.rest(REST_S)

    def kill(self, number: int) -> None:
        outage = self.stage.kill()
        self.kills.append(outage)
        self.tell(f"round {number + 1}: kill -9 of gateway {{}}", outage)

    def lose_machine(self) -> None:
        outage = self.stage.kill(machine=True)
        self.machines.append(outage)
        self.tell("the machine of gateway {} was lost", outage)

    def pause(self) -> None:
        zombie = self.stage.pause()
        self.zombies.append(zombie)
        self.say(
            f"gateway {zombie.node} was stopped for 10 s: of {zombie.asked} requests it "
            f"answered {zombie.answers} afterwards, "
            f"{zombie.acks} acknowledgements ({zombie.late} of records sent before), "
            f"{zombie.reads} reads as owner"
        )

    def stop(self) -> None:
        recorder = self.stage.recorder
        self.stage.calm()  # a pause of 10 s is as long as the sessions of members
        errors, rebalances = recorder.errors.total(), recorder.rebalances.total()
        code, outage = self.stage.stop()
        errors, rebalances = (
            recorder.errors.total() - errors,
            recorder.rebalances.total() - rebalances,
        )
        self.tell(
            f"gateway {{}} was ended politely (exit code {code}, {errors} client errors, "
            f"{rebalances} rebalances)",
            outage,
        )
        if code or errors or rebalances:
            self.faults.append("a polite end was noticed by clients")

    def harm_zookeeper(self, turn: int) -> None:
        what, outage = self.stage.harm_zookeeper(turn)
        self.tell(what, outage)

    def tell(self, what: str, outage: Outage) -> None:
        idle = f"; processors {outage.idle:.0%} idle" if outage.idle < 1.0 else ""
        stock = [each for name, each in outage.by_client.items() if not name.startswith("probe")]
        self.say(
            f"{what.format(outage.node)}, {len(outage.keys)} partitions: no write for "
            f"{outage.worst_s:.3f} s; stock clients {min(stock, default=0.0):.3f} "
            f"to {max(stock, default=0.0):.3f} s{idle}"
        )


def by_client(kills: list[Outage]) -> str:
    """Of each stock client: median and longest time to its next successful write after a kill."""
    found: dict[str, list[float]] = {}
    for outage in kills:
        for process, seconds in outage.by_client.items():
            name = "probe" if process.startswith("probe") else process
            found.setdefault(name, []).append(seconds)
    return "\n".join(
        f"{name:<14} median {statistics.median(all_s):6.3f} s   worst {max(all_s):6.3f} s"
        for name, all_s in sorted(found.items())
        if not name.startswith("witness")
    )


def judge(run: Run, keep: Path) -> bool:
    """The tables and the line of JSON; True when all is as it must be."""
    ops, findings = run.stage.finish()
    found = counts(ops, findings)
    save(ops, keep / "history.jsonl.gz")
    worst_s = max((outage.worst_s for outage in run.kills), default=0.0)
    machine_s = max((outage.worst_s for outage in run.machines), default=0.0)
    acks = sum(zombie.acks for zombie in run.zombies)
    reads = sum(zombie.reads for zombie in run.zombies)
    run.say(table(ops, findings))
    run.say(by_client(run.kills))
    for line in run.stage.recorder.blamed()[:ERRORS_SHOWN]:
        run.say(f"client error: {line}")
    anomalies = found.pop("anomalies")
    result = {
        "proof": "failover",
        **found,
        "worst_s": round(worst_s, 3),
        "machine_s": round(machine_s, 3),
        "zombie_acks": acks,
        "zombie_reads": reads,
        "anomalies": anomalies,
        "rounds": len(run.kills),
    }
    good = not (anomalies or acks or reads or run.faults)
    good = good and worst_s <= WORST_S_MAX
    for fault in run.faults:
        run.say(fault)
    print(json.dumps(result), flush=True)
    return good


def main() -> int:
    flags = argparse.ArgumentParser(prog="make proof-failover", description=__doc__)
    flags.add_argument("--rounds", type=int, default=20, help="kills")
    flags.add_argument("--machines", type=int, default=3, help="losses of a machine")
    flags.add_argument("--zombies", type=int, default=2, help="pauses of 10 s")
    flags.add_argument("--others", type=int, default=2, help="polite ends, expiries, cuts")
    flags.add_argument(
        "--servers", type=int, default=0, help="harms to servers of a ZooKeeper ensemble of three"
    )
    flags.add_argument("--gateways", type=int, default=3)
    flags.add_argument("--pace", type=float, default=2.0, help="clients' pauses are so much longer")
    chosen = flags.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="failover-"))

    def say(text: str) -> None:
        print(text, flush=True)

    good = False
    try:
        with Stage(
            directory,
            gateways=chosen.gateways,
            pace=chosen.pace,
            ensemble=chosen.servers > 0,
        ) as stage:
            say(f"sessions negotiated with ZooKeeper, ms: {stage.rig.sessions_ms()}")
            run = Run(stage, say)
            try:
                run.all(
                    chosen.rounds, chosen.machines, chosen.zombies, chosen.others, chosen.servers
                )
            except TookTooLong as slow:
                run.faults.append(str(slow))
            good = judge(run, directory)
    finally:
        if good:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            say(f"logs and history: {directory}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
