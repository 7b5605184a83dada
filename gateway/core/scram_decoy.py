"""Made-up SCRAM keys of users that do not exist, so that they look like users that do. Pure.

The keys of one name are always the same, because they follow from a secret of the cluster: a salt
that changed with each try would show that there is no such user.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import Final

from gateway.core.scram_credentials import Credential, Mechanism
from gateway.core.scram_exchange import DIGESTS

SECRET_BYTES: Final = 32
NEW_ITERATIONS: Final = 8_192
"""The iterations of a credential that this project makes."""

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_SALT_CHARACTERS: Final = 26


def salt_of(random_bytes: bytes) -> bytes:
    """Return a salt in the form of Kafka's tools: a random number of 130 bits, in base 36."""
    number = int.from_bytes(random_bytes, "big") >> max(0, len(random_bytes) * 8 - 130)
    text = ""
    while number:
        number, digit = divmod(number, 36)
        text = _DIGITS[digit] + text
    return text.encode()[-_SALT_CHARACTERS:]


def decoy(secret: bytes, mechanism: Mechanism, name: str, iterations: int) -> Credential:
    """Return the made-up credential of a name."""

    def part(use: str) -> bytes:
        text = f"{use}\0{mechanism.name}\0{name}"
        return hmac.digest(secret, text.encode("utf-8", "surrogatepass"), DIGESTS[mechanism])

    return Credential(iterations, salt_of(part("salt")), part("stored key"), part("server key"))


def usual_iterations(found: Iterable[int]) -> int:
    """Return the iterations that most users have."""
    counts: dict[int, int] = {}
    for each in found:
        counts[each] = counts.get(each, 0) + 1
    return max(counts, key=lambda each: (counts[each], each), default=NEW_ITERATIONS)
