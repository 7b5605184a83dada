"""CreateDelegationToken: connections that are not authenticated, with any owner."""

from __future__ import annotations

from tests.compat.differential.script import Script, case

KEY = 38


@case(KEY, until=2)
def without_an_owner(script: Script) -> None:
    script.ask(renewers=[], max_lifetime=-1)
    script.ask(renewers=[{"principal_type": "X", "principal_name": "a"}], max_lifetime=-5)


@case(KEY, since=3)
def with_owners(script: Script) -> None:
    for kind, name in ((None, None), ("User", None), ("User", ""), ("Z", "zz"), (None, "x")):
        script.ask(
            owner_principal_type=kind, owner_principal_name=name, renewers=[], max_lifetime=-1
        )
