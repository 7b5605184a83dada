"""Makes what the listeners with TLS or SASL need. Imported only if there is such a listener."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.config import GatewayConfig, Listener
from gateway.security.link_security import LinkSecurity, Login
from gateway.security.secret_values import SecretFault, resolve_line
from gateway.security.tls_contexts import TlsFault, client_context
from gateway.server.logins import Logins
from gateway.server.secure_listeners import SecureListeners
from gateway.settings.scram_decoys import load_decoy_secret
from gateway.settings.scram_users import ScramUsers
from ledger.ports.metadata import MetadataStore

Stop = Callable[[], Awaitable[None]]


class CannotSecure(OSError):
    """The keys or certificates of a listener cannot be used: a line that names the fix."""


async def secure_listeners(
    config: GatewayConfig, metadata: MetadataStore, users: ScramUsers, stops: list[Stop]
) -> SecureListeners:
    """Return what the listeners need. Raises CannotSecure, LedgerError."""
    logins = None
    if any(each.has_sasl for each in config.all_listeners):
        logins = Logins(users, await load_decoy_secret(metadata), config.sasl)
        stops.append(_closing(logins))
    has_tls = any(each.has_tls for each in config.all_listeners)
    try:
        return SecureListeners(config.tls, logins, has_tls=has_tls)
    except (TlsFault, ValueError) as fault:
        raise CannotSecure(str(fault)) from fault


def connecting(config: GatewayConfig, listener: Listener) -> LinkSecurity:
    """Return how this process connects to a listener of a gateway. Raises CannotSecure."""
    try:
        context = client_context(config.tls) if listener.has_tls else None
        login = None
        if listener.has_sasl and config.sasl.user:
            password = resolve_line(config.sasl.password)
            login = Login(config.sasl.mechanism, config.sasl.user, password)
        return LinkSecurity(context, login)
    except (TlsFault, SecretFault) as fault:
        raise CannotSecure(str(fault)) from fault


def _closing(logins: Logins) -> Stop:
    async def close() -> None:
        logins.close()

    return close
