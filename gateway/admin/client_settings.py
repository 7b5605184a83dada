"""The settings of a connection to the Kafka port: its servers, and Kafka's client keys.

Every Kafka client of a command is made from `ClientSettings`, which refuses what is not supported.
So no command falls back to plain text where another protocol was asked for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gateway.admin.addresses import parse_bootstrap

if TYPE_CHECKING:
    from gateway.security.link_security import LinkSecurity
    from gateway.wire.client_link import Link, Security

PROTOCOL: Final = "security.protocol"
PLAINTEXT: Final = "PLAINTEXT"
PROTOCOLS: Final = (PLAINTEXT, "SSL", "SASL_PLAINTEXT", "SASL_SSL")

# Those of Apache Kafka 4.3's AdminClientConfig, and five of librdkafka: sasl.username,
# sasl.password, and where ssl.ca, ssl.certificate and ssl.key are.
TLS_KEYS: Final = (
    *(PROTOCOL, "security.providers", "ssl.ca.location", "ssl.certificate.location"),
    *("ssl.cipher.suites", "ssl.enabled.protocols", "ssl.endpoint.identification.algorithm"),
    *("ssl.engine.factory.class", "ssl.key.location", "ssl.key.password"),
    *("ssl.keymanager.algorithm", "ssl.keystore.certificate.chain", "ssl.keystore.key"),
    *("ssl.keystore.location", "ssl.keystore.password", "ssl.keystore.type", "ssl.protocol"),
    *("ssl.provider", "ssl.secure.random.implementation", "ssl.trustmanager.algorithm"),
    *("ssl.truststore.certificates", "ssl.truststore.location", "ssl.truststore.password"),
    "ssl.truststore.type",
)
SASL_KEYS: Final = (
    *("sasl.client.callback.handler.class", "sasl.jaas.config", "sasl.kerberos.kinit.cmd"),
    *("sasl.kerberos.min.time.before.relogin", "sasl.kerberos.service.name"),
    *("sasl.kerberos.ticket.renew.jitter", "sasl.kerberos.ticket.renew.window.factor"),
    *("sasl.login.callback.handler.class", "sasl.login.class", "sasl.login.connect.timeout.ms"),
    *("sasl.login.read.timeout.ms", "sasl.login.refresh.buffer.seconds"),
    *("sasl.login.refresh.min.period.seconds", "sasl.login.refresh.window.factor"),
    *("sasl.login.refresh.window.jitter", "sasl.login.retry.backoff.max.ms"),
    *("sasl.login.retry.backoff.ms", "sasl.mechanism", "sasl.password", "sasl.username"),
    *(
        f"sasl.oauthbearer.{name}"
        for name in (
            *("assertion.algorithm", "assertion.claim.aud", "assertion.claim.exp.seconds"),
            *("assertion.claim.iss", "assertion.claim.jti.include", "assertion.claim.nbf.seconds"),
            *("assertion.claim.sub", "assertion.file", "assertion.private.key.file"),
            *("assertion.private.key.passphrase", "assertion.template.file"),
            *("client.credentials.client.id", "client.credentials.client.secret"),
            *("clock.skew.seconds", "expected.audience", "expected.issuer", "header.urlencode"),
            *("jwks.endpoint.refresh.ms", "jwks.endpoint.retry.backoff.max.ms"),
            *("jwks.endpoint.retry.backoff.ms", "jwks.endpoint.url", "jwt.retriever.class"),
            *("jwt.validator.class", "scope", "scope.claim.name", "sub.claim.name"),
            "token.endpoint.url",
        )
    ),
)
CLIENT_KEYS: Final = frozenset((*TLS_KEYS, *SASL_KEYS))
SECRET_KEYS: Final = frozenset(
    (
        *("sasl.jaas.config", "sasl.password", "ssl.key.password", "ssl.keystore.key"),
        *("ssl.keystore.password", "ssl.truststore.password"),
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.client.credentials.client.secret",
    )
)
HIDDEN: Final = "[hidden]"


class UnsupportedSecurity(Exception):
    """The keys of a connection cannot be used, or are not supported. Nothing was sent."""


Reach = Callable[[int, str, int], tuple[str, int]]
"""Maps a broker, by node id and address for clients, to where it is reached from here."""

Opened = Callable[["Link"], Awaitable[None]]
"""Called with each new connection to a broker, before its first request.

May raise AdminError and Unreachable, as the request itself.
"""


class ClientSettings(NamedTuple):
    """The servers to connect to, Kafka's client keys, and where brokers are reached.

    The bootstrap servers are reached as they are written. Connections of aiokafka are not `opened`.
    """

    bootstrap: str
    keys: Mapping[str, str] = {}
    reach: Reach | None = None
    opened: Opened | None = None
    own: Security | None = None  # in place of `keys`, for the page of a gateway

    def __repr__(self) -> str:
        """Show no secret, as logs may contain this."""
        return f"ClientSettings({self.bootstrap!r}, keys={sorted(self.keys)})"

    @property
    def servers(self) -> list[tuple[str, int]]:
        """The bootstrap servers. Raises ValueError that names the part that is wrong."""
        return parse_bootstrap(self.bootstrap)

    def require_supported(self) -> None:
        """Raise UnsupportedSecurity if the keys cannot be used."""
        self.security()

    def security(self) -> Security | None:
        """Return the TLS and the login of connections, or None for plain text.

        Raises UnsupportedSecurity. Keys of TLS or SASL without `security.protocol` are refused:
        Kafka's clients ignore them, and connect in plain text.
        """
        protocol = self._protocol
        if self.own is not None or protocol == PLAINTEXT or not self.keys:
            return self.own
        if protocol is None:
            raise UnsupportedSecurity(
                f"{min(self.keys)}: has no effect without {PROTOCOL}, and nothing was sent; set it "
                f"to one of {', '.join(PROTOCOLS)}"
            )
        return self._secured(protocol)

    @property
    def _protocol(self) -> str | None:
        found = self.keys.get(PROTOCOL)
        return None if found is None else found.upper()

    def _secured(self, protocol: str) -> LinkSecurity:
        from gateway.security.client_keys import ClientFault, link_security

        if protocol not in PROTOCOLS:
            raise UnsupportedSecurity(f"{PROTOCOL}={protocol}: must be {', '.join(PROTOCOLS)}")
        try:
            return link_security(protocol, self.keys)
        except ClientFault as fault:
            raise UnsupportedSecurity(f"{PROTOCOL}={protocol}: {fault}; nothing was sent") from None

    def for_aiokafka(self) -> dict[str, Any]:
        """Return the arguments with which a client of aiokafka connects.

        Raises UnsupportedSecurity.
        """
        security = self.security()
        servers = [
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.servers
        ]
        found = {"bootstrap_servers": ",".join(servers), "security_protocol": PLAINTEXT}
        return found if security is None else found | security.of_aiokafka()


def raise_token_fault(arguments: Mapping[str, Any]) -> None:
    """Raise why a client of aiokafka with these arguments had no token at its last login, if so.

    Raises AdminError and Unreachable.
    """
    fault = getattr(arguments.get("sasl_oauth_token_provider"), "fault", None)
    if fault is not None:
        raise fault


def variable_of(key: str) -> str:
    """Return the environment variable of a client key: `GATEWAY_SECURITY_PROTOCOL` for one."""
    return f"GATEWAY_{key.upper().replace('.', '_')}"
