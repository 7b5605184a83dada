"""The application behind an HTTP port: routes, and the connections that ask for them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from starlette.routing import Router
from uvicorn import Config
from uvicorn.server import ServerState

from gateway.http.guard import Guard
from gateway.http.pages import Rows
from gateway.http.passwords import Passwords
from gateway.http.protocol import BoundedProtocol
from gateway.http.scrape_routes import ScrapeRoutes
from gateway.http.site import Site

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from gateway.config import HttpConfig
    from gateway.handlers.api import Context
    from gateway.http.guard import DrawError
    from gateway.http.password_file import Hashed
    from gateway.http.server import Connection


class Application:
    """Answers the requests of one port. It is made in a thread; `close` runs once, on the loop.

    With `metrics_only` it has no pages: only `/metrics` and `/health`, under any host name. `rows`
    are other pages than those of the menu, for tests.
    """

    def __init__(
        self,
        ctx: Context,
        settings: HttpConfig,
        bootstrap: str,
        passwords: Mapping[str, Hashed] | None = None,
        *,
        metrics_only: bool = False,
        rows: Rows | None = None,
    ) -> None:
        self.site = Site(ctx, settings, bootstrap)
        self._scrapes = ScrapeRoutes(self.site)
        self.routes: list[BaseRoute] = self._scrapes.routes()
        draw_error: DrawError = self._scrapes.error
        if not metrics_only:
            # A gateway may serve metrics alone.
            from gateway.http.page_routes import PageRoutes
            from gateway.http.rows import ACTIONS, DOWNLOADS, PAGES, STREAMS

            every = Rows(PAGES, STREAMS, ACTIONS, downloads=DOWNLOADS)
            pages = PageRoutes(self.site, rows or every)
            self.routes += pages.routes()
            draw_error = pages.error
        router = Router(self.routes, redirect_slashes=False)
        # Without an authorizer a user of SCRAM would get the rights of the file's names: all.
        users = None if ctx.authorizer is None else ctx.stored.scram
        guard = Guard(
            router,
            settings,
            Passwords(passwords, users) if passwords else None,
            draw_error,
            any_host=metrics_only,
        )
        self._config = Config(
            guard,
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
        )
        self._config.load()
        self._state = ServerState()

    def protocol(self, connection: Connection) -> BoundedProtocol:
        """Return the protocol of a connection."""
        return BoundedProtocol(self._config, self._state, self.site.settings, connection)

    async def close(self) -> None:
        """End the requests that are under way. Their connections have ended before."""
        tasks = list(self._state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._scrapes.close()
        await self.site.close()
