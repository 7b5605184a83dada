"""Checks names and passwords of requests (HTTP Basic) without holding the loop.

A check takes 50 ms by design, so it runs in a thread, two at a time. A name that was checked once
costs a keyed digest from then on. A wrong password occupies its place for a while longer: passwords
can be guessed at eight a second, which leaves the processors to producers and consumers.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ledger.tasks import in_thread

if TYPE_CHECKING:
    from gateway.http.password_file import Hashed

CHECKS_MAX: Final = 2  # at a time
WRONG_S: Final = 0.25  # for which a wrong password occupies one of them
_HEADER_CHARACTERS_MAX: Final = 4096


class Passwords:
    """The names and passwords of one port."""

    def __init__(self, hashed: Mapping[str, Hashed]) -> None:
        self._hashed = hashed
        self._checking = asyncio.Semaphore(CHECKS_MAX)
        # Keyed digests of the passwords that were right, by name: as many as there are names.
        self._right: dict[str, bytes] = {}
        self._key = secrets.token_bytes(32)

    async def check(self, authorization: str) -> str | None:
        """Return the name of an `Authorization` header, or None if its password is wrong."""
        found = _name_and_password(authorization)
        if found is None:
            return None
        name, password = found
        digest = hashlib.blake2b(password, key=self._key).digest()
        if hmac.compare_digest(self._right.get(name, b""), digest):
            return name
        # A name that does not exist takes as long as one that does.
        hashed = self._hashed.get(name) or next(iter(self._hashed.values()))
        async with self._checking:
            is_right = await in_thread(hashed.matches, password) and name in self._hashed
            if not is_right:
                await asyncio.sleep(WRONG_S)
                return None
        self._right[name] = digest
        return name


def _name_and_password(authorization: str) -> tuple[str, bytes] | None:
    scheme, _, written = authorization.partition(" ")
    if scheme.lower() != "basic" or len(written) > _HEADER_CHARACTERS_MAX:
        return None
    try:
        name, colon, password = base64.b64decode(written.strip(), validate=True).partition(b":")
        return (name.decode(), password) if colon else None
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None
