"""Gets the token of a login while the event loop goes on. Loaded only for a login by a token."""

from __future__ import annotations

import asyncio
from typing import Final

from gateway.security.link_security import TokenSource
from gateway.security.token_sources import TokenServerAway
from gateway.wire.client_link import NoToken, Refused
from ledger.command_line.secret_values import SecretFault
from ledger.tasks import in_daemon

LOGIN_TOKEN_S_MAX: Final = 10.0
"""How long a login waits for its token, from the look-up of a server's name to its whole answer."""

KEPT_MAX: Final = 64
"""How many tokens are kept. The oldest makes way for one more."""

# Tokens of servers, and until when they are shown, on the loop's clock. A source is equal to
# another one if all their settings are equal.
_kept: Final[dict[TokenSource, tuple[str, float]]] = {}


async def login_token(source: TokenSource, within_s: float = LOGIN_TOKEN_S_MAX) -> str:
    """Return the token of a login: the kept one, or a new one.

    Raises NoToken if a server gives none within `within_s`, or none for now, and Refused after any
    other fault. A cancellation ends the wait at once.
    """
    now_s = asyncio.get_running_loop().time()
    token, until_s = _kept.get(source, ("", now_s))
    if now_s < until_s:
        return token
    try:
        async with asyncio.timeout(within_s):
            token, keep_s = await in_daemon("login-token", source.fetch)
    except TimeoutError:
        fault = f"{source.place}: gives no token within {within_s:g} s; check its host and port"
        raise NoToken(fault) from None
    except TokenServerAway as away:
        raise NoToken(str(away)) from None
    except SecretFault as fault:
        raise Refused(str(fault)) from None
    forget_token(source)
    if keep_s > 0:
        if len(_kept) >= KEPT_MAX:
            _kept.pop(next(iter(_kept)), None)
        _kept[source] = (token, now_s + keep_s)
    return token


def forget_token(source: TokenSource) -> None:
    """Keep the token of this source no longer: a server refuses it."""
    _kept.pop(source, None)
