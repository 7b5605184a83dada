"""The token of OAUTHBEARER of a client of aiokafka. Loaded only for such a client."""

from __future__ import annotations

from typing import Any

from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError, SaslAuthenticationFailed

from gateway.security.link_security import TokenSource
from gateway.security.login_token import login_token
from gateway.wire.client_link import NoToken, Refused


class TokenProvider(AbstractTokenProvider):
    """The token of each login of a client of aiokafka."""

    def __init__(self, source: TokenSource) -> None:
        self._source = source
        self.fault: NoToken | Refused | None = None
        """Why the last login had no token. aiokafka hides it when it tries the next server."""

    async def token(self) -> Any:  # its base class, which has none, returns None
        """Return the token as text.

        Raises what aiokafka expects: KafkaConnectionError, after which it tries again, or
        SaslAuthenticationFailed.
        """
        self.fault = None
        try:
            return await login_token(self._source)
        except NoToken as fault:
            self.fault = fault
            raise KafkaConnectionError(str(fault)) from None
        except Refused as fault:
            self.fault = fault
            raise SaslAuthenticationFailed(str(fault)) from None
