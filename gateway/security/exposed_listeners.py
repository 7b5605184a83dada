"""Which listeners other machines reach without TLS and authentication."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gateway.config import GatewayConfig, Listener
from ledger.command_line.units import is_loopback


def exposed(
    listeners: Iterable[Listener], client_auth_of: Callable[[Listener], str]
) -> list[Listener]:
    """Return the listeners that other machines reach without TLS and authentication."""

    def is_secure(each: Listener) -> bool:
        return each.has_tls and (each.has_sasl or client_auth_of(each) == "required")

    return [each for each in listeners if not (is_loopback(each.host) or is_secure(each))]


def exposed_places(config: GatewayConfig, listeners: Iterable[Listener]) -> list[str]:
    """Return what is exposed of these listeners and the web page, such as `A=192.0.2.1:9092`."""
    found = exposed(listeners, lambda each: config.tls_of(each).client_auth)
    places = [f"{each.name}={each.host}:{each.port}" for each in found]
    page = config.http
    is_closed = page.certificate is not None and page.password_file is not None
    if page.port is not None and not (is_closed or is_loopback(page.host)):
        places.append(f"page={page.host}:{page.port}")
    return places
