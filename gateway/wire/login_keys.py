"""The keys of the requests with which a connection begins: what a server speaks, and the login."""

from __future__ import annotations

from typing import Final

SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
SASL_AUTHENTICATE: Final = 36
