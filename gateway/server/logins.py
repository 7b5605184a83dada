"""What the SASL connections of a process share: the keys of users, and the check of passwords.

A password of PLAIN is compared with the keys of SCRAM, which takes milliseconds of a core. Checks
run in threads of the lowest priority, because producers come before logins
(docs/decisions/0041-passwords-are-checked-at-the-lowest-priority.md). So many of them wait at most,
in all and for one address, and more are refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections import Counter, deque
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from gateway.config import SaslConfig
from gateway.core.address_share import share_of
from gateway.core.bearer_token import Subject
from gateway.core.sasl_session import ONLY_IN_TLS, PLAIN, Login
from gateway.core.scram_credentials import Credential, Mechanism
from gateway.core.scram_decoy import decoy, usual_iterations
from gateway.core.scram_exchange import DIGESTS, MECHANISMS
from gateway.settings.scram_users import ScramUsers
from ledger.tasks import LowThreads, start_once

_NONCE_BYTES: Final = 24
_STRONGEST_FIRST: Final = (Mechanism.SHA_512, Mechanism.SHA_256)


class TooManyChecks(Exception):
    """So many passwords wait for their check that this one is refused."""


class _Check(NamedTuple):
    """A password that waits for its check. It shows no secret."""

    password: bytes
    credential: Credential
    mechanism: Mechanism
    share: str
    done: asyncio.Future[bool]

    def __repr__(self) -> str:
        return f"_Check({self.share})"


class PasswordChecks:
    """The checks of passwords, in their order."""

    def __init__(self, config: SaslConfig) -> None:
        self._config = config
        # The checks that wait, and their number by address with those that run. An address without
        # one has no key.
        self._waiting: deque[_Check] = deque()
        self._by_address: Counter[str] = Counter()
        self._running = 0
        self._threads = LowThreads(config.checks_max, "password-check")

    def add(
        self, password: bytes, credential: Credential, mechanism: Mechanism, host: str
    ) -> asyncio.Future[bool]:
        """Return a future of whether the password has this credential. Raises TooManyChecks."""
        share = share_of(host)
        if len(self._waiting) >= self._config.checks_waiting_max:
            raise TooManyChecks("too many passwords wait for their check")
        if self._by_address[share] >= self._config.checks_per_address_max:
            raise TooManyChecks("too many passwords of its address wait for their check")
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Check(password, credential, mechanism, share, done))
        self._by_address[share] += 1
        if self._running < self._config.checks_max:
            self._running += 1
            start_once("the check of passwords", self._run())
        return done

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._run_one(self._waiting.popleft())
        finally:
            self._running -= 1

    async def _run_one(self, check: _Check) -> None:
        """Check a password. Without a result it counts as wrong."""
        found = False
        try:
            found = await self._threads.call(
                has_password, check.password, check.credential, check.mechanism
            )
        finally:
            self._count_down(check.share)
            if not check.done.done():
                check.done.set_result(found)

    def _count_down(self, share: str) -> None:
        self._by_address[share] -= 1
        if not self._by_address[share]:
            del self._by_address[share]


def has_password(password: bytes, credential: Credential, mechanism: Mechanism) -> bool:
    """Return whether the keys follow from this password. Takes about 0.5 us for each iteration."""
    digest = DIGESTS[mechanism]
    salted = hashlib.pbkdf2_hmac(digest, password, credential.salt, credential.iterations)
    client_key = hmac.digest(salted, b"Client Key", digest)
    stored_key = hashlib.new(digest, client_key).digest()
    return hmac.compare_digest(stored_key, credential.stored_key)


class Bearers(Protocol):
    """The check of tokens of OAUTHBEARER."""

    def wall_s(self) -> float:
        """Return the time in seconds since 1970."""
        ...

    def check(self, token: str) -> Subject | str:
        """Return the subject of a token, or why it is not valid."""
        ...

    def reload(self) -> None:
        """Begin to read the keys of the issuer again."""
        ...

    def close(self) -> None:
        """Read the keys no longer."""
        ...


class Logins:
    """The users of a process's SASL listeners."""

    def __init__(
        self,
        users: ScramUsers,
        secret: bytes,
        config: SaslConfig,
        bearers: Bearers | None = None,
    ) -> None:
        """Create it. `secret` is that of `load_decoy_secret`.

        `bearers` are needed if OAUTHBEARER is enabled.
        """
        self.bearers = bearers
        self.config = config
        self._users = users
        self._secret = secret
        self._checks = PasswordChecks(config)
        # Counts the changes of users. A connection whose count is older looks for its own user.
        self.changes = 0
        # The iterations of made-up keys by mechanism, and the count of changes they belong to.
        self._usual: dict[Mechanism, int] = {}
        self._counted_at = 0
        users.on_changed.append(self._on_changed)

    def close(self) -> None:
        """Follow the changes of users and keys no longer."""
        if self.bearers is not None:
            self.bearers.close()
        self._users.on_changed.remove(self._on_changed)

    def _on_changed(self) -> None:
        self.changes += 1

    def mechanisms(self, enabled: Sequence[str], *, encrypted: bool) -> tuple[str, ...]:
        """Return the mechanisms of a listener: some show what they prove, and need TLS."""
        return tuple(each for each in enabled if encrypted or each not in ONLY_IN_TLS)

    def new_nonce(self) -> str:
        """Return a fresh random nonce of printable characters."""
        return secrets.token_urlsafe(_NONCE_BYTES)

    def credential_of(self, mechanism: Mechanism, user: str) -> tuple[Credential, bool]:
        """Return the keys of a user and True, or made-up ones and False.

        Both take the same steps, because the time until the answer would tell them apart.
        """
        made_up = decoy(self._secret, mechanism, user, self._usual_iterations(mechanism))
        found = self._users.credential(user, mechanism)
        return (made_up, False) if found is None else (found, True)

    def _usual_iterations(self, mechanism: Mechanism) -> int:
        """Return the iterations of most users, which are counted once after each change."""
        if self._counted_at != self.changes:
            self._counted_at = self.changes
            self._usual.clear()
        found = self._usual.get(mechanism)
        if found is None:
            found = usual_iterations(self._users.all_iterations(mechanism))
            self._usual[mechanism] = found
        return found

    def check(
        self, user: str, password: bytes, host: str
    ) -> tuple[asyncio.Future[bool], Credential | None]:
        """Begin to check a password against the strongest keys of the user.

        Returns the result to come, and these keys: None if there is no such user, whose check takes
        as long. Raises TooManyChecks.
        """
        strong, weak = [(each, *self.credential_of(each, user)) for each in _STRONGEST_FIRST]
        mechanism, keys, exists = weak if weak[2] and not strong[2] else strong
        return self._checks.add(password, keys, mechanism, host), keys if exists else None

    def is_current(self, login: Login) -> bool:
        """Return whether a user still has the keys by which it authenticated.

        A token of OAUTHBEARER is valid until it ends.
        """
        if login.credential is None:
            return True
        known = _STRONGEST_FIRST if login.mechanism == PLAIN else (MECHANISMS[login.mechanism],)
        return any(self._users.credential(login.user, each) == login.credential for each in known)
