"""What the driver of a streaming query pays for many partitions: calls, and time beside one call.

    make bench-direct-plan                             100, 1,000 and 10,000 partitions
    python -m tests.bench.direct_plan --partitions 100 1000

One embedded gateway serves topics of growing numbers of partitions, each with one record. A query
on each of them opens, takes looks as its triggers do, and plans the first batch. Printed are the
calls of the metadata store and of the bookies per partition, and seconds. `round_trips` says how
many metadata calls, one after the other, the driver could make in the time of a look, per
partition: below 1, calls overlap or are left out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from gateway.pipelines.direct.offsets import PartitionSources
from gateway.pipelines.direct.options import parse
from gateway.pipelines.direct.triggers import Triggers
from gateway.pipelines.shared.storage import ReadStorage, open_storage
from ledger.adapters.system.clock import SystemClock
from ledger.client.client import LedgerClient
from tests.peers.gateway import Gateway
from tests.pipelines.counted import Counted

CREATE_S, FLUSH_S = 120, 300
ROUND_TRIPS = 200


def fill(gateway: Gateway, partitions: int) -> str:
    """Create a topic and put one record into each of its partitions."""
    name = f"t{partitions}"
    servers = {"bootstrap.servers": gateway.bootstrap}
    admin = AdminClient(servers)
    admin.create_topics([NewTopic(name, partitions)])[name].result(CREATE_S)
    producer = Producer(servers)
    for number in range(partitions):
        producer.produce(name, b"value", b"key", number)
        producer.poll(0)
    left = producer.flush(FLUSH_S)
    assert not left, f"{left} records were not acknowledged"
    return name


async def measure(metadata: str, topic: str, partitions: int) -> dict[str, Any]:
    async with open_storage(metadata) as opened:
        store = Counted(opened.store)
        bookies = Counted(opened.client._bookies)
        client: Any = LedgerClient(store, bookies, SystemClock())
        one_call_s = await _round_trip_s(opened.store)
        given = {"metadata": metadata, "path": topic, "startingOffsets": "earliest"}
        options = parse(given, streaming=True)
        sources = PartitionSources(ReadStorage(store, client), options)
        triggers = Triggers(sources, options)
        steps: dict[str, Any] = {}

        async def step(name: str, work: Any) -> Any:
            store.taken(), bookies.taken()
            began_s = time.monotonic()
            result = await work
            taken_s = time.monotonic() - began_s
            calls = {"metadata": store.taken().total(), "bookies": bookies.taken().total()}
            steps[name] = {
                "seconds": round(taken_s, 2),
                **{what: round(count / partitions, 2) for what, count in calls.items()},
                "round_trips": round(taken_s / partitions / one_call_s, 2),
            }
            return result

        end = await step("open", triggers.latest(None, None))
        start = await triggers.initial()
        tasks = await step("plan", triggers.tasks(start, end))
        assert len(tasks) == partitions
        for number in (1, 2):
            await step(f"look {number}", triggers.latest(None, None))
        sources.close()
        return {"partitions": partitions, "one_call_ms": round(one_call_s * 1000, 2), **steps}


async def _round_trip_s(store: Any) -> float:
    times: list[float] = []
    for _ in range(ROUND_TRIPS):
        began_s = time.monotonic()
        await store.exists("/")
        times.append(time.monotonic() - began_s)
    return median(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--partitions", type=int, nargs="+", default=[100, 1000, 10_000])
    asked = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="direct-plan-"))
    try:
        with Gateway(scratch / "gateway", ("--journal-sync", "never")) as gateway:
            for partitions in asked.partitions:
                topic = fill(gateway, partitions)
                print(f"{partitions} partitions are filled", file=sys.stderr, flush=True)
                print(json.dumps(asyncio.run(measure(gateway.ledgers, topic, partitions))))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
