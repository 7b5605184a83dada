"""Makes what the listeners with TLS or SASL need. Imported only if there is such a listener."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.config import GatewayConfig, Listener, SaslConfig
from gateway.core.sasl_session import OAUTHBEARER
from gateway.security.link_security import LinkSecurity, Login
from gateway.security.tls_contexts import TlsFault, client_context
from gateway.server.logins import Bearers, Logins
from gateway.server.secure_listeners import SecureListeners
from gateway.settings.scram_decoys import load_decoy_secret
from gateway.settings.scram_users import ScramUsers
from ledger.adapters.system.clock import SystemClock
from ledger.command_line.secret_values import SecretFault, resolve_line
from ledger.ports.metadata import MetadataStore

Stop = Callable[[], Awaitable[None]]


class CannotSecure(OSError):
    """The keys or certificates of a listener cannot be used: a line that names the fix."""


async def secure_listeners(
    config: GatewayConfig, metadata: MetadataStore, users: ScramUsers, stops: list[Stop]
) -> SecureListeners:
    """Return what the listeners need. Raises CannotSecure, LedgerError."""
    logins = None
    with_sasl = [each for each in config.all_listeners if each.has_sasl]
    if with_sasl:
        takes_tokens = any(OAUTHBEARER in config.sasl_of(each).mechanisms for each in with_sasl)
        bearers = await _bearers(config.sasl) if takes_tokens else None
        logins = Logins(users, await load_decoy_secret(metadata), config.sasl, bearers)
        stops.append(_closing(logins))
    try:
        return SecureListeners(config, logins)
    except (TlsFault, ValueError) as fault:
        raise CannotSecure(str(fault)) from fault


async def _bearers(config: SaslConfig) -> Bearers:
    """Return the check of tokens of OAUTHBEARER, with the keys of the issuer. Raises CannotSecure.

    A server that does not answer is asked again later, and tokens are refused until then.
    """
    from gateway.security.bearer_keys import BearerKeys, JwksFault

    keys = BearerKeys(config.oauth, SystemClock().now_ms)
    try:
        await keys.start()
    except JwksFault as fault:
        raise CannotSecure(str(fault)) from fault
    return keys


def connecting(config: GatewayConfig, listener: Listener) -> LinkSecurity:
    """Return how this process connects to a listener of a gateway. Raises CannotSecure."""
    try:
        context = client_context(config.tls_of(listener)) if listener.has_tls else None
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
