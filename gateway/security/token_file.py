"""The token of OAUTHBEARER of a client of aiokafka. Loaded only for such a client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aiokafka.abc import AbstractTokenProvider

from gateway.security.link_security import read_token
from ledger.tasks import in_thread


class TokenFile(AbstractTokenProvider):
    """A token that is read from its file at each login, so that a newer one is used."""

    def __init__(self, file: Path) -> None:
        self._file = file

    async def token(self) -> Any:  # its base class, which has none, returns None
        """Return the token as text. Raises SecretFault."""
        return await in_thread(read_token, self._file)
