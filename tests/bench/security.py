"""Security beside Apache Kafka 4.3, one after the other: one line of JSON for each row.

    make bench-security
    python -m tests.bench.security --runs 1 --rows quota

The rows:
- `quota`: a Java producer with a quota of 10 MB/s. The first hundred megabytes pass at once, as
  both windows allow; the rate afterwards is compared, without the last interval of the tool.
- `quotas-unused`: the CPU of a producer without a quota, while another client has one, against no
  quota at all. Only the gateway.
- `tls-produce`, `tls-consume`: records/s and CPU of the broker per GB over TLS, records of 100 B
  and 1 KiB in 1 and 6 partitions, with the same over PLAINTEXT.
- `handshakes`, `logins`: TLS handshakes, and logins by SCRAM-SHA-512 with 4,096 iterations, per
  second.
- `idle-memory`: memory of 2,000 idle TLS connections.
- `acls`: CPU of a producer with 10,000 ACLs against none. Only the gateway.
- `plain-logins`: the p99 of producers beside [500 logins by PLAIN a second](plain_logins.py),
  against quiet phases of the same run. Only the gateway.

Each line has the worst of all runs, and whether it is within its bound.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.bench import plain_logins
from tests.bench.security_sides import (
    At,
    Secure,
    add_user,
    at_once,
    client_keys,
    logged_in,
    new_secure,
    opened,
    shaken,
)
from tests.bench.sides import consume, create_topic, java, new_side, produce
from tests.gateway.pki import Authority
from tests.gateway.secure_rig import client_tls
from tests.peers import java_tools
from tests.peers.broker import Broker
from tests.peers.install import CACHE

SIDES = ("kafka", "gateway")
QUOTA_BYTES_PER_S = 10_000_000
RECORD_BYTES = 1_000
BURST_S = 10  # of the quota: the window without its newest sample
MEASURED_S = 90  # some periods of the window, each of which may begin with a burst
_INTERVAL_S = 5  # of the tool's reports
OFF_SHARE_MAX = 0.05
UNUSED_CPU_MAX = 1.02
UNUSED_RECORDS = 600_000
_INTERVAL = re.compile(r"^(\d+) records sent, ([\d.]+) records/sec \(", re.MULTILINE)

Row = dict[str, Any]
CASES = tuple(itertools.product((100, 1024), (1, 6)))
TLS_BYTES = 150_000_000
HANDSHAKES, LOGINS, LOGINS_AT_ONCE, IDLE = 1_000, 500, 100, 2_000
ACLS, ACLS_AT_ONCE = 10_000, 500
ACLS_CPU_MAX = 1.03


def limit(broker: Broker, client: str, config: str) -> None:
    """Set a quota of a client id by Kafka's own tool."""
    place = ("--entity-type", "clients", "--entity-name", client)
    words = ("--bootstrap-server", broker.bootstrap, "--alter", *place, "--add-config", config)
    java(java_tools.CONFIGS, *words)


def unlimit(broker: Broker, client: str) -> None:
    """Remove the quota of a client id."""
    place = ("--entity-type", "clients", "--entity-name", client)
    words = ("--bootstrap-server", broker.bootstrap, "--alter", *place)
    java(java_tools.CONFIGS, *words, "--delete-config", "producer_byte_rate")


def held_bytes_per_s(broker: Broker) -> float:
    """Return the rate of a producer under the quota, once the burst is over."""
    topic = client = "limited"
    create_topic(broker, topic, 1)
    limit(broker, client, f"producer_byte_rate={QUOTA_BYTES_PER_S}")
    records = (BURST_S + MEASURED_S) * QUOTA_BYTES_PER_S // RECORD_BYTES
    said = java(
        java_tools.PRODUCER_PERFORMANCE,
        *("--topic", topic, "--num-records", str(records), "--record-size", str(RECORD_BYTES)),
        *("--throughput", "-1", "--bootstrap-server", broker.bootstrap),
        *("--command-property", "acks=all", f"client.id={client}"),
    )
    reports = [(int(count), float(rate)) for count, rate in _INTERVAL.findall(said)]
    steady = reports[2:-1]  # the burst takes one interval, and what it left another
    assert len(steady) >= MEASURED_S // _INTERVAL_S // 2, said[-2_000:]
    took_s = sum(count / rate for count, rate in steady)
    return sum(count for count, _ in steady) / took_s * RECORD_BYTES


def quota(scratch: Path, runs: int) -> Row:
    """Measure how far the rates of both sides are from the quota."""
    found: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(runs):
        for side in SIDES:
            with new_side(side, False, scratch / side) as broker:
                found[side].append(held_bytes_per_s(broker))
            shutil.rmtree(scratch / side, ignore_errors=True)
    off = {
        side: max((abs(rate / QUOTA_BYTES_PER_S - 1) for rate in rates), default=1.0)
        for side, rates in found.items()
    }
    return {
        "bytes_per_s": {side: [round(rate) for rate in rates] for side, rates in found.items()},
        "off_share": {side: round(share, 4) for side, share in off.items()},
        "within": off["gateway"] <= OFF_SHARE_MAX,
    }


def unused(scratch: Path, runs: int) -> Row:
    """Measure the CPU of a producer while another client has a quota, against none."""
    found: list[Phases] = []
    for _ in range(runs):
        with new_side("gateway", False, scratch / "gateway") as broker:
            set_quota = partial(limit, broker, "another", f"producer_byte_rate={QUOTA_BYTES_PER_S}")
            found.append(_phases(broker, set_quota, partial(unlimit, broker, "another")))
        shutil.rmtree(scratch / "gateway", ignore_errors=True)
    return _compared(found, UNUSED_CPU_MAX)


Phases = tuple[list[float], list[float]]
"""The CPU of a producer, in seconds per GB, in phases without something and in those with it."""


def _compared(found: Sequence[Phases], ratio_max: float) -> Row:
    """Compare medians: those of each run, and those of all phases.

    A phase differs from the next like it by up to a tenth, so a run alone may differ by 5 %.
    """
    runs = [round(median(beside_it) / median(without), 3) for without, beside_it in found]
    every = [[value for run in found for value in run[kind]] for kind in (0, 1)]
    pooled = round(median(every[1]) / median(every[0]), 3)
    within = max(runs) <= ratio_max
    return {"cpu_ratio": max(runs), "runs_each": runs, "of_all_phases": pooled, "within": within}


def _phases(broker: Broker, add: Callable[[], None], remove: Callable[[], None]) -> Phases:
    """Measure a producer after `add` and after `remove`, again and again.

    Phases alternate, because later ones may cost more for other reasons.
    """
    create_topic(broker, "t", 1)
    produce(broker, "t", RECORD_BYTES, UNUSED_RECORDS // 3)
    without, beside_it = [_cpu_s_per_gb(broker)], list[float]()
    for _ in range(3):
        add()
        beside_it.append(_cpu_s_per_gb(broker))
        remove()
        without.append(_cpu_s_per_gb(broker))
    print(json.dumps({"without": without, "with": beside_it}), file=sys.stderr, flush=True)
    return without, beside_it


def _cpu_s_per_gb(broker: Broker) -> float:
    return produce(broker, "t", RECORD_BYTES, UNUSED_RECORDS // 2).cpu_s_per_gb


Measure = Callable[[Secure], dict[str, float]]
Bounds = dict[str, tuple[float, float]]
"""The least and the most that the gateway's figure may be of Kafka's."""


def beside(
    scratch: Path, runs: int, measure: Measure, bounds: Bounds, flags: Sequence[str] = ()
) -> Row:
    """Measure both sides in each run. The worst ratio of each figure counts."""
    ratios: dict[str, list[float]] = {}
    for _ in range(runs):
        found: dict[str, dict[str, float]] = {}
        for side in SIDES:
            with new_secure(side, scratch / side, flags if side == "gateway" else ()) as broker:
                found[side] = measure(broker)
            shutil.rmtree(scratch / side, ignore_errors=True)
        print(json.dumps(found), file=sys.stderr, flush=True)
        for name, value in found["gateway"].items():
            ratios.setdefault(name, []).append(value / max(found["kafka"][name], 1e-9))
    row: Row = {"figures": found, "ratios": {}, "within": True}
    for name, values in ratios.items():
        least, most = bounds[name.rsplit(" ", 1)[-1]]
        worst = min(values) if least else max(values)
        row["ratios"][name] = round(worst, 3)
        row["within"] &= least <= worst <= most
    return row


def _over(tool: str, broker: Secure) -> dict[str, float]:
    found: dict[str, float] = {}
    for size, partitions in CASES:
        records = TLS_BYTES // size // (2 if size == 100 else 1)
        for protocol in ("PLAINTEXT", "SSL"):
            at, keys = At(broker, protocol), client_keys(broker, protocol)
            topic = f"{protocol}-{size}-{partitions}"
            create_topic(broker, topic, partitions)
            written = produce(at, topic, size, records, -1, *keys)  # one option with many values
            if tool == "consume":
                words = [word for key in keys for word in ("--command-property", key)]
                written = consume(at, topic, size, records, *words)
            name = f"{size} B, {partitions} partitions, {protocol}"
            found[f"{name} records_per_s"] = written.records_per_s
            found[f"{name} cpu_s_per_gb"] = written.cpu_s_per_gb
    return found


def tls_produce(scratch: Path, runs: int) -> Row:
    """Compare producers over TLS and over PLAINTEXT."""
    bounds = {"records_per_s": (1.0, math.inf), "cpu_s_per_gb": (0.0, 0.7)}
    return beside(scratch, runs, lambda broker: _over("produce", broker), bounds)


def tls_consume(scratch: Path, runs: int) -> Row:
    """Compare consumers over TLS and over PLAINTEXT."""
    bounds = {"records_per_s": (0.8, math.inf), "cpu_s_per_gb": (0.0, 1.2)}
    return beside(scratch, runs, lambda broker: _over("consume", broker), bounds)


def handshakes(scratch: Path, runs: int) -> Row:
    """Compare TLS handshakes a second."""

    def measure(broker: Secure) -> dict[str, float]:
        port, context = broker.ports["SSL"], client_tls(broker.authority)
        asyncio.run(at_once([shaken(port, context) for _ in range(HANDSHAKES // 10)]))
        begun_s = time.monotonic()
        asyncio.run(at_once([shaken(port, context) for _ in range(HANDSHAKES)]))
        return {"handshakes_per_s": HANDSHAKES / (time.monotonic() - begun_s)}

    return beside(scratch, runs, measure, {"handshakes_per_s": (0.5, math.inf)})


def logins(scratch: Path, runs: int) -> Row:
    """Compare logins a second."""

    def measure(broker: Secure) -> dict[str, float]:
        add_user(broker)
        port = broker.ports["SASL_PLAINTEXT"]
        asyncio.run(at_once([logged_in(port) for _ in range(20)]))
        begun_s = time.monotonic()
        asyncio.run(at_once([logged_in(port) for _ in range(LOGINS)], LOGINS_AT_ONCE))
        return {"logins_per_s": LOGINS / (time.monotonic() - begun_s)}

    return beside(scratch, runs, measure, {"logins_per_s": (0.5, math.inf)})


def idle_memory(scratch: Path, runs: int) -> Row:
    """Compare the memory that idle TLS connections take."""

    def measure(broker: Secure) -> dict[str, float]:
        port, context = broker.ports["SSL"], client_tls(broker.authority)

        async def grown() -> float:
            few = await at_once([opened(port, context) for _ in range(50)])
            before = broker.usage().resident_bytes
            many = await at_once([opened(port, context) for _ in range(IDLE)])
            after = broker.usage().resident_bytes
            for each in (*few, *many):
                each.close()
            return after - before

        return {"bytes": asyncio.run(grown())}

    return beside(scratch, runs, measure, {"bytes": (0.0, 0.5)})


def acls(scratch: Path, runs: int) -> Row:
    """Measure the CPU of a producer with 10,000 ACLs of other topics, against none."""
    flags = ("--authorizer", "standard", "--allow-everyone-if-no-acl-found")
    found: list[Phases] = []
    for _ in range(runs):
        with new_secure("gateway", scratch / "gateway", flags) as broker:
            add, remove = partial(_add_acls, broker), partial(_remove_acls, broker)
            found.append(_phases(broker, add, remove))
        shutil.rmtree(scratch / "gateway", ignore_errors=True)
    return _compared(found, ACLS_CPU_MAX)


def _add_acls(broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for first in range(0, ACLS, ACLS_AT_ONCE):
        added = [
            AclBinding(
                ResourceType.TOPIC,
                f"other-{number}",
                ResourcePatternType.LITERAL,
                f"User:u{number}",
                "*",
                AclOperation.READ,
                AclPermissionType.ALLOW,
            )
            for number in range(first, first + ACLS_AT_ONCE)
        ]
        for future in admin.create_acls(added, request_timeout=60).values():
            future.result(60)


def _remove_acls(broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    everything = AclBindingFilter(
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    for future in admin.delete_acls([everything], request_timeout=60).values():
        future.result(60)


def plain(scratch: Path, runs: int) -> Row:
    """Measure producers beside logins by PLAIN, against quiet phases. The worst run counts."""
    found: list[Row] = []
    for _ in range(runs):
        with plain_gateway(scratch / "gateway") as broker:
            create_topic(broker, "t", plain_logins.PRODUCERS)
            add_user(broker, plain_logins.ITERATIONS)
            found.append(plain_logins.phases(broker))
        shutil.rmtree(scratch / "gateway", ignore_errors=True)
        print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    worst = max(found, key=lambda each: float(each["p99_ratio"]))
    return {**worst, "within": all(map(plain_logins.within, found))}


def plain_gateway(data: Path) -> plain_logins.PlainGateway:
    """Return a gateway that is not started. Its certificate is beside its data."""
    authority = Authority(data.with_name(f"{data.name}-pki"))
    authority.issue("server")
    return plain_logins.PlainGateway(data, authority)


ROWS: dict[str, Callable[[Path, int], Row]] = {
    "quota": quota,
    "quotas-unused": unused,
    "tls-produce": tls_produce,
    "tls-consume": tls_consume,
    "handshakes": handshakes,
    "logins": logins,
    "idle-memory": idle_memory,
    "acls": acls,
    "plain-logins": plain,
}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Security beside Apache Kafka 4.3.")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rows", default=",".join(ROWS), help="names, with commas between them")
    asked = parser.parse_args(words)
    within = True
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        for name in asked.rows.split(","):
            row = ROWS[name](Path(scratch), asked.runs)
            within &= bool(row["within"])
            print(json.dumps({"bench": "security", "row": name, "runs": asked.runs, **row}))
            sys.stdout.flush()
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
