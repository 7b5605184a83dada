"""The token of OAUTHBEARER of a client of aiokafka. Loaded only for such a client."""

from __future__ import annotations

from typing import Any

from aiokafka.abc import AbstractTokenProvider

from gateway.security.link_security import TokenSource
from ledger.tasks import in_thread


class TokenProvider(AbstractTokenProvider):
    """A token that is taken from its source at each login, so that a newer one is used."""

    def __init__(self, source: TokenSource) -> None:
        self._source = source

    async def token(self) -> Any:  # its base class, which has none, returns None
        """Return the token as text. Raises SecretFault."""
        return await in_thread(self._source.fetch)
