"""A connection whose client authenticates by SASL before anything else.

Until then a frame is small, and only the requests of the authentication are taken. A failed login
is answered after a fixed time, whatever was wrong, and the connection reads nothing more meanwhile.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

from kio.schema.errors import ErrorCode

from gateway.access import auditing
from gateway.config import SaslConfig
from gateway.core.sasl_session import (
    WRONG_PASSWORD,
    BearerAsked,
    Challenge,
    Failure,
    Illegal,
    Login,
    PasswordAsked,
    SaslSession,
    Stage,
    Unsupported,
)
from gateway.handlers.api import Reply, Request
from gateway.server.connection import Connection
from gateway.server.dispatch import RequestRefused
from gateway.server.holds import CLOSING, LOGIN, MEMORY
from gateway.server.logins import Logins, TooManyChecks
from gateway.server.registry import ConnectionRegistry, Refused
from gateway.server.request_chain import RequestSlot
from gateway.wire.schema import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from ledger.ports.clock import measured_s

_FAILED: Final = ErrorCode.sasl_authentication_failed
_NO_LOGIN: Final = "no login in time"


class SaslConnection(Connection):
    """A connection of a listener with SASL."""

    __slots__ = ("_changes", "_logins", "_session")

    def __init__(
        self,
        registry: ConnectionRegistry,
        listener: str,
        logins: Logins,
        config: SaslConfig,
        *,
        encrypted: bool,
    ) -> None:
        """Create the connection of a listener with this `config`."""
        super().__init__(registry, listener)
        self._memory = registry.login_memory
        self._logins = logins
        self._session = SaslSession(
            logins.mechanisms(config.mechanisms, encrypted=encrypted),
            logins.credential_of,
            logins.new_nonce,
            config.session_s,
        )
        # The count of changes of users up to which the user of this connection was looked for.
        self._changes = logins.changes
        self._reader.frame_bytes_max = logins.config.frame_bytes_max

    def check(self, now_s: float) -> None:
        """End the connection if it has no login for long, or if its user changed."""
        login, logins = self._session.login, self._logins
        if login is None:
            late = now_s - self._timeouts.opened_s > logins.config.login_s_max
            if late and not self._held & CLOSING:
                self._registry.refusals[Refused.LOGIN] += 1
                self.abort(_NO_LOGIN)
                return
        elif self._changes != logins.changes:
            self._changes = logins.changes
            if not logins.is_current(login):
                self.abort("its user was deleted or changed")
                return
        super().check(now_s)

    def _accept(self, frame: bytes | memoryview, begun_s: float) -> None:
        """Take a request of a client that has authenticated, or one of its authentication."""
        session = self._session
        if session.stage is not Stage.COMPLETE:
            self._authenticate(frame)
            return
        now_s = self._registry.loop.time()
        if session.begins_again(int.from_bytes(frame[:2], "big"), now_s):
            self._authenticate(frame)
        elif session.is_expired(now_s):
            raise RequestRefused("its session has expired: it did not authenticate again")
        else:
            super()._accept(frame, begun_s)

    def _authenticate(self, frame: bytes | memoryview) -> None:
        """Take a request of the authentication. Raises RequestRefused."""
        session, dispatcher, peer = self._session, self._registry.dispatcher, self._peer
        assert peer is not None
        if session.takes_bare_tokens:
            request = Request(SASL_AUTHENTICATE, 0, 0, None, peer, None)
            request.begun_s = request.decoded_s = measured_s()
            self._take_token(request, bytes(frame), is_bare=True)
            return
        key, is_begun = int.from_bytes(frame[:2], "big"), session.stage is Stage.TOKENS
        try:
            session.allow(key)
        except Illegal as illegal:
            if not is_begun or key not in (API_VERSIONS, SASL_HANDSHAKE):
                raise RequestRefused(str(illegal)) from None
            request, _ = dispatcher.open(frame, peer)
            self._fail_later(
                self._slot(request, 0), Reply(error_code=ErrorCode.illegal_sasl_state), str(illegal)
            )
            return
        request, handle = dispatcher.open(frame, peer)
        if key == API_VERSIONS:
            self._add_result(request, dispatcher.start(request, handle))
            if not request.error:
                session.on_versions()
        elif key == SASL_HANDSHAKE:
            self._on_handshake(request)
        else:
            self._take_token(request, bytes(request.body.auth_bytes), is_bare=False)

    def _on_handshake(self, request: Request) -> None:
        """Begin an exchange, or answer with the mechanisms and close. Raises RequestRefused."""
        session = self._session
        reply = Reply(error_code=ErrorCode.none, mechanisms=list(session.mechanisms))
        try:
            session.on_handshake(request.version, request.body.mechanism)
        except Unsupported as unsupported:
            if session.login is not None:  # as in Kafka: no answer while a client logs in again
                raise RequestRefused(f"its mechanism {unsupported} is not enabled") from None
            reply["error_code"] = ErrorCode.unsupported_sasl_mechanism
            self._fail_later(self._slot(request, 0), reply, "its mechanism is not enabled")
        else:
            self._add_result(request, reply)

    def _take_token(self, request: Request, token: bytes, *, is_bare: bool) -> None:
        """Take a token, and answer it now or later."""
        session, now_s = self._session, self._registry.loop.time()
        try:
            outcome = session.on_token(token, now_s)
        except Illegal as illegal:
            raise RequestRefused(str(illegal)) from None
        if isinstance(outcome, BearerAsked):
            bearers = self._logins.bearers
            assert bearers is not None
            found = bearers.check(outcome.bearer.token)
            outcome = session.bearer_checked(outcome.bearer, found, now_s, bearers.wall_s())
            if isinstance(outcome, Challenge):
                self._note_failure(outcome.reason)
        if isinstance(outcome, PasswordAsked):
            self._check_password(self._slot(request, 0), outcome, is_bare=is_bare)
        elif isinstance(outcome, Failure):
            self._fail_login(self._slot(request, 0), outcome, is_bare=is_bare)
        else:
            self._add_result(request, self._taken(outcome, is_bare=is_bare))

    def _check_password(self, slot: RequestSlot, asked: PasswordAsked, *, is_bare: bool) -> None:
        """Check a password of PLAIN, and read nothing meanwhile."""
        try:
            done, credential = self._logins.check(asked.user, asked.password, self._received.host)
        except TooManyChecks as too_many:
            self._fail_login(slot, Failure(WRONG_PASSWORD, str(too_many)), is_bare=is_bare)
            return
        self._hold(LOGIN)
        since_s = self._registry.loop.time()

        def on_done(future: asyncio.Future[bool]) -> None:
            right = not future.cancelled() and future.result()
            now_s = self._registry.loop.time()
            found = self._session.checked(asked, credential if right else None, now_s)
            if isinstance(found, Login) and not self.lost:
                self.finish(slot, self._taken(found, is_bare=is_bare))
            else:
                failure = found if isinstance(found, Failure) else Failure(WRONG_PASSWORD, "gone")
                self._fail_login(slot, failure, is_bare=is_bare, since_s=since_s)
            self._release(LOGIN)

        done.add_done_callback(on_done)

    def _taken(self, outcome: Challenge | Login | Any, *, is_bare: bool) -> Any:
        """Return the answer to a token that was right. The last one completes the login."""
        lifetime_ms = 0
        if isinstance(outcome, Login):
            assert self._peer is not None
            self._peer.principal = f"User:{outcome.user}"
            self._peer.mechanism = outcome.mechanism
            self._registry.logins[outcome.mechanism, "succeeded"] += 1
            self._reader.frame_bytes_max = self._registry.limits.frame_bytes_max
            self._leave_login_memory()
            self._changes = -1  # the user may have changed since its keys were read
            lifetime_ms = outcome.lifetime_ms
        if is_bare:
            return [outcome.token]
        return Reply(
            error_code=ErrorCode.none,
            error_message="",  # not null, as in Kafka
            auth_bytes=outcome.token,
            session_lifetime=lifetime_ms,
        )

    def _leave_login_memory(self) -> None:
        """Share the memory of requests with the others that have logged in."""
        if self._memory is self._registry.memory:
            return
        self._memory = self._registry.memory
        self._received.move(self._memory)
        self._received.count_kept(self._reader.kept_bytes, self.frames)
        if self._held & MEMORY:
            self._release(MEMORY)

    def _fail_login(
        self, slot: RequestSlot, failure: Failure, *, is_bare: bool, since_s: float | None = None
    ) -> None:
        """Answer that the login failed, and close. A bare token gets no answer, as in Kafka."""
        reply: Any = Reply(error_code=_FAILED, error_message=failure.text)
        if is_bare:
            slot.request.error = int(_FAILED.value)
            reply = ()
        self._fail_later(slot, reply, failure.reason, since_s)

    def _note_failure(self, reason: str) -> None:
        self._registry.refusals[Refused.LOGIN] += 1
        self._registry.warn("authentication failed", self._peer, reason)
        mechanism, user = self._session.tried
        self._registry.logins[mechanism or "none", "failed"] += 1
        if self._peer is not None:
            auditing.login_failed(self._peer, mechanism, user, reason)

    def _fail_later(
        self, slot: RequestSlot, reply: Any, reason: str, since_s: float | None = None
    ) -> None:
        """Answer after the time that each failure takes, and read nothing more."""
        registry = self._registry
        if not self.lost and reason:
            self._note_failure(reason)
        self._hold(CLOSING)
        now_s = registry.loop.time()
        since_s, step_s = now_s if since_s is None else since_s, self._logins.config.failure_s
        # A check that waited for others longer than a step is answered at a later one: the time
        # shows in which queue it stood, but not what its own keys cost.
        steps = int((now_s - since_s) / step_s) + 1
        registry.loop.call_at(since_s + steps * step_s, partial(self.finish, slot, reply))
