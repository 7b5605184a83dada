"""The file of `--http-password-file`: a line `NAME:HASH` for each name, made by `http-password`.

    alice:scrypt$16384$8$1$SALT$HASH

Salt and hash are base64. Empty lines and lines that begin with `#` are left out.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from ledger.command_line.secret_files import OTHERS_READ, others_read

FILE_BYTES_MAX: Final = 1024 * 1024
PASSWORD_BYTES_MAX: Final = 1024
_NAME: Final = re.compile(r"[^\s:\x00-\x20\x7f]{1,100}")
_SALT_BYTES: Final = 16
_HASH_BYTES: Final = 32
_MEMORY_MAX: Final = 64 * 1024 * 1024  # of one check


class PasswordFault(ValueError):
    """A password, or a file of them, that cannot be used; the text has the remedy."""


class Hashed(NamedTuple):
    """The stored form of a password, with scrypt's parameters (RFC 7914)."""

    n: int
    r: int
    p: int
    salt: bytes
    digest: bytes

    def matches(self, password: bytes) -> bool:
        """Return whether this is the password. Takes about 50 ms and 16 MiB."""
        found = _scrypt(password, self.salt, self.n, self.r, self.p)
        return hmac.compare_digest(found, self.digest)


def line_of(name: str, password: str) -> str:
    """Return the line of a name. Raises PasswordFault."""
    if not _NAME.fullmatch(name):
        raise PasswordFault(f"{name!r} is no name: 1 to 100 characters without spaces and colons")
    secret = password.encode()
    if not 1 <= len(secret) <= PASSWORD_BYTES_MAX:
        raise PasswordFault(f"a password has 1 to {PASSWORD_BYTES_MAX} bytes")
    salt = secrets.token_bytes(_SALT_BYTES)
    n, r, p = 2**14, 8, 1
    parts = (_text(salt), _text(_scrypt(secret, salt, n, r, p)))
    return f"{name}:scrypt${n}${r}${p}${parts[0]}${parts[1]}"


def read_passwords(path: Path) -> Mapping[str, Hashed]:
    """Read the file. Raises PasswordFault: a file that others may read is refused."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise PasswordFault("is no file")
            if others_read(status.st_mode):
                raise PasswordFault(OTHERS_READ)
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise PasswordFault((error.strerror or str(error)).lower()) from error
    if len(content) > FILE_BYTES_MAX:
        raise PasswordFault(f"has more than {FILE_BYTES_MAX:,} bytes")
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError:
        raise PasswordFault("is not valid UTF-8") from None
    found: dict[str, Hashed] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, hashed = line.strip().partition(":")
        if not _NAME.fullmatch(name) or name in found:
            raise PasswordFault(f"line {number}: must begin with a name that no other line has")
        found[name] = _hashed(hashed, number)
    if not found:
        raise PasswordFault("has no line; make one with `gateway http-password NAME`")
    return found


def _hashed(written: str, number: int) -> Hashed:
    try:
        kind, n, r, p, salt, digest = written.split("$")
        hashed = Hashed(int(n), int(r), int(p), _bytes(salt), _bytes(digest))
    except (ValueError, binascii.Error):
        kind, hashed = "", None
    if kind != "scrypt" or hashed is None or not _is_sound(hashed):
        raise PasswordFault(
            f"line {number}: no scrypt hash follows the name; make the line with "
            "`gateway http-password NAME`"
        )
    return hashed


def _is_sound(hashed: Hashed) -> bool:
    n, r, p, salt, digest = hashed
    is_power = n >= 2**10 and n & (n - 1) == 0
    fits = r >= 1 and 1 <= p <= 4 and 128 * n * r <= _MEMORY_MAX
    return is_power and fits and len(salt) >= 8 and len(digest) == _HASH_BYTES


def _scrypt(password: bytes, salt: bytes, n: int, r: int, p: int) -> bytes:
    room = 2 * _MEMORY_MAX
    return hashlib.scrypt(password, salt=salt, n=n, r=r, p=p, maxmem=room, dklen=_HASH_BYTES)


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _bytes(written: str) -> bytes:
    return base64.b64decode(written, validate=True)
