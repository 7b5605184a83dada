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

from gateway.core.bearer_token import Bearer, MalformedBearer, Subject, parse_bearer
from gateway.core.scram_credentials import Credential, Mechanism
from gateway.core.scram_exchange import MECHANISMS, OTHER_USER, ScramFailed, ScramServer
from gateway.core.stored_names import NAME_BYTES_MAX
from gateway.wire.schema import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
SUPPORTED: Final = (PLAIN, *MECHANISMS, OAUTHBEARER)
"""The mechanisms that can be enabled."""

ONLY_IN_TLS: Final = frozenset((PLAIN, OAUTHBEARER))
"""These send what authenticates a client as it is, so that any reader could use it."""

REAUTHENTICATION_S_MIN: Final = 1.0
PASSWORD_BYTES_MAX: Final = 1024
_PLAIN_PARTS: Final = 3
INVALID_TOKEN: Final = '{"status":"invalid_token"}'
"""What a client learns of a token that is not valid, as in Kafka."""

_END_OF_REFUSED: Final = b"\x01"  # how a client answers a refused token
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
    """The answer to a token, after which the client sends another one.

    With a reason for the log of this server, the client was refused, and answers only that.
    """

    token: bytes
    reason: str = ""


class Login(NamedTuple):
    """A user has authenticated."""

    user: str
    mechanism: str
    credential: Credential | None  # None: the user needs none here, as its token shows who it is
    token: bytes = b""
    lifetime_ms: int = 0  # after which requests are refused until it authenticates again; 0: never


class Failure(NamedTuple):
    """The login failed: a text for the client, and one for the log of this server.

    The latter is "" if the failure is known from an earlier answer.
    """

    text: str
    reason: str


class PasswordAsked(NamedTuple):
    """A password has to be checked; report the result by `SaslSession.checked`."""

    user: str
    password: bytes

    def __repr__(self) -> str:
        """Show no secret, as logs may contain this."""
        return f"PasswordAsked({self.user!r})"


class BearerAsked(NamedTuple):
    """A token of OAUTHBEARER has to be checked; report the result by `bearer_checked`."""

    bearer: Bearer


Outcome = Challenge | Login | Failure | PasswordAsked | BearerAsked
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
        self._user = ""  # the user that the client named last
        self._scram: ScramServer | None = None  # the exchange, between its first and last message
        self._is_refused = False  # whether a token of OAUTHBEARER was refused, and not yet ended
        self._has_headers = False  # whether tokens come in SaslAuthenticate
        self._again_s = float("-inf")  # when the client began to authenticate again last

    def __repr__(self) -> str:
        """Show no secret, as logs may contain this."""
        return f"SaslSession({self.stage.name}, {self._mechanism or 'no mechanism'})"

    @property
    def tried(self) -> tuple[str, str]:
        """The mechanism of the last handshake, and the user that the client named last."""
        return self._mechanism, self._user

    @property
    def takes_bare_tokens(self) -> bool:
        """True if the next frame is a token without a header."""
        return self.stage is Stage.TOKENS and not self._has_headers

    def begins_again(self, key: int, now_s: float) -> bool:
        """Return True if this request of an authenticated client begins another authentication.

        Without a lifetime, or within a second of the last one, it does not.
        """
        if key != SASL_HANDSHAKE or self.expires_s is None:
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
        """Begin an exchange by this mechanism. Raises Unsupported."""
        if mechanism not in self.mechanisms:
            self.stage = Stage.FAILED
            raise Unsupported(mechanism)
        self._mechanism = mechanism
        self._has_headers = version >= 1
        self._scram, self._is_refused = None, False
        self.stage = Stage.TOKENS

    def on_token(self, token: bytes, now_s: float) -> Outcome:
        """Take a token of the client. Raises Illegal if it has changed its mechanism."""
        assert self.stage is Stage.TOKENS
        if self.login is not None and self._mechanism != self.login.mechanism:
            self.stage = Stage.FAILED
            raise Illegal("a client that authenticates again by another mechanism")
        if self._mechanism == PLAIN:
            return self._plain(token)
        if self._mechanism == OAUTHBEARER:
            return self._bearer(token)
        return self._scram_message(token, now_s)

    def _scram_message(self, token: bytes, now_s: float) -> Outcome:
        try:
            if self._scram is None:
                mechanism = MECHANISMS[self._mechanism]
                self._scram = ScramServer(
                    mechanism, lambda user: self._credential_of(mechanism, user), self._new_nonce()
                )
                challenge = Challenge(self._scram.first(token))
                self._user = self._scram.user
                return challenge
            answer = self._scram.final(token)
        except ScramFailed as failed:
            return self._fail(failed.shown or self._invalid(), str(failed))
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

    def bearer_checked(
        self, bearer: Bearer, found: Subject | str, now_s: float, wall_s: float
    ) -> Outcome:
        """Take the result of the check of a token: its subject, or why it is not valid.

        `wall_s` is the time in seconds since 1970, by which tokens end.
        """
        if isinstance(found, str):
            self._is_refused = True
            return Challenge(INVALID_TOKEN.encode(), found)
        if bearer.authorized and bearer.authorized != found.user:
            text = (
                "Authentication failed: Client requested an authorization id "
                f"({bearer.authorized}) that is different from the token's principal name "
                f"({found.user})"
            )
            return self._fail(text, "the authorization id differs from the subject")
        return self._complete(found.user, None, b"", now_s, max(0.0, found.ends_s - wall_s))

    def _bearer(self, token: bytes) -> Outcome:
        if self._is_refused:
            if token == _END_OF_REFUSED:
                return self._fail(INVALID_TOKEN, "")
            return self._fail(self._invalid(), "another token after a refused one")
        try:
            return BearerAsked(parse_bearer(token))
        except MalformedBearer as malformed:
            return self._fail(self._invalid(), str(malformed))

    def _plain(self, token: bytes) -> Outcome:
        parts = token.split(b"\0", _PLAIN_PARTS)
        if len(parts) != _PLAIN_PARTS:
            text = f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}"
            return self._fail(text, "the token of PLAIN has another form")
        authorized, user, password = parts
        for part, what in ((user, "username"), (password, "password")):
            if not part:
                text = f"Authentication failed: {what} not specified"
                return self._fail(text, f"the {what} is missing")
        try:
            name = user.decode()
            password.decode()
            self._user = name[:NAME_BYTES_MAX]
        except UnicodeDecodeError:
            return self._fail(WRONG_PASSWORD, "the user or the password is not UTF-8")
        if len(user) > NAME_BYTES_MAX or len(password) > PASSWORD_BYTES_MAX:
            return self._fail(WRONG_PASSWORD, "the user or the password is too long")
        if authorized and authorized != user:
            return self._fail(OTHER_USER, "the authorization id differs from the user")
        return PasswordAsked(name, password)

    def _complete(
        self,
        user: str,
        credential: Credential | None,
        token: bytes,
        now_s: float,
        ends_in_s: float | None = None,
    ) -> Outcome:
        """Complete the login. What the client proved ends in `ends_in_s` seconds, if ever."""
        before = self.login
        if before is not None and before.user != user:
            text = "Cannot change principals during re-authentication from "
            return self._fail(f"{text}User.{before.user}: User.{user}", "the principal changed")
        limits = [each for each in (self._lifetime_s or None, ends_in_s) if each is not None]
        lifetime_ms = int(min(limits, default=0.0) * 1000)
        self.expires_s = now_s + lifetime_ms / 1000 if limits else None
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
