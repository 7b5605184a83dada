"""The metrics page in Prometheus' text format, computed once for all concurrent requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from prometheus_client import PROCESS_COLLECTOR
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.handlers.api import Context
from gateway.metrics.process_samples import process_families
from gateway.metrics.samples import Samples
from ledger.exposition import family_text
from ledger.tasks import start_once

CONTENT_TYPE = CONTENT_TYPE_LATEST


class _These(Collector):
    """A collector of given metrics for prometheus_client."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


class Page:
    """The metrics page. Concurrent calls of `text` share one computation."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._under_way: asyncio.Task[bytes] | None = None

    async def text(self) -> bytes:
        """Return the page as of now, or the page that is already being computed."""
        if self._under_way is None or self._under_way.done():
            self._under_way = start_once("the metrics page", self._write())
        return await asyncio.shield(self._under_way)

    async def stop(self) -> None:
        """Cancel a running computation."""
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.gather(self._under_way, return_exceptions=True)

    async def _write(self) -> bytes:
        families = [*await Samples(self._ctx).gather(), *await process_families(self._ctx)]
        parts = [generate_latest(_These(PROCESS_COLLECTOR.collect()))]
        for family in families:
            for part in family_text(family):
                await asyncio.sleep(0)
                parts.append(part)
        return b"".join(parts)
