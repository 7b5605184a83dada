"""What a slow bookie costs readers, and what finding it costs a healthy cluster.

    make bench-reading
    python -m tests.bench.reading --rounds 1 --seconds 10 --settle 5
    python -m tests.bench.reading --before DIR        beside the gateway of another tree
    python -m tests.bench.reading --seconds 0         only the reads from the start

Three bookies, each behind a proxy, and gateways of both detection modes on one ZooKeeper. A round
reads at random offsets that no cache holds, with all bookies alike and then with one of them 50 ms
slower; it follows new records at a second gateway; it reads all records from the start, in pairs of
reads of a second each, of which the middle ratio counts. The gateways take turns, and the worst of
the rounds counts. Ratios of p99 compare a cluster with a slow bookie with the same one without;
they count from `--settle` seconds on.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tests.bench.fetch_cost import (
    PARTITION_BYTES,
    RECORD_BYTES,
    TOPIC,
    by_socket,
    cpu_split_s,
    end_of,
    fetch_request,
)
from tests.bench.sides import produce
from tests.cluster.world import World
from tests.peers import install
from tests.peers.gateway import ClusterGateway
from tests.peers.install import CACHE
from tests.peers.processes import free_port, wait_until
from tests.peers.proxy import TO_CLIENT, Proxy

SLOWER_S = 0.05
READ_BYTES = 4 * 1024
NEW = "new"
PACE_S = 0.01
IDLE_S = 2.0
IDLE_CPU = 0.08  # of one core, at most; a slow core needs half of it at rest
MODES = ("enabled", "disabled")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class TreeGateway(ClusterGateway):
    """A gateway of another source tree."""

    tree = ""

    def argv(self) -> list[str]:
        python, _, _, *words = super().argv()
        run = (
            f"import runpy, sys; sys.path.insert(0, {self.tree!r}); sys.argv[0] = 'gateway'; "
            "runpy.run_module('gateway', run_name='__main__', alter_sys=True)"
        )
        return [python, "-c", run, *words]


class Reader:
    """One connection that fetches at any offset."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answer = memoryview(bytearray(2 * PARTITION_BYTES))

    def fetch(self, offset: int) -> float:
        """Return the seconds until the records at `offset` were here."""
        asked_s = time.perf_counter()
        self._socket.sendall(fetch_request(offset, READ_BYTES))
        size = self._socket.recv_into(self._answer)
        while size < 4 or size < 4 + int.from_bytes(self._answer[:4], "big"):
            size += self._socket.recv_into(self._answer[size:])
        took_s = time.perf_counter() - asked_s
        assert end_of(self._answer[:size]) > offset
        return took_s

    def close(self) -> None:
        self._socket.close()


def create_topics(servers: str) -> None:
    """Both topics have three copies, one on each bookie."""
    from confluent_kafka.admin import AdminClient, NewTopic

    settings = {"segment.bytes": str(4 * 1024 * 1024)}
    wanted = [NewTopic(name, 1, 3, config=settings) for name in (TOPIC, NEW)]
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    for created in admin.create_topics(wanted).values():
        created.result(30.0)


def leader_of(servers: str, topic: str) -> int:
    """Return the node id of the gateway that owns the topic's partition, or -1."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    return admin.list_topics(topic, 10.0).topics[topic].partitions[0].leader


def wait_owner(gateway: ClusterGateway) -> None:
    """Wait until the only gateway owns the records, also those of one that has just ended."""

    def owns() -> bool:
        return leader_of(gateway.bootstrap, TOPIC) == gateway.node_id

    wait_until(owns, "the gateway to own the records", pause_s=0.2)


def wait_idle(gateway: ClusterGateway) -> None:
    """Wait until the gateway has done what it does once after its start."""
    used: list[float] = []

    def idle() -> bool:
        used.append(sum(cpu_split_s(gateway.process.pid)))
        return len(used) > 1 and used[-1] - used[-2] <= IDLE_CPU * IDLE_S

    wait_until(idle, "the gateway to be idle", pause_s=IDLE_S)


def p99_ms(latencies: Sequence[float]) -> float:
    return 1000 * sorted(latencies)[int(0.99 * len(latencies))]


class Healthy(NamedTuple):
    """One catch-up read of all records."""

    records_per_s: float
    cpu_s: float
    bytes_per_byte: float


class Stage:
    """The cluster, with one topic that no cache holds as a whole."""

    def __init__(self, directory: Path, asked: argparse.Namespace) -> None:
        self.asked = asked
        self.directory = directory
        self.world = World(directory, 3)
        if asked.before is not None:
            self._proxy_grpc()
        self._started = 0

    def _proxy_grpc(self) -> None:
        """Put proxies before the gRPC ports: gateways of earlier trees know no others."""
        for number, bookie in enumerate(self.world.bookies):
            port = free_port()
            bookie.options += ["--grpc-port", str(port)]
            host = f"127.0.0.{11 + number}"
            self.world.proxies.append(Proxy(port, host=host, listen_port=port))

    def __enter__(self) -> Stage:
        self.world.start()
        try:
            with self.gateway("enabled") as gateway:
                create_topics(gateway.bootstrap)
                produce(gateway, TOPIC, RECORD_BYTES, self.asked.records)
        except BaseException:
            self.world.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.world.stop()

    def gateway(self, mode: str, *, node_id: int = 0, rack: str = "") -> ClusterGateway:
        """A new gateway of this tree, or of `--before` if the mode is `before`; not started."""
        self._started += 1
        data = self.directory / f"gateway-{self._started}"
        kind = TreeGateway if mode == "before" else ClusterGateway
        options = [] if mode == "before" else ["--reader-slow-shards-detection", mode]
        gateway = kind(data, self.world.zookeeper.servers, options, node_id=node_id, rack=rack)
        if isinstance(gateway, TreeGateway):
            gateway.tree = str(self.asked.before.resolve())
            gateway.session_flag = ("--session-ms", "")
        return gateway

    def slow(self, latency_s: float) -> None:
        """The first bookie answers that much later from now on."""
        self.world.proxies[0].slow(TO_CLIENT, latency_s=latency_s)

    def sent_bytes(self) -> int:
        """Bytes that left the bookies, to whomever."""
        return sum(proxy.passed_bytes(TO_CLIENT) for proxy in self.world.proxies)

    # -- what is measured ----------------------------------------------------------------------

    def random_reads(self, mode: str) -> float:
        """Return p99 with a slow bookie / p99 without."""
        found: list[float] = []
        for latency_s in (0.0, SLOWER_S):
            with self.gateway(mode) as gateway:
                self.slow(latency_s)
                wait_owner(gateway)
                latencies = self._random_reads(gateway)
                found.append(p99_ms(latencies))
                say(f"{mode}, +{1000 * latency_s:g} ms: p99 {found[-1]:.1f} ms")
            self.slow(0.0)
        return found[1] / found[0]

    def _random_reads(self, gateway: ClusterGateway) -> list[float]:
        reader, draw = Reader(gateway.port), random.Random(7)
        began_s, latencies = time.monotonic(), []
        while (now_s := time.monotonic() - began_s) < self.asked.settle + self.asked.seconds:
            took_s = reader.fetch(draw.randrange(self.asked.records))
            if now_s >= self.asked.settle:
                latencies.append(took_s)
        reader.close()
        return latencies

    def tail_reads(self) -> float:
        """Return the p99 of a new record at a follower with a slow bookie / without."""
        found: list[float] = []
        for latency_s in (0.0, SLOWER_S):
            one = self.gateway("enabled", rack="r1")
            other = self.gateway("enabled", node_id=1, rack="r2")
            with one, other:
                self.slow(latency_s)
                latencies = self._follow(f"{one.bootstrap},{other.bootstrap}")
                found.append(p99_ms(latencies))
                say(f"follower, +{1000 * latency_s:g} ms: p99 {found[-1]:.1f} ms")
            self.slow(0.0)
        return found[1] / found[0]

    def _follow(self, servers: str) -> list[float]:
        from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

        settings = {"bootstrap.servers": servers, "log_level": 0}
        rack = "r2" if leader_of(servers, NEW) == 0 else "r1"
        consumer = Consumer({**settings, "group.id": "b", "client.rack": rack})
        consumer.assign([TopicPartition(NEW, 0, OFFSET_END)])
        consumer.poll(5.0)
        producer = Producer({**settings, "linger.ms": 0})
        began_s, latencies = time.monotonic(), []
        while (now_s := time.monotonic() - began_s) < self.asked.settle + self.asked.seconds:
            producer.produce(NEW, str(time.monotonic()).encode(), partition=0)
            producer.poll(0)
            message = consumer.poll(PACE_S)
            while message is not None:
                if now_s >= self.asked.settle and message.error() is None:
                    latencies.append(time.monotonic() - float(message.value()))
                message = consumer.poll(0)
        consumer.close()
        producer.flush(10.0)
        return latencies

    def catch_up(self, mode: str) -> Healthy:
        """Read all records from the start; all bookies are alike."""
        with self.gateway(mode) as gateway:
            wait_owner(gateway)
            wait_idle(gateway)
            before, cpu = self.sent_bytes(), cpu_split_s(gateway.process.pid)
            began_s = time.perf_counter()
            by_socket(gateway, self.asked.records)
            seconds = time.perf_counter() - began_s
            used = cpu_split_s(gateway.process.pid)
            payload = self.asked.records * RECORD_BYTES
            found = Healthy(
                self.asked.records / seconds,
                sum(used) - sum(cpu),
                (self.sent_bytes() - before) / payload,
            )
            say(f"catch-up, {mode}: {found}")
            return found


def one_round(stage: Stage, number: int) -> dict[str, float]:
    found = {}
    if stage.asked.seconds:
        ratios = {mode: stage.random_reads(mode) for mode in MODES[:: -1 if number % 2 else 1]}
        found = {
            "slow_p99_ratio": ratios["enabled"],
            "slow_p99_ratio_off": ratios["disabled"],
            "tail_slow_p99_ratio": stage.tail_reads(),
        }
    sides = ("enabled", "before") if stage.asked.before else MODES
    pairs = []
    for pair in range(stage.asked.pairs):
        in_turn = sides[:: -1 if (number + pair) % 2 else 1]
        healthy = {side: stage.catch_up(side) for side in in_turn}
        pairs.append([healthy[side] for side in sides])
    return found | {
        "bytes_per_byte": median(now.bytes_per_byte / then.bytes_per_byte for now, then in pairs),
        "catchup_vs_before": median(now.records_per_s / then.records_per_s for now, then in pairs),
        "cpu_vs_before": median(now.cpu_s / then.cpu_s for now, then in pairs),
    }


def worst(rounds: list[dict[str, float]]) -> dict[str, float]:
    """The lowest catch-up rate, and the highest of everything else."""
    return {
        name: round((min if name.startswith("catchup") else max)(one[name] for one in rounds), 3)
        for name in rounds[0]
    }


def main() -> int:
    """Run, and print one line of JSON."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--rounds", type=int, default=3, help="the worst of so many is reported")
    words.add_argument("--seconds", type=float, default=60.0, help="measured in each run")
    words.add_argument("--settle", type=float, default=60.0, help="not measured before them")
    words.add_argument("--records", type=int, default=5_000_000, help="of 100 bytes")
    words.add_argument("--pairs", type=int, default=7, help="reads from the start by each side")
    words.add_argument("--before", type=Path, help="the tree to compare with; else mode disabled")
    asked = words.parse_args()
    CACHE.mkdir(exist_ok=True)
    install.gateway_python()
    scratch = Path(tempfile.mkdtemp(prefix="bench-reading-", dir=CACHE))
    try:
        with Stage(scratch, asked) as stage:
            rounds = [one_round(stage, number) for number in range(asked.rounds)]
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(json.dumps({"bench": "reading", **worst(rounds)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
