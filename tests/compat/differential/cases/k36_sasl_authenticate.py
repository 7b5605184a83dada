"""SaslAuthenticate: out of order on a listener without SASL, whatever the token."""

from __future__ import annotations

from tests.compat.differential.script import Script, case

KEY = 36


@case(KEY)
def without_sasl(script: Script) -> None:
    for token in (b"", b"\0user\0password", b"n,,n=user,r=nonce", bytes(1000)):
        script.ask(auth_bytes=token)
