"""Checks names and passwords of requests (HTTP Basic) without holding the loop.

A check takes 50 ms by design, so it runs in a thread, two at a time. A name that was checked once
costs a keyed digest from then on. A wrong password occupies its place for a while longer: passwords
can be guessed at eight a second, which leaves the processors to producers and consumers.
With an authorizer, users of SCRAM may log in too; a name of the file is checked by the file.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.core.scram_credentials import Credential, Mechanism, Upsertion, derived
from gateway.core.scram_decoy import NEW_ITERATIONS
from gateway.core.scram_exchange import salted_password
from ledger.tasks import in_thread

if TYPE_CHECKING:
    from gateway.http.password_file import Hashed
    from gateway.settings.scram_users import ScramUsers

CHECKS_MAX: Final = 2  # at a time
WRONG_S: Final = 0.25  # for which a wrong password occupies one of them
_HEADER_CHARACTERS_MAX: Final = 4096


class _User(NamedTuple):
    """A user of SCRAM by one mechanism; its keys are those of no password if there is none."""

    mechanism: Mechanism
    credential: Credential
    exists: bool

    def matches(self, password: bytes) -> bool:
        """Return whether this is the password. Takes about 5 ms."""
        salt, iterations = self.credential.salt, self.credential.iterations
        try:
            salted = salted_password(self.mechanism, password.decode(), salt, iterations)
        except UnicodeDecodeError:
            return False
        found = derived(Upsertion("", self.mechanism, iterations, salt, salted))
        is_same = hmac.compare_digest(found.stored_key, self.credential.stored_key)
        return is_same and self.exists


class _Right(NamedTuple):
    """A password that was right, and the user of SCRAM at that time, who may change."""

    digest: bytes
    user: _User | None


class Passwords:
    """The names and passwords of one port, and the users of SCRAM if there are `users`."""

    def __init__(self, hashed: Mapping[str, Hashed], users: ScramUsers | None = None) -> None:
        self._hashed = hashed
        self._users = users
        self._checking = asyncio.Semaphore(CHECKS_MAX)
        # Keyed digests of the passwords that were right, by name: as many as there are names.
        self._right: dict[str, _Right] = {}
        self._key = secrets.token_bytes(32)
        # The keys of a user that does not exist: its check takes as long as that of another one.
        self._nobody = Credential(NEW_ITERATIONS, self._key[:16], self._key, self._key)

    async def check(self, authorization: str) -> str | None:
        """Return the name of an `Authorization` header, or None if its password is wrong."""
        found = _name_and_password(authorization)
        if found is None:
            return None
        name, password = found
        digest = hashlib.blake2b(password, key=self._key).digest()
        user = self._user(name)
        right = self._right.get(name, _Right(b"", None))
        if hmac.compare_digest(right.digest, digest) and right.user == user:
            return name
        async with self._checking:
            if not await in_thread(self._matches, name, password, user):
                await asyncio.sleep(WRONG_S)
                return None
        self._right[name] = _Right(digest, user)
        return name

    def _matches(self, name: str, password: bytes, user: _User | None) -> bool:
        """Check a password. A name that does not exist takes as long as one that does."""
        hashed = self._hashed.get(name) or next(iter(self._hashed.values()))
        of_file = hashed.matches(password) and name in self._hashed
        of_user = user is not None and user.matches(password) and name not in self._hashed
        return of_file or of_user

    def _user(self, name: str) -> _User | None:
        """Return the user of SCRAM of a name, or one that has no password."""
        if self._users is None:
            return None
        for mechanism in (Mechanism.SHA_512, Mechanism.SHA_256):
            credential = self._users.credential(name, mechanism)
            if credential is not None:
                return _User(mechanism, credential, exists=True)
        return _User(Mechanism.SHA_512, self._nobody, exists=False)


def _name_and_password(authorization: str) -> tuple[str, bytes] | None:
    scheme, _, written = authorization.partition(" ")
    if scheme.lower() != "basic" or len(written) > _HEADER_CHARACTERS_MAX:
        return None
    try:
        name, colon, password = base64.b64decode(written.strip(), validate=True).partition(b":")
        return (name.decode(), password) if colon else None
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None
