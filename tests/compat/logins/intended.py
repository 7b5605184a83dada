"""The logins in which our port differs from Apache Kafka 4.3 on purpose, with the reason."""

from __future__ import annotations

import re
from typing import Final

_HIDDEN: Final = "an unknown user is refused at the last message, as a wrong password is"
_CLOSED: Final = "other requests end the connection; Kafka answers those of its own with an error"
_FAILS: Final = "Kafka fails on it and closes; it is a failed login here"
INTENDED: Final[dict[str, str]] = {
    r"unknown user: 'SCRAM-SHA-(256|512)'": _HIDDEN,
    r"first message: b'n,,n=al=2Cice,r=c'": _HIDDEN,
    r"metadata (after a handshake|within the second login).*": _CLOSED,
    r"first message: b'n,,n=u{65536},r=c'": _FAILS,
    r"last message: '(cut proof|proof of another size)'": _FAILS,
    r"first message: b'n,,m=x,n=alice,r=c'": "RFC 5802 refuses a mandatory extension",
    r"last message: 'an extension'": "RFC 5802: the proof covers extensions; Kafka leaves them out",
}


def reason_of(name: str) -> str | None:
    """Return why the answers to a case differ on purpose, or None."""
    return next((why for form, why in INTENDED.items() if re.fullmatch(form, name)), None)
