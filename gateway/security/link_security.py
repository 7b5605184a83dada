"""How a client of this project secures its connections to a Kafka port: TLS, and a login by SASL.

Imported only where a connection asks for one of them.
"""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, Protocol

from gateway.core.sasl_session import OAUTHBEARER, PLAIN
from gateway.core.scram_exchange import MECHANISMS, ScramClient, ScramFailed
from gateway.wire.client_link import Refused
from gateway.wire.schema import SASL_AUTHENTICATE, SASL_HANDSHAKE
from ledger.tasks import in_thread

HANDSHAKE_VERSION: Final = 1
_NONCE_BYTES: Final = 24
_AUTHENTICATE_VERSION_MAX: Final = 2

Ask = Callable[[int, dict[str, Any], int], Awaitable[Any]]
"""Sends a request in the highest common version up to a maximum; returns the answer."""


class FetchedToken(NamedTuple):
    """A token, and for how many seconds later logins may show it too; 0: not once."""

    text: str
    keep_s: float = 0.0

    def __repr__(self) -> str:
        """Show no secret, as logs may contain this."""
        return f"FetchedToken(keep_s={self.keep_s:g})"


class TokenSource(Protocol):
    """The source of a client's OAUTHBEARER token. Sources with equal settings are equal."""

    @property
    def place(self) -> str:
        """The setting and its value as messages show them, without secrets."""
        ...

    def fetch(self) -> FetchedToken:
        """Return a token. Blocks. Raises SecretFault; TokenServerAway if it may pass."""
        ...


class Login(NamedTuple):
    """A user, and the mechanism by which it authenticates."""

    mechanism: str
    user: str
    password: str
    token: TokenSource | None = None  # in place of both; asked at each login

    def __repr__(self) -> str:
        """Show no secret, as logs may contain this."""
        return f"Login({self.mechanism}, {self.user!r})"


class LinkSecurity:
    """TLS and SASL of the connections to one cluster."""

    def __init__(self, context: ssl.SSLContext | None, login: Login | None) -> None:
        self.context = context
        self.login = login

    def of_aiokafka(self) -> dict[str, Any]:
        """Return the arguments with which a client of aiokafka connects in the same way."""
        login, encrypted = self.login, "PLAINTEXT" if self.context is None else "SSL"
        found: dict[str, Any] = {"security_protocol": encrypted, "ssl_context": self.context}
        if login is not None:
            found["security_protocol"] = f"SASL_{encrypted}"
            found["sasl_mechanism"] = login.mechanism
            if login.token is not None:
                from gateway.security.token_provider import TokenProvider

                return found | {"sasl_oauth_token_provider": TokenProvider(login.token)}
            found["sasl_plain_username"] = login.user
            found["sasl_plain_password"] = login.password
        return found

    async def log_in(self, ask: Ask) -> float:
        """Authenticate, if there is a login. Returns the seconds that the session lasts, or 0.

        Raises Refused if the server refuses the login, or does not prove that it has the keys, and
        NoToken if there is no token for now.
        """
        if self.login is None:
            return 0.0
        name = self.login.mechanism
        answer = await ask(SASL_HANDSHAKE, {"mechanism": name}, HANDSHAKE_VERSION)
        if answer.error_code.value:
            offered = ", ".join(answer.mechanisms) or "none"
            raise Refused(f"{name} is not offered; sasl.mechanism can be: {offered}")
        if name == OAUTHBEARER:
            return await _show_token(ask, self.login)
        if name == PLAIN:
            token = f"\0{self.login.user}\0{self.login.password}".encode()
            return _lifetime_s(await _authenticate(ask, token))
        exchange = ScramClient(
            MECHANISMS[name],
            self.login.user,
            self.login.password,
            secrets.token_urlsafe(_NONCE_BYTES),
        )
        try:
            answer = await _authenticate(ask, exchange.first())
            proof = await in_thread(exchange.final, bytes(answer.auth_bytes))
            answer = await _authenticate(ask, proof)
            exchange.check(bytes(answer.auth_bytes))
        except ScramFailed as failed:
            raise Refused(str(failed)) from None
        return _lifetime_s(answer)


async def _show_token(ask: Ask, login: Login) -> float:
    """Authenticate by a token. Returns the seconds that the session lasts.

    Raises Refused and NoToken.
    """
    from gateway.security.login_token import forget_token, login_token

    assert login.token is not None
    token = await login_token(login.token)
    try:
        answer = await _authenticate(ask, f"n,,\x01auth=Bearer {token}\x01\x01".encode())
        if answer.auth_bytes:  # the server refuses the token, and waits for this end
            await _authenticate(ask, b"\x01")
            raise Refused("the server refuses the token")
    except Refused:
        forget_token(login.token)
        raise
    return _lifetime_s(answer)


async def _authenticate(ask: Ask, token: bytes) -> Any:
    answer = await ask(SASL_AUTHENTICATE, {"auth_bytes": token}, _AUTHENTICATE_VERSION_MAX)
    if answer.error_code.value:
        raise Refused(answer.error_message or answer.error_code.name.upper())
    return answer


def _lifetime_s(answer: Any) -> float:
    lifetime = getattr(answer, "session_lifetime", None)
    return 0.0 if lifetime is None else lifetime.total_seconds()
