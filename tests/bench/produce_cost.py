"""What transactions cost producers without one, and readers: steps.

    python -m tests.bench.produce_cost

The steps of the interpreter from a batch or a request to its answer are counted: one partition over
real streams and a simulated bookie on virtual time, before and after a transaction of another
producer. Steps do not depend on the machine.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kio.schema.errors import ErrorCode

from tests.gateway.stream_cluster import FETCH, PRODUCE, batch, started_cluster
from tests.gateway.test_fetch import request
from tests.gateway.test_transaction_path import marked, opened, part, sent
from tests.sim.loop import simulate
from tests.steps import counted

VERSION = 12  # of Produce and Fetch
REPEATS = 5
DONE_S = 0.05


async def _request(cluster: Any, key: int, **fields: Any) -> int:
    """Return the steps of one request, until all that it started is done."""
    with counted() as steps:
        reply = await cluster.answer(key, VERSION, **fields)
        await asyncio.sleep(DONE_S)
    (topic,) = reply.responses
    (one,) = topic.partition_responses if key == PRODUCE else topic.partitions
    assert one.error_code is ErrorCode.none
    return steps.count


async def _append(cluster: Any, partition: Any, data: bytes) -> int:
    """Return the steps of one batch in its partition, until all that it started is done."""
    with counted() as steps:
        (produced,) = await cluster.sent(partition, data)
        await asyncio.sleep(DONE_S)
    assert produced.error is ErrorCode.none
    return steps.count


def _produce(data: bytes) -> dict[str, Any]:
    topics = [{"name": "t", "partition_data": [{"index": 0, "records": data}]}]
    return {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": topics}


async def _costs(*, used: bool) -> dict[str, int]:
    async with started_cluster() as cluster:
        partition, _ = await opened(cluster)
        if used:
            await sent(partition, part(0))
            await marked(partition)
        found: dict[str, list[int]] = {"plain batch": [], "idempotent batch": []}
        found |= {"Produce": [], "Fetch": []}
        for number in range(REPEATS):
            found["plain batch"].append(await _append(cluster, partition, batch()))
            idempotent = batch(2 * number)
            found["idempotent batch"].append(await _append(cluster, partition, idempotent))
            found["Produce"].append(await _request(cluster, PRODUCE, **_produce(batch())))
            newest = {"t": {0: (partition.high_watermark - 2, {})}}
            asked = request(cluster, newest, VERSION, wait_ms=0)
            found["Fetch"].append(await _request(cluster, FETCH, **asked))
    return {name: min(steps) for name, steps in found.items()}


def costs(*, used: bool) -> dict[str, int]:
    """Return the least steps of a batch without and with a sequence, of a Produce and of a Fetch.

    With `used`, the partition has had a transaction.
    """
    return simulate(_costs(used=used))


def main() -> None:
    before, after = costs(used=False), costs(used=True)
    for name, steps in before.items():
        print(f"{name:18}{steps:6} steps  after a transaction {after[name] - steps:+d}")


if __name__ == "__main__":
    main()
