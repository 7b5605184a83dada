"""The routes of programs that watch a gateway: `/metrics` and `/health`."""

from __future__ import annotations

import asyncio
import json
from importlib import import_module
from typing import TYPE_CHECKING, Any

from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from gateway.access import CLUSTER, Operation
from gateway.http import health
from gateway.http.asking import address_of, principal_of, require
from gateway.http.compressed import encoded
from ledger.tasks import in_thread

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Scope

    from gateway.http.pages import Refused
    from gateway.http.site import Site
    from gateway.metrics.page import Page


class ScrapeRoutes:
    """Answers Prometheus and the probes of an orchestrator. `close` once."""

    def __init__(self, site: Site) -> None:
        self._site = site
        # Computes the metrics. None before the first scrape: prometheus_client is imported then.
        self._page: Page | None = None
        self._opening = asyncio.Lock()

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/metrics", self._metrics),
            Route("/health", self._ready),
            Route("/health/live", self._live),
            Route("/health/ready", self._ready),
        ]

    async def error(self, scope: Scope, error: Refused) -> Response:
        """Return one line of text for a request that is refused."""
        return PlainTextResponse(f"{error.code}: {error.message}\n", error.status)

    async def close(self) -> None:
        """Cancel a page that is being computed."""
        if self._page is not None:
            await self._page.stop()

    async def _metrics(self, request: Request) -> Response:
        if not self._site.settings.open_metrics:
            principal, address = principal_of(request), address_of(request)
            require(self._site, principal, address, Operation.DESCRIBE, CLUSTER)
        page, media_type = await self._opened()
        text = await page.text()
        return await encoded(request, lambda: text, media_type)

    async def _opened(self) -> tuple[Page, str]:
        async with self._opening:
            module: Any = await in_thread(import_module, "gateway.metrics.page")
            page: Page = self._page or module.Page(self._site.ctx)
            self._page = page
            return page, module.CONTENT_TYPE

    async def _live(self, request: Request) -> Response:
        return _judged(health.live(self._site.ctx))

    async def _ready(self, request: Request) -> Response:
        return _judged(health.ready(self._site.ctx))


def _judged(reasons: list[str]) -> Response:
    found = {"status": "unavailable" if reasons else "ok", "reasons": reasons}
    return Response(
        json.dumps(found),
        503 if reasons else 200,
        {"Cache-Control": "no-store"},
        media_type="application/json",
    )
