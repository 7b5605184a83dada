"""The authentication of one connection by SASL: the requests it allows, and its outcome. Pure.

    START ─(ApiVersions)▶ VERSIONS ─(SaslHandshake)▶ TOKENS ─(the last token)▶ COMPLETE
      └──────────(SaslHandshake)────────────────────▲  │                          │
                                 any failure: FAILED ◀─┘◀─(SaslHandshake again)───┘
                                                          only if sessions have a lifetime

After a SaslHandshake of version 0, tokens are bare frames without a header. Time and random nonces
come in; the check of a password is asked for, because it takes milliseconds.
Source: Kafka, SaslServerAuthenticator, PlainSaslServer, KafkaChannel; KIP-43, KIP-152, KIP-368.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, NamedTuple

from gateway.core.scram_credentials import Credential, Mechanism
from gateway.core.scram_exchange import MECHANISMS, ScramFailed, ScramServer
from gateway.core.stored_names import NAME_BYTES_MAX

PLAIN: Final = "PLAIN"
SUPPORTED: Final = (PLAIN, *MECHANISMS)
"""The mechanisms that can be enabled."""

API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 17, 36
REAUTHENTICATION_S_MIN: Final = 1.0
PASSWORD_BYTES_MAX: Final = 1024
WRONG_PASSWORD: Final = "Authentication failed: Invalid username or password"


class Stage(Enum):
    START = 1
    VERSIONS = 2
    TOKENS = 3
    COMPLETE = 4
    FAILED = 5


class Illegal(Exception):
    """A request that may not come now. The connection ends; the text is for the log."""


class Unsupported(Exception):
    """The client named a mechanism that is not enabled. It gets the list; the connection ends."""


class Challenge(NamedTuple):
    """The answer to a token, after which the client sends another one."""

    token: bytes


class Login(NamedTuple):
    """A user has authenticated."""

    user: str
    mechanism: str
    credential: Credential
    token: bytes = b""
    lifetime_ms: int = 0  # after which requests are refused until it authenticates again; 0: never


class Failure(NamedTuple):
    """The login failed: a text for the client, and one for the log of this server."""

    text: str
    reason: str


class PasswordAsked(NamedTuple):
    """A password has to be checked; report the result by `SaslSession.checked`."""

    user: str
    password: bytes

    def __repr__(self) -> str:
        """Show no secret, as logs may contain this."""
        return f"PasswordAsked({self.user!r})"


Outcome = Challenge | Login | Failure | PasswordAsked
CredentialOf = Callable[[Mechanism, str], tuple[Credential, bool]]
"""Returns the keys of a user for a mechanism and True, or made-up keys and False."""


class SaslSession:
    """The session of one connection."""

    def __init__(
        self,
        mechanisms: Sequence[str],
        credential_of: CredentialOf,
        new_nonce: Callable[[], str],
        lifetime_s: float = 0.0,
    ) -> None:
        """Create a session with the enabled mechanisms.

        After `lifetime_s` seconds the client has to authenticate again; 0 stands for never.
        """
        self.mechanisms = tuple(mechanisms)
        self.stage = Stage.START
        # The last login, which stays while the client authenticates again.
        self.login: Login | None = None
        # The monotonic time after which requests are refused; None without a lifetime.
        self.expires_s: float | None = None
        self._credential_of = credential_of
        self._new_nonce = new_nonce
        self._lifetime_s = lifetime_s
        self._mechanism = ""  # that of the last handshake
        self._scram: ScramServer | None = None  # the exchange, between its first and last message
        self._has_headers = False  # whether tokens come in SaslAuthenticate
        self._again_s = float("-inf")  # when the client began to authenticate again last

    def __repr__(self) -> str:
        """Show no secret, as logs may contain this."""
        return f"SaslSession({self.stage.name}, {self._mechanism or 'no mechanism'})"

    @property
    def takes_bare_tokens(self) -> bool:
        """True if the next frame is a token without a header."""
        return self.stage is Stage.TOKENS and not self._has_headers

    def begins_again(self, key: int, now_s: float) -> bool:
        """Return True if this request of an authenticated client begins another authentication.

        Without a lifetime, or within a second of the last one, it does not.
        """
        if key != SASL_HANDSHAKE or not self._lifetime_s:
            return False
        if self.stage is not Stage.COMPLETE or now_s - self._again_s < REAUTHENTICATION_S_MIN:
            return False
        self._again_s = now_s
        self.stage = Stage.VERSIONS
        return True

    def is_expired(self, now_s: float) -> bool:
        """Return True if requests need another authentication first."""
        return self.expires_s is not None and now_s > self.expires_s

    def allow(self, key: int) -> None:
        """Raise Illegal unless a request with this key may come now."""
        if self.stage is Stage.TOKENS:
            allowed: tuple[int, ...] = (SASL_AUTHENTICATE,)
        elif self.stage is Stage.VERSIONS:
            allowed = (SASL_HANDSHAKE,)
        else:
            allowed = (API_VERSIONS, SASL_HANDSHAKE) if self.stage is Stage.START else ()
        if key not in allowed:
            self.stage = Stage.FAILED
            raise Illegal(f"a request with key {key} before the authentication was complete")

    def on_versions(self) -> None:
        """Note that ApiVersions was answered with the list."""
        if self.stage is Stage.START:
            self.stage = Stage.VERSIONS

    def on_handshake(self, version: int, mechanism: str) -> None:
        """Begin an exchange by this mechanism. Raises Unsupported, and Illegal for another one."""
        if mechanism not in self.mechanisms:
            self.stage = Stage.FAILED
            raise Unsupported(mechanism)
        if self.login is not None and mechanism != self.login.mechanism:
            self.stage = Stage.FAILED
            raise Illegal("a client that authenticates again by another mechanism")
        self._mechanism = mechanism
        self._has_headers = self._has_headers or version >= 1
        self._scram = None
        self.stage = Stage.TOKENS

    def on_token(self, token: bytes, now_s: float) -> Outcome:
        """Take a token of the client."""
        assert self.stage is Stage.TOKENS
        if self._mechanism == PLAIN:
            return self._plain(token)
        try:
            if self._scram is None:
                mechanism = MECHANISMS[self._mechanism]
                self._scram = ScramServer(
                    mechanism, lambda user: self._credential_of(mechanism, user), self._new_nonce()
                )
                return Challenge(self._scram.first(token))
            answer = self._scram.final(token)
        except ScramFailed as failed:
            return self._fail(self._invalid(), str(failed))
        credential = self._scram.credential
        assert credential is not None
        return self._complete(self._scram.user, credential, answer, now_s)

    def checked(self, asked: PasswordAsked, credential: Credential | None, now_s: float) -> Outcome:
        """Take the result of the check of a password: its keys, or None if it is wrong."""
        if self.stage is not Stage.TOKENS:
            return Failure(WRONG_PASSWORD, "the connection ended meanwhile")
        if credential is None:
            return self._fail(WRONG_PASSWORD, "the user or the password is wrong")
        return self._complete(asked.user, credential, b"", now_s)

    def _plain(self, token: bytes) -> Outcome:
        try:
            authorized, user, password = token.split(b"\0")
            name = user.decode()
            password.decode()
        except ValueError:  # UnicodeDecodeError is one too
            return self._fail(self._invalid(), "the token of PLAIN has another form")
        if not user or not password:
            return self._fail(self._invalid(), "a user or a password is missing")
        if len(user) > NAME_BYTES_MAX or len(password) > PASSWORD_BYTES_MAX:
            return self._fail(WRONG_PASSWORD, "the user or the password is too long")
        if authorized and authorized != user:
            return self._fail(WRONG_PASSWORD, "the authorization id differs from the user")
        return PasswordAsked(name, password)

    def _complete(self, user: str, credential: Credential, token: bytes, now_s: float) -> Outcome:
        before = self.login
        if before is not None and before.user != user:
            text = "Cannot change principals during re-authentication from "
            return self._fail(f"{text}User.{before.user}: User.{user}", "the principal changed")
        lifetime_ms = round(self._lifetime_s * 1000)
        if lifetime_ms:
            self.expires_s = now_s + self._lifetime_s
        self.stage, self._scram = Stage.COMPLETE, None
        self.login = Login(user, self._mechanism, credential, token, lifetime_ms)
        return self.login

    def _invalid(self) -> str:
        during = "authentication" if self.login is None else "re-authentication"
        return (
            f"Authentication failed during {during} due to invalid credentials with SASL mechanism "
            f"{self._mechanism}"
        )

    def _fail(self, text: str, reason: str) -> Failure:
        self.stage, self._scram = Stage.FAILED, None
        return Failure(text, reason)
