"""Listeners that other machines reach without TLS and authentication: refused, or warned about.

Loaded only if a listener has an address beyond loopback.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

from gateway.config import PLAINTEXT, GatewayConfig, Listener
from gateway.security.exposed_listeners import exposed, exposed_places
from ledger.adapters.system import hourly
from ledger.command_line.settings import Settings

_EXPOSED: Final = (
    "other machines can reach listeners without TLS and authentication (--allow-insecure)"
)
_SECURE: Final = "SASL_SSL, or SSL with --ssl-client-auth required"


def faults_of_exposure(settings: Settings, listeners: Sequence[Listener]) -> Iterator[str]:
    """Yield a fault for each listener that is exposed, unless `--allow-insecure` is given."""
    if settings["allow-insecure"]:
        return

    def client_auth_of(listener: Listener) -> str:
        own = f"listener.name.{listener.name.lower()}.ssl.client.auth"
        found = settings["ssl-client-auth"] if settings.is_default(own) else settings[own]
        return str(found)

    for each in exposed(listeners, client_auth_of):
        if settings["listener"]:
            written = next(one for one in settings["listener"] if one.name == each.name)
            place = settings.place_of("listener", str(written))
        else:
            place = settings.place("host")
        missing = "authentication" if each.has_tls else "TLS and authentication"
        if each.protocol == PLAINTEXT or each.has_tls:
            fix = f"give it {_SECURE}"
        else:
            missing, fix = "TLS", "give it SASL_SSL"
        yield f"{place}: other machines can reach it without {missing}; {fix}, or --allow-insecure"


def warn_each_hour(config: GatewayConfig, loop: asyncio.AbstractEventLoop) -> None:
    """Log the exposed listeners now, and each hour from now on."""
    if places := exposed_places(config, config.all_listeners):
        hourly.warn_each_hour(loop, _EXPOSED, {"listeners": ", ".join(places)})
