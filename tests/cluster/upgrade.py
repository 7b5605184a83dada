"""Upgrades a cluster of an earlier release under recorded load, with a forced close in the middle.

    python -m tests.cluster.upgrade [--commit 8966dba] [--seed 1]

Six bookies and three gateways begin as the release of that commit, which is made from git;
aiokafka, librdkafka and writers by hand go on all the time. Bookies and gateways are replaced one
after the other. Half way an owner of the earlier release dies with the only two bookies that have
its newest entries, and an operator closes its ledger by force. The gateway of the earlier release
that is left must refuse the partition, and one of this release must take it over. The last line is
JSON:

    acked       records acknowledged to any client
    lost        of those: outside of accepted losses, and not there at the end, or passed over
    doubled     values of idempotent producers that are there twice
    given_up    acknowledged records in the accepted losses
    refused     what the gateway of the earlier release logged
    anomalies   findings of the checker (tests/histories), `offset-reused` among them
    violations  those, and what else was not as it must be; a line of each is on stderr

Exit code 1: there is a violation, or the release could not be made; stderr names what is missing.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cluster.losses import fail, judge
from tests.cluster.losses_stage import LossesStage, bring_up
from tests.histories.history import Key
from tests.peers.gateway import ClusterGateway
from tests.peers.install import PeerMissing
from tests.peers.processes import free_port, wait_until
from tests.peers.proxy import Proxy
from tests.peers.release import Release, release, take_off

COMMIT = "8966dba"
REST_S = 1.0
REFUSED_S_MAX = 60.0
_REFUSED = re.compile(r"[^\n]*log segment version 6[^\n]*")


class UpgradeStage(LossesStage):
    """All bookies and gateways begin as the release `before`."""

    def __init__(self, directory: Path, before: Release, *, seed: int) -> None:
        super().__init__(directory, seed=seed)
        self.refused = ""  # what a gateway of `before` logged about the reserved offsets
        for server in (*self.world.bookies, *self.rig.gateways):
            before.put_on(server)

    def upgrade_bookie(self, number: int) -> str:
        bookie = self.world.bookies[number]
        take_off(bookie)
        bookie.stop()
        # Gateways of `before` know gRPC alone, and reach a bookie at the address of its proxy.
        port = free_port()
        bookie.options += ["--grpc-port", str(port)]
        proxy = Proxy(port, host=f"127.0.0.{11 + number}", listen_port=port).start()
        self.world.proxies.append(proxy)
        bookie.start()
        self.wait_written("writers to go on beside a bookie of this release")
        return f"bookie {bookie.id} was upgraded"

    def upgrade_gateway(self, number: int) -> str:
        gateway = self.rig.gateways[number]
        take_off(gateway)
        gateway.stop()
        gateway.start()
        return f"gateway {number} was upgraded"

    def close_by_force_half_way(self) -> str:
        """Gateway 0 is upgraded, 1 dies, and 2 stays alone with what was closed by force."""
        new, victim, old = self.rig.gateways
        doomed = self.bring_down(victim)
        told = self._begin("forced close", f"{doomed.told}, gateway {victim.node_id}")
        closed = self.force(doomed)
        new.stop()
        for each in (*doomed.dead, victim, new):
            take_off(each)
        bring_up(*doomed.dead)
        wait_until(lambda: self._refusal(old), "the earlier release to refuse", REFUSED_S_MAX)
        self.refused = self._refusal(old)
        others = [key for key in self.keys if key != doomed.key]
        self.wait_written("the earlier release to write the other partitions", others)
        self._check_unwritten(doomed.key)
        bring_up(new, victim)
        return f"{told}, closed at entry {closed['last_entry']}, refused: {self.refused}"

    def _refusal(self, old: ClusterGateway) -> str:
        found = _REFUSED.search(old.output())
        return "" if found is None else found[0].strip()

    def _check_unwritten(self, key: Key) -> None:
        at_s = self.recorder.now_s()
        self.rest(REST_S)
        if self.since(at_s, [key])[key]:
            self.faults.append(f"the earlier release wrote {key} behind a forced close")


def harm(stage: UpgradeStage, say: Callable[[str], None]) -> None:
    """Upgrade everything, with a forced close half way."""
    began_s = time.monotonic()

    def tell(text: str) -> None:
        say(f"{time.monotonic() - began_s:5.1f} s: {text}")
        stage.rest(REST_S)

    stage.kill_gateway()
    for number in (0, 1, 2):
        tell(stage.upgrade_bookie(number))
    tell(stage.upgrade_gateway(0))
    stage.wait_written("everybody to write beside a gateway of this release")
    tell(stage.close_by_force_half_way())
    tell(stage.upgrade_gateway(2))
    stage.wait_written("a gateway of this release to take over all partitions")
    for number in (3, 4, 5):
        tell(stage.upgrade_bookie(number))
    tell(stage.kill_gateway())
    stage.world.audit_once()


def run(directory: Path, commit: str, seed: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Upgrade a cluster and judge what clients saw."""
    before = release(commit)
    began_s = time.monotonic()
    faults: list[str] = []
    with UpgradeStage(directory, before, seed=seed) as stage:
        try:
            harm(stage, say)
        except Exception:
            fail(faults, "the upgrade", say)
            stage.heal()
        result = judge(stage, faults, directory, say, spark=False)
    del result["spark_rows"]
    seconds = round(time.monotonic() - began_s)
    more = {"refused": stage.refused, "from": commit, "seed": seed, "seconds": seconds}
    return {**result, "proof": "upgrade", **more}


def main() -> int:
    flags = argparse.ArgumentParser(prog="make proof-upgrade", description=__doc__)
    flags.add_argument("--commit", default=COMMIT, help="the earlier release")
    flags.add_argument("--seed", type=int, default=0, help="of what is harmed [drawn]")
    chosen = flags.parse_args()
    seed = chosen.seed or random.SystemRandom().randrange(1, 2**31)
    faulthandler.register(signal.SIGUSR1)  # it shows where a run stands
    directory = Path(tempfile.mkdtemp(prefix="upgrade-"))

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    good = False
    try:
        result = run(directory, chosen.commit, seed, say)
        good = result["violations"] == 0
        print(json.dumps(result), flush=True)
    except PeerMissing as missing:
        say(str(missing))
    finally:
        if good:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            say(f"logs and history: {directory}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
