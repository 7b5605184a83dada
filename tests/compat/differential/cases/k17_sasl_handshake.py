"""SaslHandshake: out of order on a listener without SASL, whatever the mechanism."""

from __future__ import annotations

from tests.compat.differential.script import Script, case

KEY = 17


@case(KEY)
def without_sasl(script: Script) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-512", "", "x" * 300, "PLAIN"):
        script.ask(mechanism=mechanism)
