"""How long nothing is acknowledged when a bookie dies, to a ledger writer and to Kafka clients.

    python -m tests.cluster.pause --rounds 5

A ledger writer and a Kafka producer (through `gateway serve`) write evenly to three bookies, then
to four; one is killed, later started again, each in its turn. The longest gap between two
acknowledgements (of one ledger, of one partition) in the seconds after the kill is held against
the longest one in as many seconds before it. Once more with a bookie that falls silent instead.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.cluster.history import longest_gap_ms
from tests.cluster.world import World
from tests.peers.bookie import BookieProcess
from tests.peers.gateway import ClusterGateway
from tests.peers.processes import wait_until

PARTITIONS = 4
PACE_S = 0.002
SPAN_MS = 4_000.0  # before the harm, and after it
VALUE = b"." * 300


class Paced:
    """A Kafka producer that sends evenly, and when each partition acknowledged something."""

    def __init__(self, bootstrap: str) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        for made in admin.create_topics([NewTopic("paced", PARTITIONS, 3)]).values():
            made.result(30.0)
        self.at_ms: dict[int, list[float]] = defaultdict(list)
        self.failed: list[str] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._ending.is_set():
            self._producer.produce(
                "paced", VALUE, partition=number % PARTITIONS, on_delivery=self._delivered
            )
            number += 1
            self._producer.poll(PACE_S)
            self._ending.wait(PACE_S)

    def _delivered(self, error, message) -> None:
        if error is not None:
            self.failed.append(str(error))
        else:
            self.at_ms[message.partition()].append(time.monotonic() * 1000)

    def end(self) -> None:
        self._ending.set()
        self._thread.join(60)
        assert self._producer.flush(60.0) == 0


@dataclass
class Round:
    """What was done to one bookie, and the longest gaps after it and before it."""

    bookies: int
    harm: str
    ledger_ms: float
    kafka_ms: float
    quiet_ms: float

    def __str__(self) -> str:
        return (
            f"{self.harm:6s} one of {self.bookies}: ledger {self.ledger_ms:6.1f} ms, "
            f"Kafka {self.kafka_ms:6.1f} ms, before it {self.quiet_ms:6.1f} ms"
        )


class Bench:
    """A cluster under even load."""

    def __init__(self, directory: Path, bookies: int) -> None:
        self.world = World(directory, bookies, proxied=False)
        self.directory = directory

    def __enter__(self) -> Bench:
        self.world.start()
        try:
            servers = self.world.zookeeper.servers
            self.gateway = ClusterGateway(self.directory / "gateway", servers).start()
            self.kafka = Paced(self.gateway.bootstrap)
            self.world.start_clients("pace")
        except BaseException:
            self.world.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kafka.end()
        self.gateway.stop()
        self.world.stop()

    def round(self, number: int, harm: str) -> Round:
        """One bookie is harmed, and serves again afterwards."""
        self.pass_ms(SPAN_MS)
        bookie = self.victim(number)
        at_ms = time.monotonic() * 1000
        _ = bookie.pause() if harm == "pause" else bookie.kill()
        self.pass_ms(SPAN_MS)
        ledger = self.world.told("pace").at_ms.values()
        kafka = [list(times) for times in self.kafka.at_ms.values()]
        assert len(ledger) == 1 and len(kafka) == PARTITIONS
        after = [_worst(times, at_ms, at_ms + SPAN_MS) for times in (ledger, kafka)]
        before = [_worst(times, at_ms - SPAN_MS, at_ms) for times in (ledger, kafka)]
        result = Round(len(self.world.bookies), harm, *after, max(before))
        self.mend(bookie)
        assert self.kafka.failed == []
        return result

    def victim(self, number: int) -> BookieProcess:
        """One to which the ledger writer writes now; most partitions do as well."""
        (ledger,) = self.world.told("pace").acked
        (metadata,) = [one for one in self.world.metadata() if one.ledger == ledger]
        ensemble = sorted(metadata.last_fragment.ensemble)
        chosen = ensemble[number % len(ensemble)]
        (bookie,) = [one for one in self.world.bookies if one.id == chosen]
        return bookie

    def mend(self, bookie: BookieProcess) -> None:
        """It serves, and what is written to is whole again."""
        if bookie.running:
            bookie.resume()
        else:
            bookie.start()
        self.pass_ms(SPAN_MS)

    def pass_ms(self, wait_ms: float) -> None:
        """The load goes on so long."""
        end_s = time.monotonic() + wait_ms / 1000
        wait_until(lambda: time.monotonic() >= end_s, "time to pass", wait_ms)


def _worst(lists, from_ms: float, to_ms: float) -> float:
    return max(longest_gap_ms(times, from_ms, to_ms) for times in lists)


def run(rounds: int, say: Callable[[str], None]) -> dict[str, object]:
    done: list[Round] = []
    for bookies in (3, 4):
        with (
            tempfile.TemporaryDirectory(prefix="pause-") as directory,
            Bench(Path(directory), bookies) as bench,
        ):
            for harm, number in itertools.product(("kill", "pause"), range(rounds)):
                done.append(bench.round(number, harm))
                say(str(done[-1]))
    killed = [one for one in done if one.harm == "kill"]
    silent = [one for one in done if one.harm == "pause"]
    return {
        "bench": "pause",
        "rounds": len(killed),
        "ledger_ms_worst": round(max(one.ledger_ms for one in killed)),
        "kafka_ms_worst": round(max(one.kafka_ms for one in killed)),
        "quiet_ms_worst": round(max(one.quiet_ms for one in killed)),
        "silent_ledger_ms_worst": round(max(one.ledger_ms for one in silent)),
        "silent_kafka_ms_worst": round(max(one.kafka_ms for one in silent)),
        "silent_quiet_ms_worst": round(max(one.quiet_ms for one in silent)),
        "load_average": os.getloadavg()[0],
    }


def main() -> int:
    flags = argparse.ArgumentParser(prog="python -m tests.cluster.pause", description=__doc__)
    flags.add_argument("--rounds", type=int, default=5)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    print(json.dumps(run(flags.parse_args().rounds, say)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
