"""Listeners with TLS or SASL: the protocol of each accepted connection, and their certificates.

Imported only by a process that has such a listener.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final

from gateway.access import auditing
from gateway.config import GatewayConfig, Listener
from gateway.core.distinguished_name import MalformedCertificate, subject_of
from gateway.core.principal_rules import PrincipalRules
from gateway.log import logger
from gateway.security.tls_contexts import TlsFault, server_context
from gateway.server.connection import Connection
from gateway.server.logins import Logins
from gateway.server.registry import ConnectionRegistry, Refused
from gateway.server.sasl_connection import SaslConnection
from gateway.server.tls_transport import Handshakes, TlsTransport

_SSL: Final = "SSL"
_NO_RULE: Final = "no rule of ssl.principal.mapping.rules matches its certificate"


class TlsConnection(Connection):
    """A connection of a listener with SSL: its certificate, if there is one, names the client."""

    __slots__ = ("_rules",)

    def __init__(self, registry: ConnectionRegistry, listener: str, rules: PrincipalRules) -> None:
        super().__init__(registry, listener)
        self._rules = rules

    def secured(self, certificate: bytes | None) -> None:
        """Take the principal from the certificate of the client."""
        super().secured(certificate)
        if certificate is None or self._peer is None:
            return
        try:
            name = self._rules.principal(subject_of(certificate))
        except MalformedCertificate as error:
            self.refuse(f"its certificate cannot be read: {error}", Refused.HANDSHAKE)
            return
        if name is None:
            self.refuse(_NO_RULE, Refused.LOGIN)
            auditing.login_failed(self._peer, _SSL, subject_of(certificate), _NO_RULE)
            return
        self._peer.principal = f"User:{name}"
        self._peer.mechanism = _SSL
        self._registry.logins[_SSL, "succeeded"] += 1


class SecureListeners:
    """What the listeners with TLS or SASL need."""

    def __init__(self, config: GatewayConfig, logins: Logins | None) -> None:
        """Read the keys and certificates. Raises TlsFault, and ValueError for bad rules."""
        self._config = config
        self._logins = logins
        self._listeners = [each for each in config.all_listeners if each.has_tls]
        self._tls = {each.name: config.tls_of(each) for each in self._listeners}
        # The contexts of new connections. Replaced by `reload`; older connections keep theirs.
        self._contexts = self._read(config)
        # Made with the first listener, because it needs a registry.
        self._handshakes: Handshakes | None = None

    def reload(self, config: GatewayConfig | None = None) -> None:
        """Read the keys and certificates again, for new connections. Faults change nothing.

        With `config` they are those that it names. Rules of principals and limits stay.
        """
        if self._logins is not None and self._logins.bearers is not None:
            self._logins.bearers.reload()
        if not self._tls:
            return
        config = config or self._config
        try:
            self._contexts = self._read(config)
        except TlsFault as fault:
            logger().error("certificates were not reloaded", reason=str(fault))
        else:
            self._config = config
            logger().info("certificates were reloaded")

    def _read(self, config: GatewayConfig) -> dict[str, ssl.SSLContext]:
        """Return the context of each listener. Those with the same TLS share one."""
        wanted = {each.name: config.tls_of(each) for each in self._listeners}
        made = {each: server_context(each) for each in set(wanted.values())}
        return {name: made[each] for name, each in wanted.items()}

    def factory(
        self, registry: ConnectionRegistry, listener: Listener
    ) -> Callable[[], asyncio.BaseProtocol]:
        """Return the maker of the protocols of a listener's connections."""
        make = self._connections(registry, listener)
        if not listener.has_tls:
            return make
        if self._handshakes is None:
            self._handshakes = Handshakes(registry, self._config.tls)
        handshakes, name = self._handshakes, listener.name

        def accept() -> asyncio.BaseProtocol:
            return TlsTransport(handshakes, self._contexts[name], make)

        return accept

    def _connections(
        self, registry: ConnectionRegistry, listener: Listener
    ) -> Callable[[], Connection]:
        if not listener.has_sasl:
            rules = PrincipalRules(self._tls[listener.name].principal_rules)
            return partial(TlsConnection, registry, listener.name, rules)
        assert self._logins is not None
        sasl = self._config.sasl_of(listener)
        return partial(
            SaslConnection, registry, listener.name, self._logins, sasl, encrypted=listener.has_tls
        )
