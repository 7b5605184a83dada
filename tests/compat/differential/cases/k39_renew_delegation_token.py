"""RenewDelegationToken: connections that are not authenticated."""

from __future__ import annotations

from tests.compat.differential.script import Script, case

KEY = 39


@case(KEY)
def any_token(script: Script) -> None:
    for token, period in ((b"token", 1_000), (b"", -1)):
        script.ask(hmac=token, renew_period=period)
