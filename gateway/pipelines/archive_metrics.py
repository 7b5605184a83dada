"""The metrics of an archive job that runs, in Prometheus' text format."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from gateway.pipelines.archives.archive_model import ArchiveWatcher
from gateway.pipelines.shared.errors import JobError
from ledger.ports.clock import Clock

if TYPE_CHECKING:
    from gateway.pipelines.archives.rounds import ArchiveRound

_RATE_S = 60.0
"""The time over which the rate is a mean."""


class ArchiveMetrics(ArchiveWatcher):
    """Counters and gauges of one job. Reports come from the job, reads from the server's thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.registry = CollectorRegistry()
        registry = self.registry
        self._offsets = Counter("gateway_job_records", "Archived offsets.", registry=registry)
        self._commits = Counter("gateway_job_commits", "Commits of the archive.", registry=registry)
        self._lost = Counter(
            "gateway_job_lost_records",
            "Offsets that the archive goes without, by the first word of the reason.",
            ["reason"],
            registry=registry,
        )
        self._retries = Counter(
            "gateway_job_retries", "Retried errors.", ["code"], registry=registry
        )
        self._lag = Gauge(
            "gateway_job_lag", "Offsets that are not archived yet.", registry=registry
        )
        self._last = Gauge(
            "gateway_job_last_commit_timestamp_seconds",
            "Time of the last commit.",
            registry=registry,
        )
        self._aside = Gauge(
            "gateway_job_topic_set_aside",
            "1: the job leaves out the topic.",
            ["topic", "code"],
            registry=registry,
        )
        rate = Gauge(
            "gateway_job_records_per_second",
            "Archived offsets per second, in a minute.",
            registry=registry,
        )
        rate.set_function(self._rate)
        # The time and the number of offsets of each commit of the last minute.
        self._recent: deque[tuple[float, int]] = deque()
        self._began_s = clock.monotonic_s()

    def on_planned(self, offsets: int) -> None:
        self._lag.set(offsets)

    def on_committed(self, done: ArchiveRound) -> None:
        self._commits.inc()
        self._offsets.inc(done.offsets)
        self._lag.dec(done.offsets)
        self._last.set(self._clock.now_ms() / 1000)
        for each in done.lost:
            self._lost.labels(each.reason.partition(":")[0]).inc(each.range.length)
            self._lag.dec(each.range.length)
        now_s = self._clock.monotonic_s()
        while self._recent and now_s - self._recent[0][0] > _RATE_S:
            self._recent.popleft()
        self._recent.append((now_s, done.offsets))

    def on_retry(self, error: JobError, wait_s: float) -> None:
        self._retries.labels(error.code).inc()

    def on_set_aside(self, topic: str, error: JobError) -> None:
        self._aside.labels(topic, error.code).set(1)

    def on_recovered(self, topic: str, error: JobError) -> None:
        self._aside.remove(topic, error.code)

    def _rate(self) -> float:
        now_s = self._clock.monotonic_s()
        recent = [count for at_s, count in list(self._recent) if now_s - at_s <= _RATE_S]
        return sum(recent) / max(1.0, min(_RATE_S, now_s - self._began_s))


@contextmanager
def served(metrics: ArchiveMetrics, host: str, port: int) -> Generator[str]:
    """Serve the page within the block, on a free port if `port` is 0. Returns the address.

    Raises JobError if the port is taken.
    """
    try:
        server, thread = start_http_server(port, host, metrics.registry)
    except OSError as error:
        raise JobError(
            f"--metrics-port {port}: cannot listen there on {host}: {error.strerror}", "USAGE"
        ) from None
    try:
        yield f"http://{host}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
