"""What the counts of requests cost each request, in nanoseconds.

python -m tests.bench.request_metrics
"""

from __future__ import annotations

import json
import timeit
from time import monotonic

from gateway.handlers.api import Peer, Request
from gateway.handlers.request_metrics import RequestMetrics
from gateway.topics.topic_traffic import Traffic

NUMBER = 200_000
REPEATS = 5


def nanoseconds(statement: str, **names: object) -> float:
    """The least time of one execution."""
    best = min(timeit.repeat(statement, globals=names, number=NUMBER, repeat=REPEATS))
    return round(best / NUMBER * 1e9, 1)


def costs() -> dict[str, float]:
    metrics = RequestMetrics()
    metrics.serve({0: "Produce"})
    request = Request(0, 9, 1, "client", Peer("h", 1, "l", 2), None)
    request.begun_s = monotonic()
    metrics.apis[0].slow_above_s = 1e9
    stamps = "request.begun_s = monotonic(); request.accepted_s = monotonic()"
    counts = "traffic = path; traffic.bytes_in += size; traffic.records_in += records"
    return {
        "ended": nanoseconds("ended(request, ())", ended=metrics.ended, request=request),
        "stamps": nanoseconds(stamps, monotonic=monotonic, request=request),
        "topic": nanoseconds(counts, path=Traffic(), size=1000, records=10),
    }


def main() -> None:
    found = costs()
    print(json.dumps({**found, "sum_ns": round(sum(found.values()), 1)}))


if __name__ == "__main__":
    main()
