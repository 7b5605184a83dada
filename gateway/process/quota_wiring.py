"""Puts stored client quotas into effect at the connections of this gateway, and takes them away.

Imported only once a quota is stored.
"""

from __future__ import annotations

from gateway.handlers.api import Context
from gateway.server.client_throttles import ClientThrottles
from gateway.server.listener import Server
from gateway.server.request_times import RequestTimes
from gateway.settings.client_quotas import parsed
from gateway.settings.enforced_quotas import EnforcedQuotas, Row
from gateway.settings.stored_rows import Value


class QuotaWiring:
    """The quotas of one gateway and its connections."""

    def __init__(self, ctx: Context, server: Server) -> None:
        self._ctx = ctx
        self._registry = server.registry
        self._quotas = EnforcedQuotas(ctx.config.quotas, ctx.clock.monotonic_s)
        wait_s_max = ctx.config.connection.idle_s_max
        self._throttles = ClientThrottles(self._quotas, wait_s_max)
        dispatcher = self._registry.dispatcher
        self._times = RequestTimes(dispatcher, self._throttles.count_time)
        # The rows as they were applied last, and what they mean, by key.
        self._rows: dict[str, Value] = {}
        self._parsed: dict[str, Row] = {}
        # True while the change of a moment ago is not applied yet.
        self._due = False

    def apply_soon(self) -> None:
        """Apply the stored quotas in the next turn of the loop: a burst of changes costs one."""
        if not self._due:
            self._due = True
            self._registry.loop.call_soon(self._apply)

    def _apply(self) -> None:
        self._due = False
        quotas, registry = self._quotas, self._registry
        rows = dict(self._ctx.stored.quotas.stored())
        if rows == self._rows:
            return
        for key in self._parsed.keys() - rows.keys():
            del self._parsed[key]
        for key, value in rows.items():
            if self._rows.get(key) is not value:
                self._parsed[key] = parsed(key, value)
        self._rows = rows
        quotas.use(self._parsed.values())
        self._ctx.quotas = quotas
        if quotas.limits_clients:
            registry.throttles = self._throttles
        else:
            self._throttles.release_all()
            registry.throttles = None
        registry.count_connection = quotas.connected if quotas.connection.limits else None
        if quotas.request.limits:
            self._times.begin()
        else:
            self._times.end()
