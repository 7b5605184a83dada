"""SCRAM credentials of users, checked and derived as in Kafka. Pure.

A client sends the salted password. Only the keys that authenticate with it are kept, from which it
cannot be computed. Source: RFC 5802; Kafka, ScramControlManager (rules and texts, KIP-554).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Collection
from enum import IntEnum
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from gateway.core.stored_names import NAME_BYTES_MAX, is_too_long

ITERATIONS_MIN, ITERATIONS_MAX = 4_096, 16_384
SALT_BYTES_MAX = 1024
SALTED_PASSWORD_BYTES_MAX = 64  # that of SHA-512

TWICE = "A user credential cannot be altered twice in the same request"


class Mechanism(IntEnum):
    """The values of mechanism in the SCRAM APIs."""

    SHA_256 = 1
    SHA_512 = 2


_DIGESTS = {Mechanism.SHA_256: "sha256", Mechanism.SHA_512: "sha512"}


class Credential(NamedTuple):
    """The secrets by which a server authenticates a user, for one mechanism."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        """Show no secret, as logs may contain this."""
        return f"Credential(iterations={self.iterations})"


class Deletion(NamedTuple):
    name: str
    mechanism: int


class Upsertion(NamedTuple):
    name: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes

    def __repr__(self) -> str:
        """Show no secret, as logs may contain this."""
        return f"Upsertion({self.name!r}, {self.mechanism}, iterations={self.iterations})"


class ScramRefused(Exception):
    """The error that a user's credential cannot be altered, with Kafka's code and text."""

    def __init__(self, code: ErrorCode, message: str | None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


Change = Deletion | Upsertion
MechanismsOf = Callable[[str], Collection[int]]
"""Returns the mechanisms for which a user has a credential."""


class Checked(NamedTuple):
    """The users of a request: the changes to make, and the refused ones, in the request's order."""

    users: list[str]
    changes: dict[str, Change]
    refused: dict[str, ScramRefused]


class Checks:
    """Checks the changes of one request in their order: deletions first, then upsertions."""

    def __init__(self, mechanisms_of: MechanismsOf) -> None:
        self._mechanisms_of = mechanisms_of
        self._checked = Checked([], {}, {})

    def add(self, change: Change) -> None:
        """Check one change. The first fault of a user stays, and it refuses all its changes."""
        users, changes, refused = self._checked
        name = change.name
        if name not in changes and name not in refused:
            users.append(name)
        if name in refused:
            return
        if changes.pop(name, None) is not None:
            refused[name] = ScramRefused(ErrorCode.duplicate_resource, TWICE)
            return
        try:
            _check(change, self._mechanisms_of)
        except ScramRefused as fault:
            refused[name] = fault
        else:
            changes[name] = change

    def result(self) -> Checked:
        return self._checked


def _check(change: Change, mechanisms_of: MechanismsOf) -> None:
    unacceptable = ErrorCode.unacceptable_credential
    if not change.name:
        raise ScramRefused(unacceptable, "Username must not be empty")
    if change.mechanism not in _DIGESTS:
        raise ScramRefused(ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism")
    if isinstance(change, Deletion):
        if change.mechanism not in mechanisms_of(change.name):
            raise ScramRefused(
                ErrorCode.resource_not_found,
                "Attempt to delete a user credential that does not exist",
            )
        return
    if change.iterations < ITERATIONS_MIN:
        raise ScramRefused(unacceptable, "Too few iterations")
    if change.iterations > ITERATIONS_MAX:
        raise ScramRefused(unacceptable, "Too many iterations")
    if not change.salted_password:  # no key can be derived from it
        raise ScramRefused(ErrorCode.unknown_server_error, None)
    _check_sizes(change)


def _check_sizes(change: Upsertion) -> None:
    unacceptable = ErrorCode.unacceptable_credential
    if len(change.salted_password) > SALTED_PASSWORD_BYTES_MAX:
        text = f"The salted password is longer than {SALTED_PASSWORD_BYTES_MAX} bytes"
        raise ScramRefused(unacceptable, text)
    if len(change.salt) > SALT_BYTES_MAX:
        raise ScramRefused(unacceptable, f"The salt is longer than {SALT_BYTES_MAX} bytes")
    if is_too_long(change.name):
        raise ScramRefused(unacceptable, f"The name is longer than {NAME_BYTES_MAX} bytes")


def derived(change: Upsertion) -> Credential:
    """Return the credential to store. Raises KeyError for an unknown mechanism."""
    digest = _DIGESTS[Mechanism(change.mechanism)]
    client_key = hmac.digest(change.salted_password, b"Client Key", digest)
    return Credential(
        change.iterations,
        change.salt,
        hashlib.new(digest, client_key).digest(),
        hmac.digest(change.salted_password, b"Server Key", digest),
    )
